"""The keeper's part in lanes: it renews those of its worker, ends them when that is asked, and settles lost ones."""

from __future__ import annotations

import logging
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from poimen_tasks.errors import StoreUnavailable
from poimen_tasks.worker.ending_events import tell_lane_lost
from poimen_tasks.worker.known_lanes import KnownLane, KnownLanes, LaneKey
from poimen_tasks.worker.revoking import send_signal

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.worker.events import EventStream
    from poimen_tasks.worker.reaping import Reaper

__all__ = ["LaneKeeper"]

log = logging.getLogger(__name__)

_MOST_SERVED = 10_000
_MOST_RENEWED = 500


class LaneKeeper:
    """The lanes of one worker.

    Args:
        store: the keeper's.
        known: where they are kept.
        reaper: settles those that were lost.
        events: where a lost lane is told.
    """

    def __init__(self, store: Store, known: KnownLanes, reaper: Reaper, events: EventStream) -> None:
        self._store = store
        self._known = known
        self._reaper = reaper
        self._events = events
        self._spared: set[str] = set()
        self._ended: set[LaneKey] = set()
        self._served: dict[str, None] = {}
        self._lost: SimpleQueue[tuple[LaneKey, str, str]] = SimpleQueue()
        self._refused: list[tuple[LaneKey, str, str]] = []

    # -- from the worker's own loop, or any thread -----------------------------------------------------------------

    def all(self) -> list[KnownLane]:
        """The lanes of this worker."""
        return self._known.all()

    def served(self) -> list[str]:
        """Batches that lanes of this worker served, the newest 10,000 of them."""
        return list(self._served)

    def expect(self, request: object) -> None:
        """The worker has the message of a lane."""
        self._known.expect(request)

    def are_coming(self) -> bool:
        """True while there is a message whose lane is not known to have begun."""
        return self._known.are_coming()

    def began(self, lane: KnownLane, request: object = None) -> None:
        """A child began a lane; its lease is renewed from here."""
        self._known.add(lane, request)
        self._served[lane.batch] = None
        if len(self._served) > _MOST_SERVED:
            del self._served[next(iter(self._served))]

    def lost(self, key: LaneKey, why: str, detail: str) -> None:
        """A child died or was killed under a lane; it is settled at once."""
        self._lost.put((key, why, detail))

    def end(self, lane: KnownLane, why: str) -> None:
        """End a lane's process, where it has one: what it holds goes back as if it had not begun."""
        # Said first: whatever else hears of the process's end must not count it as a loss.
        self._ended.add(lane.key)
        if self._kill(lane, f"batch {lane.batch}: {why}"):
            self.lost(lane.key, "paused", why)
        else:
            self._ended.discard(lane.key)

    # -- the keeper's thread ---------------------------------------------------------------------------------------

    def settle_lost(self, timeout: float) -> None:
        """Settle a lane that was lost, if there is one within so many seconds.

        Raises:
            PoimenError: the store did not take it, and the lane stays lost; or the events were not told.
        """
        try:
            lost = self._lost.get(timeout=timeout) if timeout else self._lost.get_nowait()
        except Empty:
            return
        key, why, detail = lost
        if key in self._ended:
            why = "paused"
        try:
            reply = self._reaper.reap(key, why=why, detail=detail)
        except StoreUnavailable:
            # The lane is renewed until it is settled, so it must not be forgotten.
            self._lost.put(lost)
            raise
        except Exception:
            # Nor must one that the store refuses keep all others waiting.
            self._refused.append(lost)
            raise
        lane = self._known.forget(key)
        self._ended.discard(key)
        if reply.reaped:
            # Celery hands over a traceback in quotes; which frame of its pool noticed is no news.
            said = detail.strip('"\n ').rpartition("\n")[2]
            log.warning("lane %s slot %d was lost (%s): %s", key[0], key[1], why, said)
            tell_lane_lost(self._events, "" if lane is None else lane.message_id, detail)
        self._reaper.tell(key[0], reply, why=why, detail=detail)

    def again(self) -> None:
        """What the store refused to settle is to be settled once more."""
        refused, self._refused = self._refused, []
        for lost in refused:
            self._lost.put(lost)

    def settle_all_lost(self) -> None:
        """Settle all that were lost so far; raises as `settle_lost`."""
        while not self._lost.empty():
            self.settle_lost(timeout=0)

    def look_for_the_dead(self) -> None:
        """Forget what ended; what died is lost."""
        for lane in self._known.drop_ended():
            self.lost(lane.key, "lost", f"process {lane.pid} died")

    def renew(self) -> None:
        """Renew the leases of all lanes, and do what the store answers.

        Raises:
            StoreUnavailable: it does not answer.
        """
        lanes, lease = self._known.by_key(), self._store.settings.lease
        keys = list(lanes)
        for at in range(0, len(keys), _MOST_RENEWED):
            some = keys[at : at + _MOST_RENEWED]
            for key, answer in zip(some, self._store.scripts.renew_leases(some, lease=lease), strict=True):
                self._heed(lanes[key], answer)

    def _heed(self, lane: KnownLane, answer: str) -> None:
        if answer == "gone":
            self._known.forget(lane.key)
        elif answer == "kill":
            if self._kill(lane, f"batch {lane.batch} was cancelled with terminate"):
                self.lost(lane.key, "lost", "terminated by cancel")
        elif answer == "stop":
            self.end(lane, "paused with terminate")
        elif answer.startswith("signal:"):
            self._signal(lane, answer)

    def _kill(self, lane: KnownLane, why: str) -> bool:
        """Kill a lane's process; False where it has none, which is said once a batch."""
        if lane.kill():
            log.warning("%s: killed process %d", why, lane.pid)
            return True
        if lane.batch not in self._spared:
            self._spared.add(lane.batch)
            log.warning(
                "%s, but only prefork can end a body: its running items go on to their end, or to their next "
                "checkpoint()",
                why,
            )
        return False

    def _signal(self, lane: KnownLane, answer: str) -> None:
        """The item that a lane holds was revoked with a signal. Whether the process is gone is seen soon enough."""
        if lane.signalled == answer:
            return
        lane.signalled = answer
        _, number, position = answer.split(":")
        if send_signal(lane.pid, int(number)):
            log.warning("item %s.%s was revoked: sent process %d signal %s", lane.batch, position, lane.pid, number)
        else:
            log.warning("item %s.%s was revoked, but only prefork can end it: it is told", lane.batch, position)
