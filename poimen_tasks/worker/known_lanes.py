"""The lanes that run in a worker, as its parent knows them."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic
from weakref import WeakSet

__all__ = ["KnownLane", "KnownLanes", "LaneKey"]

LaneKey = tuple[str, int, int]
"""Batch, slot and generation: what the store knows a lane by."""

#: Seconds after which the message of a lane is acknowledged at the latest. RabbitMQ closes the channel of a consumer
#: that owes an acknowledgement for half an hour, and would deliver that worker's plain tasks again while they run.
ACK_AFTER = 900.0


class KnownLane:
    """A lane that a child of this worker runs.

    Attributes:
        pid: the child's; 0 where it is no process of its own.
        kill: kills the child; False where that cannot be.
        is_over: whether its message has been dealt with.
        message_id: of the message that carried its ticket.
        signalled: the last demand for a signal that was met.
    """

    __slots__ = (
        "_acknowledge",
        "_since",
        "batch",
        "generation",
        "is_over",
        "kill",
        "message_id",
        "pid",
        "signalled",
        "slot",
    )

    def __init__(
        self,
        key: LaneKey,
        pid: int,
        kill: Callable[[], bool],
        *,
        is_over: Callable[[], bool],
        acknowledge: Callable[[], None] | None = None,
        message_id: str = "",
    ) -> None:
        self.batch, self.slot, self.generation = key
        self.pid = pid
        self.kill = kill
        self.is_over = is_over
        self.message_id = message_id
        self.signalled = ""
        self._acknowledge = acknowledge
        self._since = monotonic()

    @property
    def key(self) -> LaneKey:
        """What the store knows it by."""
        return self.batch, self.slot, self.generation

    def acknowledge_old(self) -> None:
        """Acknowledge the message of a lane that has run for long, where that is not done at its start."""
        if self._acknowledge is not None and monotonic() - self._since >= ACK_AFTER:
            acknowledge, self._acknowledge = self._acknowledge, None
            acknowledge()

    def has_died(self) -> bool:
        """True when its process has ended, whether or not somebody collected it; looks without collecting."""
        if self.pid in (0, os.getpid()) or not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True


class KnownLanes:
    """All of a worker's. Of a ticket that came twice there are two under one key, until one of them ends at once."""

    def __init__(self) -> None:
        self._lanes: set[KnownLane] = set()
        self._coming: WeakSet[object] = WeakSet()

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def expect(self, request: object) -> None:
        """The worker has the message of one; forgotten with the request if none ever begins."""
        self._coming.add(request)

    def add(self, lane: KnownLane, request: object = None) -> None:
        """One begins, that of an expected request or another one. Called from the worker's own loop."""
        self._lanes.add(lane)
        self._coming.discard(request)

    def are_coming(self) -> bool:
        """True while one is expected: a child may have begun it before its parent hears of it."""
        return bool(self._coming)

    def all(self) -> list[KnownLane]:
        """Those that run now."""
        return list(self._lanes)

    def by_key(self) -> dict[LaneKey, KnownLane]:
        """One for each key."""
        return {lane.key: lane for lane in self.all()}

    def forget(self, key: LaneKey) -> KnownLane | None:
        """Those under a key are gone; returns one of them."""
        found = [lane for lane in self.all() if lane.key == key]
        self._lanes.difference_update(found)
        return found[0] if found else None

    def drop_ended(self) -> list[KnownLane]:
        """Forget those that ended; returns those whose process died, which the worker itself notices only later.

        The lease of a lane that ended is not this worker's to renew: its slot may have another one by now.
        """
        died = []
        for lane in self.all():
            lane.acknowledge_old()
            over = lane.is_over()
            if over or lane.has_died():
                self._lanes.discard(lane)
                if not over:
                    died.append(lane)
        return died
