"""What the elected keeper does for the whole fleet: it reaps the overdue, releases what is due, and tidies up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from poimen_tasks.errors import NotPaused, StaleEpoch

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.worker.broker import BrokerThread
    from poimen_tasks.worker.reaping import Reaper

__all__ = ["FleetChores"]

log = logging.getLogger(__name__)

#: Portions of one scope at a time: leases are renewed between.
_MOST_PORTIONS = 20


class FleetChores:
    """Everything here may be done twice, by any number of keepers.

    Args:
        store: the keeper's.
        broker: carries what is released, and looks after overdue tickets.
        reaper: settles lanes whose lease is over.
    """

    def __init__(self, store: Store, broker: BrokerThread, reaper: Reaper) -> None:
        self._store = store
        self._broker = broker
        self._reaper = reaper

    def do(self, chores: dict[bytes, Any]) -> None:
        """Do what a tick says is due.

        Raises:
            StoreUnavailable: it does not answer; what is left is due at the next tick.
        """
        for member in chores[b"overdue"]:
            self._reap(*member.decode().split("\t"))
        for batch in dict.fromkeys([*chores[b"due"], *chores[b"hungry"]]):
            self._broker.issue(self._store.scripts.promote_batch(batch.decode()))
        self._tend_pauses(chores)
        self._tend_cache(chores)
        self._broker.check([member.decode().split("\t") for member in chores[b"tickets"]])

    def _reap(self, batch: str, slot: str, generation: str) -> None:
        key = (batch, int(slot), int(generation))
        reply = self._reaper.reap(key, why="lease", detail="lease expired", overdue_only=True)
        if reply.reaped:
            log.warning("batch %s: the lease of slot %s expired", batch, slot)
        self._reaper.tell(batch, reply, why="lease", detail="lease expired")

    def _tend_pauses(self, chores: dict[bytes, Any]) -> None:
        """Pauses whose time is over, and what a resume or a pause has left to be done."""
        pauses = self._store.pauses
        for scope, epoch in chores[b"expired"]:
            try:
                reply = pauses.resume_scope(scope.decode(), reason="expired", actor="keeper", epoch=epoch)
            except (NotPaused, StaleEpoch):
                continue  # somebody was quicker
            log.info("the pause of %s expired", scope.decode())
            self._broker.follow(reply)
        for scope in chores[b"releasing"]:
            for _ in range(_MOST_PORTIONS):
                reply = pauses.release_held(scope.decode())
                self._broker.follow(reply)
                if not reply.left or not reply.released:
                    break
        for scope in chores[b"keeping"]:
            for _ in range(_MOST_PORTIONS):
                if not pauses.keep_ended(scope.decode()):
                    break

    def _tend_cache(self, chores: dict[bytes, Any]) -> None:
        """Computations that are due, and some of what is hidden or expired."""
        for key in chores[b"flights"]:
            more = True
            while more:
                more, landed = self._store.cache.settle_flight(key)
                self._broker.follow(landed)
        for name in chores[b"calls"]:
            self._broker.release(self._store.cache.release_call(name.decode()))
        if chores[b"sweep"]:
            self._store.cache.cache_sweep()
