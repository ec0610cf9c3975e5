"""Events of items that end without a lane: those that were revoked while they waited, and those that were given up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from poimen_tasks.store.chunk_blob import CHUNK
from poimen_tasks.worker.events import EventStream, TaskEvent, failure_text
from poimen_tasks.worker.lane_events import item_received

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = ["tell_lane_lost", "tell_lost", "tell_revoked"]

_MOST = 100


def tell_revoked(stream: EventStream, store: Store, batch: str, positions: Sequence[int], *, terminated: bool) -> None:
    """They have their outcome: cancelled."""
    for received in _received(stream, store, batch, positions):
        fields = {"terminated": terminated, "signum": None, "expired": False}
        stream.add([received, stream.event("task-revoked", received["uuid"], received["timestamp"], **fields)])


def tell_lost(stream: EventStream, store: Store, batch: str, positions: Sequence[int], *, kind: str, why: str) -> None:
    """They have their outcome: failed, because their process died too often or ran into the hard limit."""
    for received in _received(stream, store, batch, positions):
        fields = {"exception": failure_text(kind, why), "traceback": ""}
        stream.add([received, stream.event("task-failed", received["uuid"], received["timestamp"], **fields)])


def tell_lane_lost(stream: EventStream, message_id: str, why: str) -> None:
    """A lane that may have been told of can say nothing more."""
    if message_id and stream.wanted() and stream.rate:
        fields = {"exception": failure_text("WorkerLost", why), "traceback": ""}
        stream.add([stream.event("task-failed", message_id, time.time(), **fields)])


def _received(stream: EventStream, store: Store, batch: str, positions: Sequence[int]) -> Iterator[TaskEvent]:
    """What the first of them are; large calls are left where they are."""
    some = positions[:_MOST] if stream.wanted() else []
    if not some:
        return
    parts = store.reads.parts(batch)
    chunks = store.reads.chunks(batch, sorted({position // CHUNK for position in some}))
    now = time.time()
    for position in some:
        view, i = chunks.get(position // CHUNK), position % CHUNK
        if view is not None:
            call = None if view.is_big(i) else view.call(i)
            part = parts[view.part(i)]
            yield item_received(stream, part, f"{batch}.{position}", now, call=call, retries=0, parent=None)
