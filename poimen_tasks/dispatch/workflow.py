"""A workflow: one run of several batches, seen and steered as one. Made without a round trip, in any process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from poimen_tasks import context
from poimen_tasks.dispatch import steering
from poimen_tasks.dispatch.batch import Batch
from poimen_tasks.dispatch.options import deadline_of
from poimen_tasks.dispatch.outcomes import cursor_start, decode_blob, resume_at
from poimen_tasks.dispatch.report import BatchReport
from poimen_tasks.dispatch.workflow_report import WorkflowReport, WorkflowStatus, overall_state
from poimen_tasks.errors import (
    BatchNotFound,
    BatchTimeout,
    InvalidArgument,
    WorkflowNotFound,
    WouldDeadlock,
)
from poimen_tasks.ids import check_name
from poimen_tasks.model import BatchStatus, Outcome

if TYPE_CHECKING:
    from poimen_tasks.dispatch.runtime import Runtime
    from poimen_tasks.store import Reads

__all__ = ["Workflow"]

_LOOK = 0.25
_LOOK_FIRST = 0.01
_MOST_STREAMS = 1000


class Workflow:
    """One workflow. Every method reads or changes the store; the object itself holds only the id."""

    def __init__(self, runtime: Runtime, workflow: str) -> None:
        self.id = workflow
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"Workflow({self.id!r})"

    @property
    def _reads(self) -> Reads:
        return self._runtime.store().reads

    # --- looking -------------------------------------------------------------------------------------------------

    def batches(self, *, stage: str | None = None) -> list[Batch]:
        """Its batches within their retention, in the order of their dispatch; empty for an unknown workflow.

        Args:
            stage: only those of this stage.
        """
        if stage is not None:
            check_name(stage, "stage")
        found = self._statuses() if stage is not None else None
        names = (
            self._reads.workflow_batches(self.id) if found is None else [s.batch_id for s in found if s.stage == stage]
        )
        return [Batch(self._runtime, name, workflow=self.id) for name in names]

    def status(self) -> WorkflowStatus:
        """Counters and state at this instant; one round trip for every 500 batches.

        Raises:
            WorkflowNotFound: nothing was dispatched under this id, or the retention of all is over.
        """
        found = self._statuses()
        if not found:
            raise WorkflowNotFound(
                f"workflow {self.id!r} is not known: nothing was dispatched under it, or its retention is over"
            )
        return WorkflowStatus(workflow=self.id, state=overall_state(found), batches=tuple(found))

    def _statuses(self) -> list[BatchStatus]:
        found = self._reads.statuses(self._reads.workflow_batches(self.id))
        return [status for status in found if status is not None]

    # --- waiting -------------------------------------------------------------------------------------------------

    def outcomes(
        self, after: Mapping[str, int] | None = None, timeout: float | None = None
    ) -> Iterator[tuple[Batch, Outcome[Any]]]:
        """Outcomes of all batches as they come in, each with its batch, until the workflow is over.

        Args:
            after: batch id → `cursor` of the last outcome of it that was seen; batches not named: from the first.
            timeout: seconds for all of it; None waits as long as it takes.

        Raises:
            WorkflowNotFound: nothing was dispatched under this id, or the retention of all is over.
            BatchTimeout: the workflow is not over in time; it goes on.
            WouldDeadlock: inside a task, while the workflow is not over.
            InvalidArgument: a negative timeout, or not a cursor.
        """
        if after is not None and not isinstance(after, Mapping):
            raise InvalidArgument(f"after {after!r:.60} is not allowed; use a mapping of batch ids to cursors, or None")
        places = {batch: resume_at(cursor) for batch, cursor in (after or {}).items()}
        return self._stream(places, deadline_of(timeout))

    def _stream(self, places: dict[str, tuple[int, int]], deadline: float) -> Iterator[tuple[Batch, Outcome[Any]]]:
        seen = {batch: max(0, ordinal - 1) for batch, (ordinal, _) in places.items()}
        marks: dict[str, object] = {}
        for status in self._until_over(deadline, seen):
            for one in status.batches:
                # Every outcome changes the one, and the end of another round the other.
                mark = (one.finished, one.finished_at)
                if marks.get(one.batch_id) != mark:
                    marks[one.batch_id] = mark
                    yield from self._read_on(Batch(self._runtime, one.batch_id, workflow=self.id), seen, places)

    def _read_on(
        self, batch: Batch, seen: dict[str, int], places: Mapping[str, tuple[int, int]]
    ) -> Iterator[tuple[Batch, Outcome[Any]]]:
        """What a batch has behind the ordinal seen."""
        ordinal, skip = places.get(batch.id, (0, 0))
        for entries in self._reads.entries(batch.id, after=seen.get(batch.id, 0)):
            for entry in entries:
                seen[batch.id] = entry.ordinal
                known = skip if entry.ordinal == ordinal else 0
                for outcome in decode_blob(entry.blob, cursor_start(entry.ordinal), skip=known):
                    yield batch, outcome

    def wait(self, timeout: float | None = None, *, raise_on_error: bool = False) -> WorkflowReport:
        """Wait until every batch is over, those included that are dispatched meanwhile, and callbacks are settled.

        Args:
            timeout: seconds; None waits as long as it takes.
            raise_on_error: raise `BatchFailed` for the first batch of which not every item succeeded.

        Raises:
            WorkflowNotFound: nothing was dispatched under this id, or the retention of all is over.
            BatchTimeout: the workflow is not over in time; it goes on.
            BatchFailed: with `raise_on_error`, items did not succeed.
            WouldDeadlock: inside a task, while the workflow is not over.
        """
        names: list[str] = []
        for status in self._until_over(deadline_of(timeout), None):
            names = [one.batch_id for one in status.batches]
        return WorkflowReport(self.id, self._reports(names, raise_on_error=raise_on_error))

    def _reports(self, names: Iterable[str], *, raise_on_error: bool) -> Iterator[BatchReport]:
        for name in names:
            try:
                yield Batch(self._runtime, name, workflow=self.id).wait(raise_on_error=raise_on_error)
            except BatchNotFound:
                continue  # its retention ended meanwhile

    def _until_over(self, deadline: float, seen: Mapping[str, int] | None) -> Iterator[WorkflowStatus]:
        """The status again and again, until the workflow is over: what is read behind the last one is complete.

        Args:
            deadline: on the monotonic clock.
            seen: batch id to ordinal, for a caller that wants to hear of each outcome; None for one that does not.
        """
        pause = _LOOK_FIRST
        while not (status := self.status()).is_over:
            running = context.current_item()
            if running is not None:
                raise WouldDeadlock(
                    f"waiting for workflow {self.id!r} inside item {running.position} of batch {running.batch!r} would "
                    "hold the slot that it may need; use on_success=, or wait in the producer"
                )
            yield status
            left = deadline - time.monotonic()
            if left <= 0:
                raise BatchTimeout(
                    f"workflow {self.id!r} is not over yet: {status.finished} of {status.total} items in "
                    f"{len(status.batches)} batches finished; it goes on"
                )
            pause = min(2 * pause, _LOOK)
            self._pause(status, seen, min(pause if seen is None else _LOOK, left))
        yield status

    def _pause(self, status: WorkflowStatus, seen: Mapping[str, int] | None, seconds: float) -> None:
        open_ = [one.batch_id for one in status.batches if not one.is_over][:_MOST_STREAMS]
        if seen is None or not open_:
            time.sleep(seconds)
        else:
            self._reads.news({batch: seen.get(batch, 0) for batch in open_}, block=seconds)

    # --- steering ------------------------------------------------------------------------------------------------

    def cancel(self, reason: str = "", actor: str | None = None, *, terminate: bool = False) -> WorkflowStatus:
        """Cancel every batch that is not over, and those that running items dispatch while this lasts.

        A dispatch from inside an item of a cancelled batch raises `Cancelled`; one that a producer makes later under
        the same id runs.

        Args:
            reason: for the outcomes and the audit log.
            actor: who cancels.
            terminate: also kill the processes that run items of these batches.

        Raises:
            WorkflowNotFound: nothing was dispatched under this id, or the retention of all is over.
        """
        done: set[str] = set()
        while True:
            status = self.status()
            left = [one.batch_id for one in status.batches if not one.is_over and one.batch_id not in done]
            if not left:
                return status
            for name in left:
                Batch(self._runtime, name, workflow=self.id).cancel(reason, actor, terminate=terminate)
                done.add(name)

    def pause(self, **options: Any) -> Any:
        """`Poimen.pause` of this workflow, with its options; returns the `PauseReceipt`."""
        steering.refuse_scope(options, f"workflow {self.id}")
        return self._runtime.pause(workflow=self.id, **options)

    def resume(self, **options: Any) -> Any:
        """`Poimen.resume` of this workflow, with its options; returns the `PauseState`.

        Raises:
            NotPaused: it is not paused itself; what covers it may be.
        """
        steering.refuse_scope(options, f"workflow {self.id}")
        return self._runtime.resume(workflow=self.id, **options)
