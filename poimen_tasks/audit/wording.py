"""What an entry of the stream says, in the words of an event: who, what, how it went, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poimen_tasks.audit.event import iso
from poimen_tasks.audit.header import Head, error_of, names_of, positions_of, reason_of, rest_of, task_of

__all__ = ["STATUSES", "describe", "describe_item", "make"]

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
    "batch.collected": "the canvas behind batch {b} is settled: {how}",
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
    "tracker.updated": "task {task} of tracker {tracker} is {to}",
    "tracker.removed": "task {task} was removed from tracker {tracker}",
    "tracker.cleared": "tracker {tracker} was cleared",
    "worker.draining": "worker {worker} was asked to leave",
}


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
        reason_of(header),
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
        STATUSES.get(head.kind, "success"), error_of(header), reason_of(header), metadata,
    )  # fmt: skip


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
