"""A handle on a batch: look at it, wait for it, steer it. Made without a round trip, in any process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from poimen_tasks import codec, context
from poimen_tasks.dispatch.gather import gather
from poimen_tasks.dispatch.hidden import hidden_id
from poimen_tasks.dispatch.ledger import Ledger
from poimen_tasks.dispatch.options import NO_END, concurrency_limit, deadline_of
from poimen_tasks.dispatch.outcomes import cursor_start, decode_blob, resume_at
from poimen_tasks.dispatch.report import BatchReport
from poimen_tasks.errors import (
    BatchFailed,
    BatchNotFound,
    BatchTimeout,
    InvalidArgument,
    ItemNotFound,
    PoimenError,
    WouldDeadlock,
)
from poimen_tasks.ids import check_name
from poimen_tasks.model import BatchStatus, ItemStatus, Outcome
from poimen_tasks.store.reads import Entry, next_count
from poimen_tasks.store.scripts import tickets_of
from poimen_tasks.store.wire import CHUNK

if TYPE_CHECKING:
    from poimen_tasks.dispatch.runtime import Runtime
    from poimen_tasks.store import Store

__all__ = ["Batch"]

_BLOCK = 1.0
_OUTAGE = 60.0


class Batch:
    """One batch. Every method reads or changes the store; the object itself holds only ids."""

    def __init__(
        self, runtime: Runtime, batch_id: str, *, workflow: str | None = None, stage: str | None = None
    ) -> None:
        self.id = batch_id
        self._runtime = runtime
        self._workflow = workflow
        self._stage = stage

    def __repr__(self) -> str:
        return f"Batch({self.id!r})"

    @property
    def _store(self) -> Store:
        return self._runtime.store()

    @property
    def workflow(self) -> str:
        """The workflow it belongs to."""
        if self._workflow is None:
            self._workflow = self.status().workflow
        return self._workflow

    @property
    def stage(self) -> str:
        """Its name in the workflow."""
        if self._stage is None:
            self._stage = self.status().stage
        return self._stage

    @property
    def metadata(self) -> dict[str, Any]:
        """What `dispatch(metadata=)` was given.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
        """
        (data,) = self._store.reads.field(self.id, "metadata")
        if data is None:
            self.status()
        return dict(codec.decode(data)) if data else {}

    # --- looking -------------------------------------------------------------------------------------------------

    def status(self) -> BatchStatus:
        """Counters and state at this instant; one read, whatever the batch's size.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
        """
        return self._store.reads.status(self.id)

    def is_complete(self, item_id: str) -> bool:
        """True when the item has its outcome; False for one that is not over or not of this batch."""
        position = self._store.reads.position_of(self.id, str(item_id))
        return position is not None and self._store.reads.ordinal_of(self.id, position) > 0

    def outcome(self, item_id: str) -> Outcome[Any] | None:
        """The outcome of one item, or None while it has none.

        Raises:
            ItemNotFound: the batch has no such item.
        """
        reads = self._store.reads
        position = reads.position_of(self.id, str(item_id))
        if position is None:
            raise ItemNotFound(
                f"batch {self.id!r} has no item {item_id!r}; see `status().total`, or the ids given at dispatch"
            )
        entry = reads.entry(self.id, reads.ordinal_of(self.id, position))
        if entry is None:
            return None
        wanted = reads.names(self.id, [position])[0]
        return next(
            (found for found in decode_blob(entry.blob, cursor_start(entry.ordinal)) if found.item_id == wanted), None
        )

    def result(self, item_id: str) -> Any:
        """The result of one item.

        Raises:
            ItemNotFound: the batch has no such item.
            BatchFailed: the item did not succeed, or has no outcome yet.
        """
        found = self.outcome(item_id)
        if found is None:
            raise BatchFailed(
                f"item {item_id!r} of batch {self.id!r} has no outcome yet; wait for it", batch_id=self.id
            )
        if not found.ok:
            raise BatchFailed(
                f"item {item_id!r} of batch {self.id!r} {found.status}: {found.error}",
                batch_id=self.id,
                failed=1,
                errors={str(item_id): str(found.error)},
            )
        return found.result

    # --- waiting -------------------------------------------------------------------------------------------------

    def outcomes(self, after: int | None = None, timeout: float | None = None) -> Iterator[Outcome[Any]]:
        """Outcomes as they come in, until the batch is over.

        Args:
            after: the `cursor` of the last outcome that was seen, in this process or another; None: from the first.
            timeout: seconds for all of it; None waits as long as it takes.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
            BatchTimeout: the batch is not over in time; it goes on.
            WouldDeadlock: inside a task, while the batch is not over.
            InvalidArgument: a negative timeout, or not a cursor.
        """
        ordinal, skip = resume_at(after)
        deadline = deadline_of(timeout)
        return self._stream(ordinal, skip, deadline)

    def _stream(self, ordinal: int, skip: int, deadline: float) -> Iterator[Outcome[Any]]:
        for entry in self._entries(max(0, ordinal - 1), deadline):
            yield from decode_blob(
                entry.blob, cursor_start(entry.ordinal), skip=skip if entry.ordinal == ordinal else 0
            )

    def _entries(self, after: int, deadline: float) -> Iterator[Entry]:
        """Stream entries behind an ordinal until the end of the batch; checks now and then that there still is one."""
        self._refuse_deadlock()
        status, count = self.status(), 64
        if status.is_over:
            deadline = NO_END
        ended = self._last_ordinal() if status.is_over else None
        while ended is None or after < ended:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BatchTimeout(f"batch {self.id!r} is not over yet: {_counts(self.status())}; it goes on")
            found = self._store.reads.outcomes(
                self.id, after=after, block=min(_BLOCK, left), count=count, patience=min(left, _OUTAGE)
            )
            if not found:
                # A batch is over only with a marked entry; when none came, look whether it still exists.
                status = self.status()
                ended = self._last_ordinal() if status.is_over else None
                continue
            yield from found
            after, count = found[-1].ordinal, next_count(count, found)
            if found[-1].ends:
                ended = self._last_ordinal() if self.status().is_over else None

    def _last_ordinal(self) -> int:
        (last,) = self._store.reads.field(self.id, "ordinal")
        return int(last or 0)

    def wait(self, timeout: float | None = None, *, raise_on_error: bool = False) -> BatchReport:
        """Wait until every item has its outcome.

        Args:
            timeout: seconds; None waits as long as it takes.
            raise_on_error: raise `BatchFailed` when not every item succeeded.

        Raises:
            BatchTimeout: the batch is not over in time; it goes on.
            BatchFailed: with `raise_on_error`, items did not succeed.
            WouldDeadlock: inside a task, while the batch is not over.
            BatchNotFound: never dispatched, or its retention is over.
        """
        ledger = Ledger()
        for entry in self._entries(0, deadline_of(timeout)):
            ledger.add(entry.ordinal, entry.blob)
        status = self.status()
        report = BatchReport(
            ledger,
            batch_id=self.id,
            workflow=status.workflow,
            stage=status.stage,
            total=status.total,
            concurrency=status.concurrency,
        )
        if raise_on_error and not report.ok:
            first = {item_id: str(report.errors[item_id]) for item_id, _ in zip(report.errors, range(10), strict=False)}
            raise BatchFailed(
                f"batch {self.id!r}: {status.failed} of {status.total} items failed, {status.cancelled} cancelled, "
                f"{status.skipped} skipped; first: {first}",
                batch_id=self.id,
                failed=status.failed,
                errors=first,
            )
        return report

    def _refuse_deadlock(self) -> None:
        running = context.current_item()
        if running is not None and not self.status().is_over:
            raise WouldDeadlock(
                f"waiting for batch {self.id!r} inside item {running.position} of batch {running.batch!r} would hold "
                "the slot that it may need; use on_success= or a chord, or wait in the producer"
            )

    def callback_result(self, kind: str = "on_success", timeout: float | None = None) -> Any:
        """What a callback returned; waits for it.

        Args:
            kind: `on_success` (a chord's body), `on_failure` or `on_complete`.
            timeout: seconds; None waits as long as it takes.

        Raises:
            InvalidArgument: no such kind.
            BatchNotFound: the batch has no such callback, or ended the other way.
            BatchFailed: the callback failed.
            BatchTimeout: it is not over in time.
        """
        if kind not in ("on_success", "on_failure", "on_complete"):
            raise InvalidArgument(f"callback {kind!r:.60} is not known; use on_success, on_failure or on_complete")
        deadline = deadline_of(timeout)
        for _ in self._entries(self._last_ordinal(), deadline):
            pass
        (round_,) = self._store.reads.field(self.id, "round")
        hidden = Batch(self._runtime, hidden_id(self.id, kind.removeprefix("on_"), int(round_ or 0)))
        left = None if deadline == NO_END else max(0.0, deadline - time.monotonic())
        try:
            for outcome in hidden.outcomes(timeout=left):
                if outcome.ok:
                    return outcome.result
                raise BatchFailed(
                    f"{kind} of batch {self.id!r} {outcome.status}: {outcome.error}", batch_id=self.id, failed=1
                )
        except BatchNotFound:
            raise self._no_callback(kind) from None
        except BatchTimeout:
            raise BatchTimeout(f"{kind} of batch {self.id!r} is not over yet; it goes on") from None
        raise BatchFailed(f"{kind} of batch {self.id!r} has no outcome", batch_id=self.id)

    def _no_callback(self, kind: str) -> BatchNotFound:
        status = self.status()
        return BatchNotFound(
            f"{kind} of batch {self.id!r} did not run: the batch {status.state} ({status.succeeded} of {status.total} "
            f"items succeeded), or it was dispatched without {kind}; `wait()` has the errors"
        )

    # --- steering ------------------------------------------------------------------------------------------------

    def cancel(self, reason: str = "", actor: str | None = None, *, terminate: bool = False) -> BatchStatus:
        """Start no further item, give those that wait their outcome, and ask running ones to stop.

        A running body learns of it from `poimen.checkpoint()`; one that does not ask finishes, and its outcome counts.

        Args:
            reason: for the outcomes and the audit log.
            actor: who cancels.
            terminate: also kill the processes that run items of this batch.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
        """
        who = check_name(actor, "actor") if actor is not None else "unknown"
        left = 1
        while left:
            reply = self._store.scripts.cancel_batch(self.id, reason=str(reason)[:1000], actor=who, terminate=terminate)
            self._publish_reply(reply)
            left = reply[b"left"]
        return self.status()

    def set_concurrency(self, concurrency: int | None, actor: str | None = None) -> None:
        """Change the limit while the batch runs. Up takes effect at once; surplus lanes leave before their next item.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
        """
        limit = concurrency_limit(concurrency, self._runtime.settings.batch_concurrency)
        who = check_name(actor, "actor") if actor is not None else "unknown"
        self._publish(self._store.scripts.set_concurrency(self.id, limit, actor=who))

    def retry_failed(self, actor: str | None = None) -> int:
        """Run the failed items again, in a new round with its own callbacks. Returns how many.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
            InvalidArgument: the batch was cancelled, or its callbacks are still running.
        """
        who = check_name(actor, "actor") if actor is not None else "unknown"
        round_ = int(self._store.reads.field(self.id, "round")[0] or 0) + 1
        self.status()
        retried = 0
        failed = self._failed_positions()
        for at in range(0, len(failed), 500):
            more = at + 500 < len(failed)
            count, tickets = self._store.scripts.retry_failed(
                self.id, failed[at : at + 500], round_=round_, actor=who, more=more
            )
            retried += count
            self._publish(tickets)
        return retried

    def _failed_positions(self) -> list[tuple[int, int, int]]:
        """Position, partition and ordinal of every item whose newest outcome is a failure."""
        # Ordinals from the same reading: the store leaves alone what has run, or was put back, since then.
        ledger = gather(self._store.reads, self.id)
        positions = list(ledger.positions(ItemStatus.FAILED))
        found = []
        for at in range(0, len(positions), 4 * CHUNK):
            some = positions[at : at + 4 * CHUNK]
            views = self._store.reads.chunks(self.id, sorted({position // CHUNK for position in some}))
            for position in some:
                part = views[position // CHUNK].part(position % CHUNK)
                found.append((position, part, ledger.ordinal(position)))
        return found

    def _publish_reply(self, reply: dict[bytes, Any]) -> None:
        self._publish(tickets_of(reply))

    def _publish(self, tickets: list[Any]) -> None:
        if tickets:
            self._runtime.publish(tickets, {})

    # --- context manager -----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):
            return
        try:
            self.cancel(f"{type(error).__name__} in the producer")
        except PoimenError as failed:
            error.add_note(f"batch {self.id!r} could not be cancelled: {failed}")


def _counts(status: BatchStatus) -> str:
    text = f"{status.finished} of {status.total} items finished, {status.running} running"
    if status.unserved_queues:
        names = ",".join(status.unserved_queues)
        text += f"; no worker serves {names}: start one with `celery -A ... worker -Q {names}`"
    return text
