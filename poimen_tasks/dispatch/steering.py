"""Changes a batch that runs or has run: cancel, another limit, failed items again. `Batch` says what each means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poimen_tasks._checks import words
from poimen_tasks.dispatch.gather import gather
from poimen_tasks.dispatch.options import concurrency_limit
from poimen_tasks.errors import InvalidArgument
from poimen_tasks.ids import check_actor
from poimen_tasks.model import ItemStatus
from poimen_tasks.store.chunk_blob import CHUNK
from poimen_tasks.store.scripts import tickets_of
from poimen_tasks.store.values import Ticket

if TYPE_CHECKING:
    from poimen_tasks.dispatch.runtime import Runtime
    from poimen_tasks.store import Store

__all__ = ["cancel", "refuse_scope", "retry_failed", "set_concurrency"]

_MOST = 500


def refuse_scope(options: Mapping[str, Any], what: str) -> None:
    """A batch or a workflow that is paused or resumed says by itself what is meant.

    Raises:
        InvalidArgument: another scope is given, or the same once more.
    """
    for name in ("workflow", "batch", "queue", "activity", "everything"):
        if name in options:
            raise InvalidArgument(f"{name}=: {what} is what is meant; leave it out, or use `Poimen.pause` and `resume`")


def cancel(runtime: Runtime, batch: str, *, reason: str, actor: str | None, terminate: bool) -> None:
    """Start no further item, and give those that wait their outcome, some at a time."""
    who, left = check_actor(actor), 1
    while left:
        reply = runtime.store().scripts.cancel_batch(batch, reason=words(reason), actor=who, terminate=terminate)
        _publish(runtime, tickets_of(reply))
        left = reply[b"left"]


def set_concurrency(runtime: Runtime, batch: str, concurrency: Any, *, actor: str | None) -> None:
    """Write the limit, and publish the tickets that a higher one lacks."""
    limit = concurrency_limit(concurrency, runtime.settings.batch_concurrency)
    _publish(runtime, runtime.store().scripts.set_concurrency(batch, limit, actor=check_actor(actor)))


def retry_failed(runtime: Runtime, batch: str, *, actor: str | None) -> int:
    """Put the failed items back, some at a time, in a new round. Returns how many."""
    who, store = check_actor(actor), runtime.store()
    round_ = int(store.reads.field(batch, "round")[0] or 0) + 1
    store.reads.status(batch)  # raises for an unknown batch
    failed, retried = _failed_positions(store, batch), 0
    for at in range(0, len(failed), _MOST):
        some, more = failed[at : at + _MOST], at + _MOST < len(failed)
        count, tickets = store.scripts.retry_failed(batch, some, round_=round_, actor=who, more=more)
        retried += count
        _publish(runtime, tickets)
    return retried


def _failed_positions(store: Store, batch: str) -> list[tuple[int, int, int]]:
    """Position, partition and ordinal of every item whose newest outcome is a failure."""
    # Ordinals from the same reading: the store leaves alone what has run, or was put back, since then.
    ledger = gather(store.reads, batch)
    positions = list(ledger.positions(ItemStatus.FAILED))
    found = []
    for at in range(0, len(positions), 4 * CHUNK):
        some = positions[at : at + 4 * CHUNK]
        views = store.reads.chunks(batch, sorted({position // CHUNK for position in some}))
        for position in some:
            part = views[position // CHUNK].part(position % CHUNK)
            found.append((position, part, ledger.ordinal(position)))
    return found


def _publish(runtime: Runtime, tickets: Sequence[Ticket]) -> None:
    if tickets:
        runtime.publish(tickets, {})
