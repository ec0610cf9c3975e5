"""Entries about items: one event an item. A lane reports many items at a time, so this is most of what a log holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

from poimen_tasks.audit.event import iso
from poimen_tasks.audit.wording import Head, describe_item, make, names_of, rest_of, task_of
from poimen_tasks.store.wire import OutcomeColumns, decode_outcomes, expand_ranges

__all__ = ["expand_items"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATUSES = ("success", "failure", "cancelled", "skipped")
_WORDS = ("succeeded", "failed", "was cancelled", "was skipped")
_COUNTS = frozenset({"ok", "failed", "cancelled", "skipped", "cached", "coalesced"})


def expand_items(head: Head, header: Mapping[str, Any], payload: bytes) -> list[dict[str, Any]] | None:
    """An event for each item that an entry is about; None when it is not about single items.

    Raises:
        PoimenError: the payload cannot be read.
        ValueError: the header contradicts itself.
    """
    if not head.kind.startswith("item."):
        return None
    if head.kind == "item.finished":
        columns = decode_outcomes(payload)
        return _finished(head, header, columns) if columns is not None else _served(head, header)
    if isinstance(header.get("y"), list):
        return _retried(head, header)
    if isinstance(header.get("r"), list):
        positions = list(expand_ranges(header["r"]))
        names = zip(*names_of(header, positions), strict=True)
        return [
            describe_item(head, header, n, at, name) for n, (at, name) in enumerate(zip(positions, names, strict=True))
        ]
    return None


def _retried(head: Head, header: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = header["y"]
    positions = [row[0] for row in rows]
    events = []
    for n, (row, name) in enumerate(zip(rows, zip(*names_of(header, positions), strict=True), strict=True)):
        said = {**header, "delay": row[1], "attempts": row[2]}
        events.append(describe_item(head, said, n, row[0], name))
    return events


def _served(head: Head, header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Items whose results came from the cache: the script says where, and nothing else."""
    positions = list(expand_ranges(header["r"]))
    items, tasks = names_of(header, positions)
    shared = {name: value for name, value in rest_of(header).items() if name not in _COUNTS}
    shared |= {"cached": True, "coalesced": bool(header.get("coalesced"))}
    when, events = iso(head.at), []
    for n, (position, item, task) in enumerate(zip(positions, items, tasks, strict=True)):
        metadata = {**shared, "position": position} | ({"item_id": item} if task not in (None, item) else {})
        action = f"item {item} of batch {head.batch} was served from the cache"
        events.append(make(head, n, task_of(head, item, task), when, action, "success", None, "", metadata))
    return events


def _finished(head: Head, header: Mapping[str, Any], columns: OutcomeColumns) -> list[dict[str, Any]]:
    positions = expand_ranges(columns.ranges)
    count = len(positions)
    items = columns.ids if columns.ids is not None else [str(position) for position in positions]
    tasks: Sequence[str | None] = names_of(header, positions)[1]
    ends = _ends(columns, count, head)
    errors = {row[0]: (row[1], row[2]) for row in columns.errors or ()}
    shared = {name: value for name, value in rest_of(header).items() if name not in _COUNTS}
    events = []
    for n, (position, item, task) in enumerate(zip(positions, items, tasks, strict=True)):
        status = columns.statuses[n] if columns.statuses else 0
        metadata = {**shared, "position": position, "attempts": columns.attempts[n] if columns.attempts else 1}
        if task is not None and task != item:
            metadata["item_id"] = item
        when, duration, wait = ends[n]
        if duration is not None:
            metadata["duration"], metadata["queue_wait"] = duration, wait
        if columns.cached and n in columns.cached:
            metadata["cached"] = True
        error = errors.get(n)
        if error is not None:
            metadata["error_type"] = error[0]
        events.append(
            make(
                head, n, task_of(head, item, task), when, f"item {item} of batch {head.batch} {_WORDS[status]}",
                _STATUSES[status], None if error is None else ": ".join(filter(None, error)), "", metadata,
            )
        )  # fmt: skip
    return events


def _ends(columns: OutcomeColumns, count: int, head: Head) -> list[tuple[str, float | None, float | None]]:
    """When each item ended, how long its body took and how long it had waited, in seconds."""
    if columns.starts is None or columns.durations is None:
        return [(iso(head.at), None, None)] * count
    base, enqueued = round(columns.base * 1e6), columns.enqueued
    made: list[tuple[str, float | None, float | None]] = []
    for at, (shift, duration) in enumerate(zip(accumulate(columns.starts), columns.durations, strict=True)):
        since = enqueued[at] if isinstance(enqueued, list) else enqueued
        wait = max(0.0, round((base + shift) / 1e6 - since, 6)) if since else None
        ended = (_EPOCH + timedelta(microseconds=base + shift + duration)).isoformat(timespec="microseconds")
        made.append((ended, duration / 1e6, wait))
    return made
