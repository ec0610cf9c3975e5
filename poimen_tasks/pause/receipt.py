"""What `pause()` answers: what ran at that instant, and waiting until nothing does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from poimen_tasks._checks import MOST_SECONDS, check_number
from poimen_tasks.errors import NotPaused, PauseTimeout
from poimen_tasks.model import moment
from poimen_tasks.pause.scope import Scope
from poimen_tasks.store.ranges import expand_ranges

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.store.pause_scripts import RunningCall, RunningLane, ScopePaused

__all__ = ["PauseReceipt", "RunningItems"]

_LOOK_FIRST, _LOOK = 0.01, 0.25
_OUTAGE = 60.0


class RunningItems:
    """What one lane held: items of one batch that run, or were claimed to run next.

    Attributes:
        batch_id: the batch; of a callback `<batch>@<kind>.<round>`.
        activity: the task.
        claimed_at: when they were claimed.
        positions: their places in the batch.
    """

    __slots__ = ("_ids", "_store", "activity", "batch_id", "claimed_at", "positions")

    def __init__(self, store: Callable[[], Store], lane: RunningLane) -> None:
        self.batch_id = lane.batch
        self.activity = lane.activity
        self.claimed_at = moment(lane.since)
        self.positions: Sequence[int] = tuple(expand_ranges(lane.ranges))
        self._store = store
        self._ids: tuple[str, ...] | None = None

    @property
    def item_ids(self) -> tuple[str, ...]:
        """Their ids; read when they are first asked for."""
        if self._ids is None:
            self._ids = tuple(self._store().reads.names(self.batch_id, self.positions))
        return self._ids

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"RunningItems({self.batch_id!r}, {self.activity!r}, positions={self.positions!r:.80})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; reads the ids."""
        return {
            "batch_id": self.batch_id,
            "activity": self.activity,
            "claimed_at": self.claimed_at.isoformat() if self.claimed_at else None,
            "item_ids": list(self.item_ids),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReceipt:
    """A pause that is in force.

    Attributes:
        scope: what it covers.
        epoch: its number; `resume(epoch=)` resumes this pause and no later one.
        paused_at: the instant, by the server's clock: what is not in `running` started later only after a resume.
        stop_at: when running items are asked to stop; None: never.
        again: this request was answered before, and this is that answer.
        running: what ran at that instant, a lane each.
        calls: ids of the plain calls that ran.
    """

    scope: Scope
    epoch: int
    paused_at: datetime
    stop_at: datetime | None
    again: bool
    running: tuple[RunningItems, ...]
    calls: tuple[str, ...]
    _store: Callable[[], Store] = field(repr=False, compare=False)

    @classmethod
    def of(cls, store: Callable[[], Store], scope: Scope, reply: ScopePaused) -> PauseReceipt:
        """From the script's reply."""
        paused_at = moment(reply.at)
        assert paused_at is not None  # noqa: S101 - a number is a moment
        return cls(
            scope=scope,
            epoch=reply.epoch,
            paused_at=paused_at,
            stop_at=moment(reply.stop_at),
            again=reply.again,
            running=tuple(RunningItems(store, lane) for lane in reply.running),
            calls=tuple(call.id for call in reply.calls),
            _store=store,
        )

    @property
    def running_items(self) -> int:
        """How many items ran, or were claimed to run next."""
        return sum(map(len, self.running))

    def wait_quiet(self, timeout: float | None = None, *, progress: Callable[[int], None] | None = None) -> None:
        """Wait until nothing of the scope runs any more: no item, no plain call.

        Args:
            timeout: seconds; None waits as long as it takes.
            progress: told at each look how many items and plain calls still run, a few times a second.

        Raises:
            PauseTimeout: something still runs; it says what.
            NotPaused: the scope was resumed meanwhile.
            StoreUnavailable: Redis did not answer for a minute, or until the timeout.
        """
        if timeout is not None:
            check_number("timeout", timeout, least=0, most=MOST_SECONDS)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _LOOK_FIRST
        while True:
            left = _OUTAGE if deadline is None else min(_OUTAGE, max(0.0, deadline - time.monotonic()))
            found = self._store().pauses.scope_running(self.scope.text, patience=left)
            if found.epoch is None:
                raise NotPaused(f"{self.scope} was resumed while you waited for it to be quiet")
            if not found.running and not found.calls:
                return
            if progress is not None:
                progress(sum(len(expand_ranges(lane.ranges)) for lane in found.running) + len(found.calls))
            if deadline is not None and time.monotonic() + pause > deadline:
                shown = ", ".join(_shown(found.running, found.calls))
                raise PauseTimeout(f"{self.scope} is paused, and not quiet after {timeout:g} s: {shown} run on")
            time.sleep(pause)
            pause = min(2 * pause, _LOOK)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text. Reads the ids of the items."""
        return {
            "scope": {"kind": self.scope.kind, "id": self.scope.id},
            "epoch": self.epoch,
            "paused_at": self.paused_at.isoformat(),
            "stop_at": self.stop_at.isoformat() if self.stop_at else None,
            "again": self.again,
            "running": [one.to_dict() for one in self.running],
            "calls": list(self.calls),
        }


def _shown(lanes: Sequence[RunningLane], calls: Sequence[RunningCall]) -> Iterator[str]:
    """The first few of what runs."""
    items = [f"{lane.batch}.{position}" for lane in lanes for position in expand_ranges(lane.ranges)]
    names = [*items, *(call.id for call in calls)]
    yield from names[:5]
    if len(names) > 5:
        yield f"and {len(names) - 5} more"
