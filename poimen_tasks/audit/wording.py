"""What an entry of the stream says, in the words of an event: who, what, how it went, and why."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgpack

from poimen_tasks._refusals import MAX_DEPTH
from poimen_tasks.audit.event import iso
from poimen_tasks.audit.recorded import too_deep
from poimen_tasks.codec import decode, jsonable
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.wire import expand_ranges

__all__ = [
    "STATUSES", "Head", "describe", "describe_item", "make", "names_of", "positions_of", "read_header", "rest_of",
]  # fmt: skip

#: Items that one entry is about, at most: a few bytes could stand for more lines than any disk holds.
MOST_ITEMS = 100_000

#: How an event of a type went, where that is not `success`.
STATUSES = {
    "batch.failed": "failure",
    "batch.cancelled": "cancelled",
    "batch.cancelling": "cancelled",
    "batch.retried": "retry",
    "callback.finished": "success",
    "item.cancelled": "cancelled",
    "item.revoked": "cancelled",
    "item.revoking": "cancelled",
    "item.retried": "retry",
    "item.lost": "failure",
    "lane.lost": "failure",
    "worker.lost": "failure",
    "keeper.gap": "warning",  # as after each stop of the last worker: nothing is lost
    "call.revoking": "cancelled",
    "call.dropped": "cancelled",
    "cache.corrupted": "failure",
    "cache.takeover": "failure",
    "store.rollback": "failure",
    "audit.gap": "failure",
    "audit.unreadable": "failure",
}

#: What was done, where the type alone would not say it well; holes are header fields.
_ACTIONS = {
    "batch.opened": "batch {b} was dispatched",
    "batch.appended": "{count} items were added to batch {b}",
    "batch.sealed": "batch {b} is complete: {total} items",
    "batch.concurrency_changed": "the limit of batch {b} was changed from {from} to {to}",
    "batch.cancelling": "batch {b} was cancelled",
    "batch.retried": "failed items of batch {b} run again, round {round}",
    "batch.restored": "batch {b} was put back from a snapshot",
    "batch.completed": "batch {b} is over: all {total} items succeeded",
    "batch.failed": "batch {b} is over: {ok} of {total} items succeeded",
    "batch.cancelled": "batch {b} is over: it was cancelled",
    "callback.opened": "the {kind} callback of batch {b} may run",
    "callback.finished": "the {kind} callback of batch {b} is over",
    "item.cancelled": "item {item} did not start: its batch {b} was cancelled",
    "item.revoking": "item {item} of batch {b} is being revoked",
    "item.revoked": "item {item} of batch {b} was revoked",
    "item.retried": "item {item} of batch {b} waits for another attempt",
    "item.stopped": "item {item} of batch {b} stopped, because it is paused, and goes on afterwards",
    "item.lost": "item {item} of batch {b} was given up",
    "lane.lost": "a lane of batch {b} was lost",
    "lane.stopped": "a lane of batch {b} was ended by a pause",
    "ticket.reissued": "a ticket of batch {b} was issued again",
    "worker.lost": "worker {worker} is gone",
    "keeper.gap": "no keeper ticked for {gap} s; reaping is held",
    "cache.put": "{n} results were put into the cache",
    "cache.evicted": "results made room for others in the cache",
    "cache.invalidated": "cached results were called back",
    "cache.cleared": "all cached results were called back",
    "cache.takeover": "a computation passed to another after {n} failed",
    "cache.corrupted": "a damaged result was removed from the cache",
    "cache.hit": "{n} results were served from the cache",
    "call.parked": "call {id} waits for an equal one",
    "call.released": "call {id} began again",
    "call.paused": "call {id} waits: {scope} is paused",
    "call.resumed": "call {id} began after it had waited for a resume",
    "call.refused": "a copy of call {id} was refused",
    "call.revoking": "call {id} was revoked while it waited",
    "call.dropped": "call {id} was discarded while it waited",
    "scope.paused": "{scope} was paused",
    "scope.resumed": "{scope} was resumed",
    "scope.reset": "what was known of {scope} was forgotten",
    "snapshot.created": "a snapshot of workflow {w} was written",
    "snapshot.restored": "workflow {w} was restored from a snapshot",
    "worker.draining": "worker {worker} was asked to leave",
}

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


def make(  # noqa: PLR0917 - one argument a field that differs between the events of an entry
    head: Head, n: int, task: str | None, when: str, action: str, status: str, error: str | None, reasoning: str,
    metadata: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """An event under the names of the log."""
    return {
        "event_id": f"{head.prefix}{n}",
        "event_type": head.kind,
        "workflow_id": head.workflow,
        "task_id": task,
        "actor": head.actor,
        "timestamp": when,
        "action": action,
        "reasoning": reasoning,
        "input": None,
        "output": None,
        "status": status,
        "error": error,
        "metadata": metadata,
    }


def describe(head: Head, header: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The one event of an entry that is not about single items."""
    metadata = rest_of(header)
    if isinstance(header.get("metadata"), dict):
        metadata["metadata"] = header["metadata"]
    if isinstance(header.get("r"), list):
        metadata["items"] = names_of(header, positions_of(header["r"]))[0]
    error = error_of(header)
    status = header.get("status") or STATUSES.get(head.kind, "success")
    if (head.kind == "callback.finished" and header.get("ok") != 1) or (head.kind.startswith("snapshot.") and error):
        status = "failure"
    task = header.get("task")
    return make(
        head,
        0,
        task if isinstance(task, str) else None,
        iso(head.at),
        _action(head.kind, header),
        str(status),
        error,
        _reason(header),
        {**metadata, **more},
    )


def describe_item(
    head: Head, header: Mapping[str, Any], n: int, position: int, names: tuple[str, str | None]
) -> dict[str, Any]:
    """The event of one of the items that an entry is about; `names` is its item id, and its own task id if any."""
    item, task = names
    metadata = {**rest_of(header), "position": position}
    if task is not None and task != item:
        metadata["item_id"] = item
    shown = {**header, "item": item}
    return make(
        head, n, task_of(head, item, task), iso(head.at), _action(head.kind, shown),
        STATUSES.get(head.kind, "success"), error_of(header), _reason(header), metadata,
    )  # fmt: skip


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
    if count > MOST_ITEMS:
        raise ValueError(f"ranges of {count} items; an entry is about {MOST_ITEMS} at most")
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


def _reason(header: Mapping[str, Any]) -> str:
    reason = header.get("reason")
    return reason if isinstance(reason, str) else ""


#: What the first letter of a scope of pausing stands for.
_SCOPES = {"w:": "workflow", "b:": "batch", "q:": "queue", "a:": "activity"}


def _in_words(name: str, value: Any) -> Any:
    """A value of a header as a sentence has it."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if name == "scope" and isinstance(value, str):
        return "everything" if value == "*" else f"{_SCOPES.get(value[:2], value[:2])} {value[2:]}"
    return value


class _Holes(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "?"


def _action(kind: str, header: Mapping[str, Any]) -> str:
    form = _ACTIONS.get(kind)
    if form is not None:
        return form.format_map(_Holes({name: _in_words(name, value) for name, value in header.items()}))
    about = header.get("item") or header.get("b") or header.get("w")
    words = kind.replace(".", " ").replace("_", " ")
    return f"{words}: {about}" if isinstance(about, str) and about else words
