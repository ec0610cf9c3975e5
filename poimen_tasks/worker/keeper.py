"""The keeper: one thread in every worker's parent. It renews its lanes' leases and says that the worker lives.

One elected keeper also does the fleet's chores. It has a Redis client of its own, so that a child that is forked
meanwhile shares nothing with it. What it has to say to the broker is said by another thread: leases are renewed
whatever the broker does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgpack

from poimen_tasks.errors import PoimenError
from poimen_tasks.worker.broker import BrokerThread, QueueDepths
from poimen_tasks.worker.call_keeping import CallKeeper
from poimen_tasks.worker.events import EventStream
from poimen_tasks.worker.fleet_chores import FleetChores
from poimen_tasks.worker.known_lanes import KnownLanes
from poimen_tasks.worker.lane_keeping import LaneKeeper
from poimen_tasks.worker.publisher import Publisher
from poimen_tasks.worker.queue_watch import QueueWatch
from poimen_tasks.worker.reaping import Reaper
from poimen_tasks.worker.revoking import Revocations

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.worker.shared import SharedState

__all__ = ["Keeper"]

log = logging.getLogger(__name__)


class Keeper:
    """Runs until `stop()`; everything it does may be done twice, by any number of keepers.

    Attributes:
        lanes: those of its worker.
        calls: and the plain calls.
        revocations: items that are to be revoked.
        answered_at: when the store last answered, in seconds of `monotonic`.

    Args:
        store: its own; nobody else uses it.
        name: of its worker, for the fleet.
        offers: the queues that the worker serves, and its slots.
        details: what the fleet is told of the worker.
        publisher: publishes what follows.
        make_calls: makes the part in plain calls.
        depths: how many messages wait.
        shared: what the worker's processes see.
        reserved: how many messages the worker holds that have not begun.
        events: the worker's stream of task events.
        events_enabled: whether somebody asked for them.
        drain: called when the worker is asked to leave.
        look_after: called at each tick of the elected keeper.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        offers: Callable[[], Sequence[tuple[str, int]]],
        details: dict[str, Any],
        publisher: Publisher,
        make_calls: Callable[[BrokerThread], CallKeeper],
        depths: QueueDepths,
        shared: SharedState,
        reserved: Callable[[], int],
        events: EventStream,
        events_enabled: Callable[[], bool],
        drain: Callable[[], None],
        look_after: Callable[[], None],
    ) -> None:
        self.name = name
        self.store = store
        self._offers = offers
        self.answered_at = monotonic()
        self._details = msgpack.packb({**details, "pid": os.getpid()})
        self._depths = depths
        self._shared = shared
        self._events_enabled = events_enabled
        self._drain = drain
        self._look_after = look_after
        known = KnownLanes()
        watch = QueueWatch(store, depths, known, shared=shared, offers=offers, reserved=reserved, publisher=publisher)
        self._broker = BrokerThread(publisher, check=watch.check, look=watch.look, period=store.settings.quantum)
        reaper = Reaper(store, self._broker, events)
        self.lanes = LaneKeeper(store, known, reaper, events)
        self.calls = make_calls(self._broker)
        self.revocations = Revocations(store, done=reaper.revoked)
        self._fleet = FleetChores(store, self._broker, reaper)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poimen-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._broker.start()
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye to the fleet and end."""
        self._stopping.set()
        self._thread.join(timeout=5.0)
        self._broker.stop(timeout=5.0)
        self._depths.close()
        self.store.client.close()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        tick = self.store.settings.tick
        next_tick = monotonic()
        while not self._stopping.is_set():
            try:
                self._watch_lanes(timeout=min(0.05, tick))
                if monotonic() >= next_tick:
                    next_tick = monotonic() + tick
                    self._beat(leave=False)
                    self.answered_at = monotonic()
            except PoimenError as error:
                log.warning("keeper: %s", error)
                self._stopping.wait(tick)
            except Exception:
                log.exception("keeper: unexpected error; it goes on")
                self._stopping.wait(tick)
        try:
            self.lanes.settle_all_lost()
            self._beat(leave=True)
        except PoimenError as error:
            log.warning("keeper: could not say goodbye: %s", error)
        self.store.client.close()

    def _watch_lanes(self, timeout: float) -> None:
        """What must not wait for a tick."""
        self.lanes.settle_lost(timeout=timeout)
        self.lanes.look_for_the_dead()
        self._shared.events_wanted = self._events_enabled()
        if self.revocations.settle():
            self.lanes.renew()

    def _beat(self, *, leave: bool) -> None:
        """One tick: leases are renewed, the fleet hears that the worker lives, and the elected does its chores."""
        settings = self.store.settings
        self.lanes.renew()
        self.calls.beat()
        chores = self.store.scripts.tick(
            self.name,
            offers=self._offers(),
            payload=self._details,
            period=settings.tick,
            lease=settings.lease,
            leave=leave,
        )
        self.lanes.again()
        if chores.get(b"drain"):
            self._drain()
        if chores[b"leader"]:
            self._fleet.do(chores)
            self._look_after()
            self.calls.tend(chores)
