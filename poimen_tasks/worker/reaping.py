"""Lanes that are lost are reaped; what follows is published, and told to who watches items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poimen_tasks.store.ranges import expand_ranges
from poimen_tasks.worker.ending_events import tell_lost, tell_revoked

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.store.values import Reaped, Revoked
    from poimen_tasks.worker.broker import BrokerThread
    from poimen_tasks.worker.events import EventStream
    from poimen_tasks.worker.known_lanes import LaneKey

__all__ = ["Reaper"]


class Reaper:
    """That of one keeper.

    Args:
        store: the keeper's.
        broker: carries what follows.
        events: where it is told.
    """

    def __init__(self, store: Store, broker: BrokerThread, events: EventStream) -> None:
        self._store = store
        self._broker = broker
        self._events = events

    def reap(self, key: LaneKey, *, why: str, detail: str, overdue_only: bool = False) -> Reaped:
        """Settle a lane; nothing happens to one that is settled. The items that it lost are told by `tell`.

        Args:
            key: the lane.
            why: `lost`, `timeout`, `paused` or `lease`.
            detail: the same in words, for the outcomes of items that are given up.
            overdue_only: only if its lease is over.
        """
        reply = self._store.scripts.reap_lane(*key, why=why, detail=detail, overdue_only=overdue_only)
        self._broker.follow(reply)
        return reply

    def tell(self, batch: str, reply: Reaped, *, why: str, detail: str) -> None:
        """Tell how items of a reaped lane ended."""
        kind = "TimeLimitExceeded" if why == "timeout" else "WorkerLost"
        tell_lost(self._events, self._store, batch, reply.lost, kind=kind, why=detail)
        tell_revoked(self._events, self._store, batch, reply.revoked, terminated=True)

    def revoked(self, batch: str, reply: Revoked) -> None:
        """Items were revoked while no lane ran them."""
        self._broker.issue(reply.tickets)
        tell_revoked(self._events, self._store, batch, expand_ranges(reply.settled), terminated=False)
