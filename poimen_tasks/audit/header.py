"""The header of an entry: what all events of the entry share, and which items it is about."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgpack

from poimen_tasks._refusals import MAX_DEPTH
from poimen_tasks.audit.depth import too_deep
from poimen_tasks.codec import decode, jsonable
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.ranges import expand_ranges

__all__ = ["Head", "error_of", "names_of", "positions_of", "read_header", "reason_of", "rest_of", "task_of"]

#: Items that one entry is about, at most: a few bytes could stand for more lines than any disk holds.
_MOST_ITEMS = 100_000
_NAMES = {"b": "batch_id", "s": "stage"}
_OWN = frozenset({"w", "a", "reason", "i", "t", "r", "metadata", "y"})


class Head(NamedTuple):
    """What all events of an entry share."""

    kind: str
    prefix: str
    at: datetime
    workflow: str | None
    actor: str
    batch: str | None
    stage: str | None

    @property
    def is_callback(self) -> bool:
        """True when it is about the hidden batch of a callback, whose one item has nobody's label."""
        return self.batch is not None and "@" in self.batch

    @classmethod
    def read(cls, kind: str, header: Mapping[str, Any], *, prefix: str, at: datetime) -> Head:
        """From the header of an entry; `prefix` begins the ids of its events.

        Raises:
            ValueError: a name is no text.
        """
        batch, stage, workflow, actor = (header.get(name) for name in ("b", "s", "w", "a"))
        for name, value in (("b", batch), ("w", workflow), ("a", actor)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"header field {name} is a {type(value).__name__}, no text")
        return cls(
            kind,
            prefix,
            at,
            workflow or _paused_workflow(header.get("scope")),
            actor or "system",
            batch,
            stage if isinstance(stage, str) else None,
        )


def _paused_workflow(scope: object) -> str | None:
    """The workflow that a scope of pausing is."""
    return scope[2:] if isinstance(scope, str) and scope.startswith("w:") else None


def read_header(data: bytes) -> dict[str, Any]:
    """A header as plain values: texts where they are valid, else base64."""
    header = msgpack.unpackb(data, raw=True, strict_map_key=False)
    if not isinstance(header, dict):
        if header == []:  # the server's library cannot tell an empty table from an empty list
            return {}
        raise ValueError(f"the header is a {type(header).__name__}, no map")
    metadata = header.pop(b"metadata", None)
    if too_deep(header):
        raise ValueError(f"the header is nested deeper than {MAX_DEPTH}")
    made: dict[str, Any] = _plain(header)
    if metadata is not None:
        made["metadata"] = _metadata(metadata)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, dict):
        return {_text(key) if isinstance(key, bytes) else str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else jsonable(value)
    return value


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode("ascii")


def _metadata(value: Any) -> Any:
    """What a dispatch was given to keep with its batch: encoded, in the header."""
    try:
        return jsonable(decode(value)) if isinstance(value, bytes) else _plain(value)
    except PoimenError:
        return _plain(value)


def task_of(head: Head, item: str, task: str | None) -> str | None:
    """The task id of an item. The item of a callback has none: its position is nobody's label."""
    if task is not None:
        return task
    return None if head.is_callback else item


def names_of(header: Mapping[str, Any], positions: Sequence[int]) -> tuple[list[str], list[str | None]]:
    """The ids and the own task ids of items at these positions, from a header that is about them."""
    ids, tasks = header.get("i"), header.get("t")
    count = len(positions)
    items = list(map(str, ids)) if isinstance(ids, list) and len(ids) == count else list(map(str, positions))
    labels: list[str | None] = [None] * count
    if isinstance(tasks, list) and len(tasks) == count:
        if any(label is not None and not isinstance(label, str) for label in tasks):
            raise ValueError("a task id is no text")
        labels = [label or None for label in tasks]
    return items, labels


def positions_of(flat: Any) -> Sequence[int]:
    """The positions that flat ranges stand for. Ours are of a lane's items or a step's; anybody may write others.

    Raises:
        ValueError: they are no ranges, or stand for more items than an entry is about.
    """
    if not isinstance(flat, list) or not all(type(end) is int for end in flat):
        raise ValueError("ranges are no list of whole numbers")
    count = sum(high - low for low, high in zip(flat[::2], flat[1::2], strict=True) if high > low)
    if count > _MOST_ITEMS:
        raise ValueError(f"ranges of {count} items; an entry is about {_MOST_ITEMS} at most")
    return expand_ranges(flat)


def rest_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """What of a header has no field of its own in an event."""
    return {_NAMES.get(name, name): value for name, value in header.items() if name not in _OWN and name != "item"}


def error_of(header: Mapping[str, Any]) -> str | None:
    """What went wrong, where the header says it."""
    said = [
        part
        for part in (header.get("error"), header.get("type"), header.get("detail"))
        if isinstance(part, str) and part
    ]
    return ": ".join(said) or None


def reason_of(header: Mapping[str, Any]) -> str:
    """Why it was done, where the header says it."""
    reason = header.get("reason")
    return reason if isinstance(reason, str) else ""
