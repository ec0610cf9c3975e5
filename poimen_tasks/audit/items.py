"""Entries about items: one event an item. A lane reports many items at a time, so this is most of what a log holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii as _json
from typing import Any

from poimen_tasks._json import compact_writer
from poimen_tasks.audit.event import iso
from poimen_tasks.audit.header import Head, names_of, positions_of, rest_of, task_of
from poimen_tasks.audit.wording import describe_item, make
from poimen_tasks.store.outcome_blob import OutcomeColumns

__all__ = ["expand_items", "finished_lines"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATUSES = ("success", "failure", "cancelled", "skipped")
_WORDS = ("succeeded", "failed", "was cancelled", "was skipped")
_dump = compact_writer()
#: What the lines of `finished_lines` say themselves: a name stands once.
_TOLD = frozenset({"position", "attempts", "duration", "queue_wait", "error_type", "item_id"})
_COUNTS = frozenset({"ok", "failed", "cancelled", "skipped", "cached", "coalesced"})


def expand_items(head: Head, header: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """An event for each item that an entry is about; None when it is not about single items.

    Raises:
        ValueError: the header contradicts itself.
    """
    if not head.kind.startswith("item."):
        return None
    if head.kind == "item.finished":
        return _served(head, header)
    if isinstance(header.get("y"), list):
        return _retried(head, header)
    if isinstance(header.get("r"), list):
        positions = positions_of(header["r"])
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
    positions = positions_of(header["r"])
    items, tasks = names_of(header, positions)
    shared = {name: value for name, value in rest_of(header).items() if name not in _COUNTS}
    shared |= {"cached": True, "coalesced": bool(header.get("coalesced"))}
    when, events = iso(head.at), []
    for n, (position, item, task) in enumerate(zip(positions, items, tasks, strict=True)):
        metadata = {**shared, "position": position} | ({"item_id": item} if task not in (None, item) else {})
        action = f"item {item} of batch {head.batch} was served from the cache"
        events.append(make(head, n, task_of(head, item, task), when, action, "success", None, "", metadata))
    return events


def finished_lines(head: Head, header: Mapping[str, Any], columns: OutcomeColumns) -> list[str]:
    """The events of what a lane reported, as JSON already: they are most of a log, and cost a third this way."""
    positions = positions_of(columns.ranges)
    ids = columns.ids
    items = list(map(_json, ids)) if ids is not None else [f'"{position}"' for position in positions]
    tasks = _tasks(head, header, positions, items)
    errors = {row[0]: (row[1], row[2]) for row in columns.errors or ()}
    cached = frozenset(columns.cached or ())
    before, middle, shared = _constants(head, header)
    begin, behind = f'{{"event_id":"{head.prefix}', [_behind(head, status) for status in range(len(_WORDS))]
    statuses, attempts, lines = columns.statuses, columns.attempts, list[str]()
    rows = zip(positions, items, tasks, _ends(columns, len(items), head), strict=True)
    for n, (position, item, task, (when, took)) in enumerate(rows):
        error, more = "null", ""
        if n in errors:
            error = _json(": ".join(filter(None, errors[n])))
            more = f',"error_type":{_json(errors[n][0])}'
        if task not in (item, "null"):
            more += f',"item_id":{item}'
        if n in cached:
            more += ',"cached":true'
        how, tries = behind[statuses[n] if statuses else 0], attempts[n] if attempts else 1
        lines.append(
            f'{begin}{n}{before}{task}{middle}{when}","action":"item {item[1:-1]}{how}{error},"metadata":{{{shared}'
            f'"position":{position},"attempts":{tries:d}{took}{more}}}}}'
        )
    return lines


def _behind(head: Head, status: int) -> str:
    """What stands between an item's name in the action and its error."""
    return (
        f' of batch {_json(str(head.batch))[1:-1]} {_WORDS[status]}","reasoning":"","input":null,"output":null,'
        f'"status":"{_STATUSES[status]}","error":'
    )


def _tasks(head: Head, header: Mapping[str, Any], positions: Sequence[int], items: list[str]) -> list[str]:
    """The task ids of items, as JSON."""
    if isinstance(header.get("t"), list):
        labels = names_of(header, positions)[1]
        return [item if label is None else _json(label) for item, label in zip(items, labels, strict=True)]
    return ["null"] * len(items) if head.is_callback else items


def _constants(head: Head, header: Mapping[str, Any]) -> tuple[str, str, str]:
    """What all lines of an entry share: between the event's id and the task, up to the time, and in the metadata."""
    shared = {name: value for name, value in rest_of(header).items() if name not in _COUNTS | _TOLD}
    before = f'","event_type":"item.finished","workflow_id":{_dump(head.workflow)},"task_id":'
    text = _dump(shared)[1:-1]
    return before, f',"actor":{_json(head.actor)},"timestamp":"', f"{text}," if text else ""


def _ends(columns: OutcomeColumns, count: int, head: Head) -> list[tuple[str, str]]:
    """When each item ended; and, for its metadata, how long its body took and how long it had waited, in seconds."""
    if columns.starts is None or columns.durations is None:
        return [(iso(head.at), "")] * count
    began, since = round(columns.base * 1e6), columns.enqueued
    marks = [round(one * 1e6) for one in since] if isinstance(since, list) else [round(since * 1e6)] * count
    second, text, made = None, "", []
    for at, (shift, duration) in enumerate(zip(columns.starts, columns.durations, strict=True)):
        began += shift
        whole, micros = divmod(began + duration, 1_000_000)
        if whole != second:
            second, text = whole, (_EPOCH + timedelta(seconds=whole)).isoformat(timespec="seconds")[:-6]
        took = f',"duration":{duration / 1e6!r}'
        if mark := marks[at]:
            took += f',"queue_wait":{max(0, began - mark) / 1e6!r}'
        made.append((f"{text}.{micros:06d}+00:00", took))
    return made
