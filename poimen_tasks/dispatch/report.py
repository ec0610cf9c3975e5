"""The report of a batch: results and errors by item id, and what the run cost."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from functools import cached_property
from typing import Any, Generic

from poimen_tasks.dispatch.ledger import Ledger
from poimen_tasks.model import ErrorInfo, ItemStatus, Outcome, R_co

__all__ = ["BatchReport"]


class BatchReport(Generic[R_co]):
    """What became of a batch, in item order.

    Results and errors are decoded when they are looked at, so a report of a million items stays small; keep it rather
    than `dict(report.results)`.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        batch_id: str,
        workflow: str = "",
        stage: str = "",
        total: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Report on what a ledger has collected.

        Args:
            ledger: the outcomes; nothing may be added to it afterwards.
            batch_id: the batch.
            workflow: its workflow.
            stage: its name in the workflow.
            total: its items; None: as many as have an outcome.
            concurrency: the limit in force; None for as many as the fleet had.
        """
        self._ledger = ledger
        self.batch_id = batch_id
        self.workflow = workflow
        self.stage = stage
        self._total = total
        self._limit = concurrency

    # --- items ---------------------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> Mapping[str, R_co]:
        """Item id → return value, for the items that succeeded; lazy."""
        return _Column(self._ledger, ItemStatus.SUCCEEDED, lambda outcome: outcome.result)

    @cached_property
    def errors(self) -> Mapping[str, ErrorInfo]:
        """Item id → error, for the items that failed; lazy."""
        return _Column(self._ledger, ItemStatus.FAILED, lambda outcome: outcome.error or _UNKNOWN)

    @cached_property
    def succeeded(self) -> int:
        """Items that succeeded."""
        return self._ledger.count(ItemStatus.SUCCEEDED)

    @cached_property
    def failed(self) -> int:
        """Items that failed."""
        return self._ledger.count(ItemStatus.FAILED)

    @cached_property
    def cancelled(self) -> int:
        """Items that were cancelled before they ended."""
        return self._ledger.count(ItemStatus.CANCELLED)

    @cached_property
    def skipped(self) -> int:
        """Items that were not wanted any more: expired, or ignored by their task."""
        return self._ledger.count(ItemStatus.SKIPPED)

    @property
    def completed(self) -> int:
        """Items that have an outcome."""
        return self.succeeded + self.failed + self.cancelled + self.skipped

    @property
    def total(self) -> int:
        """Items of the batch."""
        return self.completed if self._total is None else self._total

    @property
    def size(self) -> int:
        """Bytes of all outcomes as they are stored."""
        return self._ledger.size

    @property
    def ok(self) -> bool:
        """True when every item succeeded."""
        return self.succeeded == self.total

    # --- what it cost --------------------------------------------------------------------------------------------

    @property
    def span(self) -> tuple[float, float] | None:
        """First start and last finish, in seconds since 1970; None when nothing ran."""
        first, last = self._ledger.first_start, self._ledger.last_finish
        return None if first is None or last is None else (first, max(first, last))

    @property
    def wall_time(self) -> float:
        """Seconds from the first start to the last finish, of the recorded (last) attempts; 0 when nothing ran."""
        return 0.0 if self.span is None else self.span[1] - self.span[0]

    @property
    def total_task_time(self) -> float:
        """Seconds in all recorded runs: what one runner after the other would have taken."""
        return max(0.0, self._ledger.total_task_time)

    @property
    def speedup(self) -> float:
        """Total task time ÷ wall time; 0 when nothing ran."""
        return self.total_task_time / self.wall_time if self.wall_time else 0.0

    @cached_property
    def concurrency(self) -> int:
        """The limit in force; without one, the most lanes seen at work at one time."""
        return self._ledger.lanes() if self._limit is None else self._limit

    @property
    def efficiency(self) -> float:
        """Speedup ÷ concurrency: 1.0 when every slot was busy all the time; 0 when nothing ran."""
        return self.speedup / self.concurrency if self.concurrency else 0.0

    def stats(self) -> dict[str, Any]:
        """Counts, and seconds: total, average, least, most and percentiles (nearest rank) of the items that ran."""
        durations = {f"{rank}_duration": value for rank, value in self._ledger.durations().items()}
        waits = {f"{rank}_queue_wait": value for rank, value in self._ledger.queue_waits().items()}
        waited, worked = max(0.0, self._ledger.total_queue_wait), self.total_task_time
        ran = self._ledger.ran()
        return {
            "total": self.total,
            "completed": self.completed,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "cancelled": self.cancelled,
            "skipped": self.skipped,
            "cached": self._ledger.cached(),
            "attempts": self._ledger.total_attempts,
            "concurrency": self.concurrency,
            "wall_time": self.wall_time,
            "total_duration": worked,
            "avg_duration": worked / ran if ran else 0.0,
            **durations,
            "avg_queue_wait": waited / ran if ran else 0.0,
            **waits,
            "queue_wait_share": waited / (waited + worked) if waited + worked else 0.0,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
        }

    def to_dict(self, *, items: bool = True) -> dict[str, Any]:
        """Plain values.

        Args:
            items: whether results and errors are included; they are all decoded then.
        """
        data = {"batch_id": self.batch_id, "workflow": self.workflow, "stage": self.stage, "stats": self.stats()}
        if items:
            data["results"] = dict(self.results.items())
            data["errors"] = {item_id: error.to_dict() for item_id, error in self.errors.items()}
        return data

    def __repr__(self) -> str:
        return (
            f"BatchReport({self.batch_id!r}, {self.succeeded} of {self.total} succeeded, {self.failed} failed, "
            f"wall_time={self.wall_time:.3f}, speedup={self.speedup:.2f})"
        )


_UNKNOWN = ErrorInfo(type="Unknown", message="the outcome holds no error")


class _Column(Mapping[str, Any]):
    """One value of each item with one status, by item id, in item order; decoded when it is looked at."""

    def __init__(self, ledger: Ledger, status: ItemStatus, value: Callable[[Outcome[Any]], Any]) -> None:
        self._ledger = ledger
        self._status = status
        self.value = value

    def __len__(self) -> int:
        return self._ledger.count(self._status)

    def __iter__(self) -> Iterator[str]:
        return map(self._ledger.item_id, self._ledger.positions(self._status))

    def outcomes(self) -> Iterator[Outcome[Any]]:
        """The outcomes behind the values."""
        return self._ledger.outcomes(self._status)

    def _find(self, item_id: object) -> int | None:
        position = self._ledger.position(item_id) if isinstance(item_id, str) else None
        return None if position is None or self._ledger.status(position) is not self._status else position

    def __contains__(self, item_id: object) -> bool:
        return self._find(item_id) is not None

    def __getitem__(self, item_id: str) -> Any:
        position = self._find(item_id)
        if position is None:
            raise KeyError(item_id)
        return self.value(self._ledger.outcome(position))

    def items(self) -> ItemsView[str, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def __repr__(self) -> str:
        return f"<{len(self)} {self._status} items>"


class _Items(ItemsView[str, Any]):
    _mapping: _Column

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((outcome.item_id, self._mapping.value(outcome)) for outcome in self._mapping.outcomes())


class _Values(ValuesView[Any]):
    _mapping: _Column

    def __iter__(self) -> Iterator[Any]:
        return map(self._mapping.value, self._mapping.outcomes())
