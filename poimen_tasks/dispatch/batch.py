"""A handle on a batch: look at it, wait for it, steer it. Made without a round trip, in any process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from poimen_tasks import codec
from poimen_tasks.dispatch import steering
from poimen_tasks.dispatch.hidden import hidden_id
from poimen_tasks.dispatch.ledger import Ledger
from poimen_tasks.dispatch.options import NO_END, deadline_of
from poimen_tasks.dispatch.outcomes import cursor_start, decode_blob, resume_at
from poimen_tasks.dispatch.report import BatchReport
from poimen_tasks.dispatch.stream import entries, last_ordinal
from poimen_tasks.errors import (
    BatchFailed,
    BatchNotFound,
    BatchTimeout,
    InvalidArgument,
    ItemNotFound,
    PoimenError,
)
from poimen_tasks.model import BatchStatus, Outcome, R_co

if TYPE_CHECKING:
    from poimen_tasks.dispatch.runtime import Runtime
    from poimen_tasks.store import Store

__all__ = ["Batch"]


class Batch(Generic[R_co]):
    """One batch. Every method reads or changes the store; the object itself holds only ids.

    `Batch[R]`, to a type checker: its task returns R. A batch of tasks of several types is a `Batch[object]`, and one
    of a group, a chord or `poimen.batch(id)` a `Batch[Any]`.
    """

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

    def outcome(self, item_id: str) -> Outcome[R_co] | None:
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

    def result(self, item_id: str) -> R_co:
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

    def outcomes(self, after: int | None = None, timeout: float | None = None) -> Iterator[Outcome[R_co]]:
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

    def _stream(self, ordinal: int, skip: int, deadline: float) -> Iterator[Outcome[R_co]]:
        for entry in entries(self._store, self.id, max(0, ordinal - 1), deadline):
            yield from decode_blob(
                entry.blob, cursor_start(entry.ordinal), skip=skip if entry.ordinal == ordinal else 0
            )

    def wait(self, timeout: float | None = None, *, raise_on_error: bool = False) -> BatchReport[R_co]:
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
        for entry in entries(self._store, self.id, 0, deadline_of(timeout)):
            ledger.add(entry.ordinal, entry.blob)
        status = self.status()
        report: BatchReport[R_co] = BatchReport(
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
        for _ in entries(self._store, self.id, last_ordinal(self._store, self.id), deadline):
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
        steering.cancel(self._runtime, self.id, reason=reason, actor=actor, terminate=terminate)
        return self.status()

    def pause(self, **options: Any) -> Any:
        """`Poimen.pause` of this batch, with its options; returns the `PauseReceipt`."""
        steering.refuse_scope(options, f"batch {self.id}")
        return self._runtime.pause(batch=self.id, **options)

    def resume(self, **options: Any) -> Any:
        """`Poimen.resume` of this batch, with its options; returns the `PauseState`.

        Raises:
            NotPaused: it is not paused itself; what covers it may be.
        """
        steering.refuse_scope(options, f"batch {self.id}")
        return self._runtime.resume(batch=self.id, **options)

    def set_concurrency(self, concurrency: int | None, actor: str | None = None) -> None:
        """Change the limit while the batch runs. Up takes effect at once; surplus lanes leave before their next item.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
        """
        steering.set_concurrency(self._runtime, self.id, concurrency, actor=actor)

    def retry_failed(self, actor: str | None = None) -> int:
        """Run the failed items again, in a new round with its own callbacks. Returns how many.

        Raises:
            BatchNotFound: never dispatched, or its retention is over.
            InvalidArgument: the batch was cancelled, or its callbacks are still running.
        """
        return steering.retry_failed(self._runtime, self.id, actor=actor)

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
