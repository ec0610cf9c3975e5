"""What a tracker knows: the state of a task, and how many there are of each kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

from poimen_tasks.board.task import TaskStatus
from poimen_tasks.errors import StoreRefused
from poimen_tasks.model import moment
from poimen_tasks.store.tracker_scripts import TrackedTask, TrackerCounts

__all__ = ["TaskState", "TrackerStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A tracked task.

    Attributes:
        id: the task id.
        status: how far it is.
        scope, branch, verification: as on a board; empty where nobody said.
        version: the number of the tracker's change that made this state; `update(expected=…)` takes it. None comes
            twice until the tracker is cleared.
        actor, reason: who made it, and why.
        created_at: when the task was first tracked.
        updated_at: when this state was made.
    """

    id: str
    status: TaskStatus
    scope: str
    branch: str
    verification: str
    version: int
    actor: str
    reason: str
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, task_id: str, stored: TrackedTask) -> Self:
        """From what the store has.

        Raises:
            StoreRefused: somebody else wrote there what is no status.
        """
        status = TaskStatus.read(stored.status)
        if status is None:
            raise StoreRefused(
                f"task {task_id!r:.60} has the status {stored.status!r:.60}, which is none: somebody else wrote there. "
                "Give it one, or remove it"
            )
        created, updated = moment(stored.created), moment(stored.updated)
        assert created is not None  # noqa: S101 - a number is a moment
        assert updated is not None  # noqa: S101
        return cls(
            id=task_id,
            status=status,
            scope=stored.scope,
            branch=stored.branch,
            verification=stored.verification,
            version=stored.version,
            actor=stored.actor,
            reason=stored.reason,
            created_at=created,
            updated_at=updated,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        times = {"created_at": self.created_at.isoformat(), "updated_at": self.updated_at.isoformat()}
        return {**asdict(self), "status": str(self.status), **times}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerStats:
    """Totals of a tracker.

    Attributes:
        total: tasks.
        by_status: how many are in each status.
        changes: how many changes there were: updates that changed something, and removals.
        created_at, updated_at: when the first and the last of them was; None while there was none.
    """

    total: int
    by_status: dict[TaskStatus, int]
    changes: int
    created_at: datetime | None
    updated_at: datetime | None

    @classmethod
    def of(cls, counts: TrackerCounts) -> Self:
        """From what the store has."""
        return cls(
            total=sum(counts.ranks),
            by_status=dict(zip(TaskStatus, counts.ranks, strict=True)),
            changes=counts.changes,
            created_at=moment(counts.created),
            updated_at=moment(counts.updated),
        )

    @property
    def completed(self) -> int:
        """Tasks that are completed."""
        return self.by_status[TaskStatus.COMPLETED]

    @property
    def remaining(self) -> int:
        """Tasks that are neither completed nor failed nor cancelled."""
        over = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
        return self.total - sum(self.by_status[status] for status in over)

    @property
    def progress(self) -> float:
        """Which part of the tasks is completed, from 0 to 1; 0 without tasks."""
        return self.completed / self.total if self.total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        return {
            "total": self.total,
            "by_status": {str(status): count for status, count in self.by_status.items()},
            "completed": self.completed,
            "remaining": self.remaining,
            "progress": self.progress,
            "changes": self.changes,
            "created_at": self.created_at.isoformat() if self.created_at else None,
            "updated_at": self.updated_at.isoformat() if self.updated_at else None,
        }
