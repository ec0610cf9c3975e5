"""What is said of a workflow: its status at one instant, and the reports of its batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poimen_tasks.dispatch.report import BatchReport
from poimen_tasks.model import BatchState, BatchStatus

__all__ = ["WorkflowReport", "WorkflowStatus", "overall_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStatus:
    """A workflow at one instant: its batches' counters, and their sums.

    A workflow is over when each of its batches is over and their callbacks are settled: a callback may dispatch the
    next stage. A later dispatch under the same id opens it again.
    """

    workflow: str
    state: BatchState
    batches: tuple[BatchStatus, ...]

    @property
    def stages(self) -> dict[str, list[BatchStatus]]:
        """Stage → its batches, in the order of their dispatch."""
        found: dict[str, list[BatchStatus]] = {}
        for status in self.batches:
            found.setdefault(status.stage, []).append(status)
        return found

    @property
    def total(self) -> int:
        """Items of all batches."""
        return self._sum("total")

    @property
    def finished(self) -> int:
        """Items that have their outcome."""
        return self._sum("finished")

    @property
    def is_over(self) -> bool:
        """True when every batch is over and its callbacks are settled."""
        return self.state.is_over

    @property
    def started_at(self) -> datetime | None:
        """When the first item was claimed (UTC)."""
        return min((status.started_at for status in self.batches if status.started_at), default=None)

    @property
    def finished_at(self) -> datetime | None:
        """When the last batch ended (UTC); None while the workflow is not over."""
        ends = [status.finished_at for status in self.batches if status.finished_at]
        return max(ends, default=None) if self.is_over else None

    def _sum(self, name: str) -> int:
        return sum(getattr(status, name) for status in self.batches)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        sums = {name: self._sum(name) for name in _SUMS}
        started, finished = self.started_at, self.finished_at
        return {
            "workflow": self.workflow,
            "state": str(self.state),
            **sums,
            "started_at": started.isoformat() if started else None,
            "finished_at": finished.isoformat() if finished else None,
            "batches": [status.to_dict() for status in self.batches],
        }


_SUMS = (
    "total", "pending", "delayed", "waiting", "running", "succeeded", "failed", "cancelled", "skipped", "cached",
    "finished",
)  # fmt: skip


class WorkflowReport:
    """What became of a workflow: a report for each batch, in the order of their dispatch."""

    def __init__(self, workflow: str, reports: Iterable[BatchReport]) -> None:
        self.workflow = workflow
        self.batches: Mapping[str, BatchReport] = {report.batch_id: report for report in reports}

    @property
    def stages(self) -> dict[str, list[BatchReport]]:
        """Stage → the reports of its batches."""
        found: dict[str, list[BatchReport]] = {}
        for report in self.batches.values():
            found.setdefault(report.stage, []).append(report)
        return found

    @property
    def total(self) -> int:
        """Items of all batches."""
        return sum(report.total for report in self.batches.values())

    @property
    def succeeded(self) -> int:
        """Items that succeeded."""
        return sum(report.succeeded for report in self.batches.values())

    @property
    def failed(self) -> int:
        """Items that failed."""
        return sum(report.failed for report in self.batches.values())

    @property
    def ok(self) -> bool:
        """True when every item of every batch succeeded."""
        return all(report.ok for report in self.batches.values())

    @property
    def wall_time(self) -> float:
        """Seconds from the first start to the last finish of all batches; 0 when nothing ran."""
        spans = [span for report in self.batches.values() if (span := report.span) is not None]
        return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0.0

    @property
    def total_task_time(self) -> float:
        """Seconds in all recorded runs."""
        return sum(report.total_task_time for report in self.batches.values())

    @property
    def speedup(self) -> float:
        """Total task time ÷ wall time; 0 when nothing ran."""
        return self.total_task_time / self.wall_time if self.wall_time else 0.0

    def to_dict(self, *, items: bool = True) -> dict[str, Any]:
        """Plain values.

        Args:
            items: whether the results and errors of each batch are included.
        """
        return {
            "workflow": self.workflow,
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "wall_time": self.wall_time,
            "total_task_time": self.total_task_time,
            "speedup": self.speedup,
            "batches": [report.to_dict(items=items) for report in self.batches.values()],
        }

    def __repr__(self) -> str:
        return f"WorkflowReport({self.workflow!r}, {len(self.batches)} batches, {self.succeeded} of {self.total} items)"


def overall_state(found: list[BatchStatus]) -> BatchState:
    """One state for all: what is not over comes first, then what went wrong."""
    states = {status.state for status in found}
    unfinished = states - {BatchState.COMPLETED, BatchState.FAILED, BatchState.CANCELLED}
    if not unfinished:
        if any(status.callbacks_pending for status in found):
            return BatchState.RUNNING
        return next(
            state for state in (BatchState.FAILED, BatchState.CANCELLED, BatchState.COMPLETED) if state in states
        )
    if unfinished == {BatchState.PAUSED}:
        return BatchState.PAUSED
    if BatchState.STALLED in unfinished:
        return BatchState.STALLED
    started = BatchState.RUNNING in unfinished or len(unfinished) < len(states)
    return BatchState.RUNNING if started else BatchState.OPEN
