"""Frozen values that the rooms share; nothing here talks to Redis or Celery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from celery.canvas import Signature
    from typing_extensions import TypeVar as TypeVarWithDefault

__all__ = [
    "BatchState",
    "BatchStatus",
    "BoardProblem",
    "ErrorInfo",
    "Item",
    "ItemStatus",
    "OnExisting",
    "Outcome",
    "Priority",
    "R_co",
    "moment",
]

if TYPE_CHECKING:
    # With a default a bare `Batch` is `Batch[Any]`; `typing` has defaults from Python 3.13 on only.
    R_co = TypeVarWithDefault("R_co", covariant=True, default=Any)
else:
    R_co = TypeVar("R_co", covariant=True)

Priority: TypeAlias = Literal["high", "normal", "low"]
"""Which batch's items go first."""
OnExisting: TypeAlias = Literal["continue", "raise"]
"""What a dispatch does with a batch id that exists."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(seconds: float | None) -> datetime | None:
    """Turn seconds since 1970 into an aware UTC datetime; None stays None."""
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)


class ItemStatus(StrEnum):
    """How an item ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class BatchState(StrEnum):
    """Where a batch stands; `stalled` means that its producer is gone and it was never sealed."""

    OPEN = "open"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STALLED = "stalled"

    @property
    def is_over(self) -> bool:
        """True when no item can change any more."""
        return self in _OVER


_OVER = frozenset({BatchState.COMPLETED, BatchState.FAILED, BatchState.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An exception as data: its class name, text and traceback. It is never rebuilt."""

    type: str
    message: str
    traceback: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class Item(Generic[R_co]):
    """One call of a task in a batch, with the labels it travels under.

    Attributes:
        signature: a Celery signature of a task of this app.
        id: unique in the batch; 1-256 printable characters. Default: the position.
        task_id: the user's label of the work served, for the audit log and the cache. Default: the item id.
        model_id: which model (or version of a dependency) computes; part of a cache key.
        tags: labels for cache invalidation.
        limit_key: reserved for rate limits; recorded only.
    """

    signature: Signature[R_co]
    id: str | None = field(default=None, kw_only=True)
    task_id: str | None = field(default=None, kw_only=True)
    model_id: str | None = field(default=None, kw_only=True)
    tags: Sequence[str] = field(default=(), kw_only=True)
    limit_key: str | None = field(default=None, kw_only=True)


class Outcome(tuple[Any, ...], Generic[R_co]):
    """The one final record of an item.

    A tuple underneath, because a million are made in one read; the raw fields are
    `(item_id, status, result, error, started, duration, queue_wait, attempts, worker, cached, ordinal)`
    with `started` in seconds since 1970 (None when the item never started).
    """

    __slots__ = ()

    item_id: str = property(itemgetter(0), doc="The item's id.")  # type: ignore[assignment]
    status: ItemStatus = property(itemgetter(1), doc="How it ended.")  # type: ignore[assignment]
    result: R_co = property(itemgetter(2), doc="What the task returned; None unless it succeeded.")  # type: ignore[assignment]
    error: ErrorInfo | None = property(itemgetter(3), doc="Why it did not succeed.")  # type: ignore[assignment]
    duration: float = property(itemgetter(5), doc="Seconds in the task's body.")  # type: ignore[assignment]
    queue_wait: float = property(itemgetter(6), doc="Seconds from enqueued (or due) to started.")  # type: ignore[assignment]
    attempts: int = property(itemgetter(7), doc="How many runs it took.")  # type: ignore[assignment]
    worker: str = property(itemgetter(8), doc="The worker that ran it; empty when none did.")  # type: ignore[assignment]
    cached: bool = property(itemgetter(9), doc="True when the result came from the cache.")  # type: ignore[assignment]
    cursor: int = property(itemgetter(10), doc="Give this to `outcomes(after=)` to go on behind it.")  # type: ignore[assignment]

    @property
    def started_at(self) -> datetime | None:
        """When the body began (UTC)."""
        return moment(self[4])

    @property
    def finished_at(self) -> datetime | None:
        """When the body ended (UTC)."""
        return None if self[4] is None else moment(self[4] + self[5])

    @property
    def ok(self) -> bool:
        """True when the item succeeded."""
        return self[1] is ItemStatus.SUCCEEDED

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        started, finished = self.started_at, self.finished_at
        return {
            "item_id": self[0],
            "status": str(self[1]),
            "result": self[2],
            "error": self[3].to_dict() if self[3] else None,
            "started_at": started.isoformat() if started else None,
            "finished_at": finished.isoformat() if finished else None,
            "duration": self[5],
            "queue_wait": self[6],
            "attempts": self[7],
            "worker": self[8],
            "cached": self[9],
        }

    def __repr__(self) -> str:
        said = repr(self[2]) if self[3] is None else str(self[3])
        return f"Outcome({self[0]!r}, {self[1]}, {said})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """A batch at one instant, from counters: reading it costs the same whatever the batch's size.

    `total = pending + delayed + waiting + running + succeeded + failed + cancelled + skipped`, always;
    `running` counts what lanes have claimed: a lane runs one item at a time, but claims several that proved short, so
    it may exceed `concurrency`, which limits the bodies that run at once. `delayed` items wait for a retry or an eta.
    `cached` counts those of the succeeded that came from the cache. `total` grows until the batch is sealed.
    `callbacks_pending` callbacks have no outcome yet; until it is 0, `retry_failed` is refused.
    `paused_by`: the paused scopes that cover it or a part of it (`*`, `w:<workflow>`, `b:<batch>`, `q:<queue>`,
    `a:<activity>`), also of a batch that is over, whose retention then waits; the state is `paused` while nothing of an
    open batch may start.
    `concurrency` None: no limit. `unserved_queues`: queues it waits for and no worker serves.
    """

    batch_id: str
    workflow: str
    stage: str
    state: BatchState
    total: int
    pending: int
    delayed: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    cached: int
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    concurrency: int | None
    unserved_queues: tuple[str, ...] = ()
    callbacks_pending: int = 0
    paused_by: tuple[str, ...] = ()

    @property
    def finished(self) -> int:
        """Items that have their outcome."""
        return self.succeeded + self.failed + self.cancelled + self.skipped

    @property
    def is_over(self) -> bool:
        """True when every item has its outcome and the batch is sealed."""
        return self.state.is_over

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        data = asdict(self)
        for name in ("created_at", "started_at", "finished_at"):
            data[name] = data[name].isoformat() if data[name] else None
        data["state"] = str(self.state)
        data["unserved_queues"] = list(self.unserved_queues)
        data["paused_by"] = list(self.paused_by)
        data["finished"] = self.finished
        return data


@dataclass(frozen=True, slots=True)
class BoardProblem:
    """Something that is wrong with a board.

    Attributes:
        line: the number of the line, from 1.
        fault: what kind of thing it is, as one word for programs, e.g. `status_unknown`.
        message: what is wrong, and what is allowed.
    """

    line: int
    fault: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)
