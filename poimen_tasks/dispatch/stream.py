"""Reads what a batch's items recorded, entry by entry, until the batch is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from poimen_tasks import context
from poimen_tasks.dispatch.options import NO_END
from poimen_tasks.errors import BatchTimeout, WouldDeadlock
from poimen_tasks.model import BatchStatus
from poimen_tasks.store.reads import Entry, next_count

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = ["entries", "last_ordinal"]

_BLOCK = 1.0
_OUTAGE = 60.0
_FIRST = 64


def entries(store: Store, batch: str, after: int, deadline: float) -> Iterator[Entry]:
    """Stream entries behind an ordinal until the end of the batch; checks now and then that there still is one.

    Args:
        store: where it is kept.
        batch: the batch's id.
        after: the ordinal of the last entry that was seen; 0 for none.
        deadline: on the monotonic clock; not looked at when the batch is over already.

    Raises:
        BatchNotFound: never dispatched, or its retention is over.
        BatchTimeout: the batch is not over in time; it goes on.
        WouldDeadlock: inside a task, while the batch is not over.
    """
    status, count = store.reads.status(batch), _FIRST
    _refuse_deadlock(batch, status)
    if status.is_over:
        deadline = NO_END
    ended = last_ordinal(store, batch) if status.is_over else None
    while ended is None or after < ended:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BatchTimeout(f"batch {batch!r} is not over yet: {_counts(store.reads.status(batch))}; it goes on")
        found = store.reads.outcomes(
            batch, after=after, block=min(_BLOCK, left), count=count, patience=min(left, _OUTAGE)
        )
        yield from found
        if found:
            after, count = found[-1].ordinal, next_count(count, found)
        # A batch is over only with a marked entry; when none came, look whether it still exists.
        if not found or found[-1].ends:
            ended = last_ordinal(store, batch) if store.reads.status(batch).is_over else None


def last_ordinal(store: Store, batch: str) -> int:
    """The ordinal of the newest entry; 0 before the first."""
    (last,) = store.reads.field(batch, "ordinal")
    return int(last or 0)


def _refuse_deadlock(batch: str, status: BatchStatus) -> None:
    running = context.current_item()
    if running is not None and not status.is_over:
        raise WouldDeadlock(
            f"waiting for batch {batch!r} inside item {running.position} of batch {running.batch!r} would hold "
            "the slot that it may need; use on_success= or a chord, or wait in the producer"
        )


def _counts(status: BatchStatus) -> str:
    text = f"{status.finished} of {status.total} items finished, {status.running} running"
    if status.unserved_queues:
        names = ",".join(status.unserved_queues)
        text += f"; no worker serves {names}: start one with `celery -A ... worker -Q {names}`"
    return text
