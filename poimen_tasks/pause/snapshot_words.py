"""What a caller of `poimen.snapshots` gives, checked; and what the batches tell where he gives nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from poimen_tasks import codec
from poimen_tasks._checks import MOST_SECONDS, check_list, check_number, expected
from poimen_tasks.errors import InvalidArgument
from poimen_tasks.ids import check_labels
from poimen_tasks.pause.snapshot import MOST_TASKS
from poimen_tasks.pause.summary import StageSummary

__all__ = ["generation_of", "live_fields", "moment_of", "plain_fields", "task_fields"]


def generation_of(value: Any) -> int:
    """The number of a generation, checked."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1000:
        raise expected("generation", "a whole number from 0 to 999", value)
    return value


def task_fields(kind: str, ids: Iterable[str] | None) -> dict[str, Any]:
    """Task ids of one kind, checked, as a snapshot has them: some of them, and how many there are."""
    if ids is None:
        return {}
    found = check_list(f"{kind}_tasks", "task ids", ids)
    listed = check_labels(found, "task id") if found else []
    return {f"{kind}_tasks": listed[:MOST_TASKS], kind: len(listed)}


def plain_fields(what: str, value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Plain values in terms of strict JSON."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise expected(what, "a dict", value)
    return dict(codec.jsonable(dict(value), what=what))


def moment_of(age: float | timedelta | datetime) -> datetime:
    """The moment that lies so far back."""
    if isinstance(age, datetime):
        if age.tzinfo is None:
            raise InvalidArgument(f"age {age!r}: expected a datetime with a time zone, seconds, or a timedelta")
        return age
    seconds = age.total_seconds() if isinstance(age, timedelta) else age
    check_number("age", seconds, least=0, most=MOST_SECONDS)
    return datetime.now(UTC) - timedelta(seconds=seconds)


def live_fields(stages: list[StageSummary]) -> dict[str, Any]:
    """What the batches tell: of the newest that is not over, else of the newest."""
    if not stages:
        return {}
    current = next((one for one in reversed(stages) if not one.over), stages[-1])
    totals: dict[str, int] = {}
    for one in stages:
        for name, count in one.counters().items():
            totals[name] = totals.get(name, 0) + count
    return {
        "stage": current.stage,
        "completed_tasks": current.completed,
        "pending_tasks": current.pending,
        "failed_tasks": current.failed,
        "completed": current.completed_count,
        "pending": current.pending_count,
        "failed": current.failed_count,
        "current_task_id": current.current,
        "current_activity_id": current.activity,
        "error": current.error,
        "task_metrics": {one.stage: one.counters() for one in stages},
        "workflow_metrics": {"batches": len(stages), **totals},
        "configuration": {one.stage: one.configuration() for one in stages},
    }
