"""The keeper: one thread in every worker's parent. It renews its lanes' leases and says that the worker lives.

One elected keeper also does the fleet's chores: it reaps lost lanes, issues tickets again, releases what is due.
It has a Redis client of its own, so that a child that is forked meanwhile shares nothing with it. What it has to say to
the broker is said by another thread: leases are renewed whatever the broker does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgpack

from poimen_tasks.errors import NotPaused, PoimenError, StaleEpoch
from poimen_tasks.store.pause_scripts import HeldReleased
from poimen_tasks.store.scripts import unpack_parts
from poimen_tasks.store.values import Part, Reaped, Revoked, Ticket, WaitingCall
from poimen_tasks.store.wire import expand_ranges
from poimen_tasks.worker.broker import BrokerThread, QueueDepths
from poimen_tasks.worker.call_keeping import CallKeeper
from poimen_tasks.worker.ending_events import tell_lane_lost, tell_lost, tell_revoked
from poimen_tasks.worker.events import EventStream
from poimen_tasks.worker.known_lanes import KnownLane, KnownLanes, LaneKey
from poimen_tasks.worker.revoking import Revocations, send_signal

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.worker.shared import SharedState

__all__ = ["Keeper"]

log = logging.getLogger(__name__)

#: Portions of one scope at a time: leases are renewed between.
_MOST_PORTIONS = 20
_MOST_SERVED = 10_000


class Keeper:
    """Runs until `stop()`; everything it does may be done twice, by any number of keepers."""

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        offers: Callable[[], Sequence[tuple[str, int]]],
        details: dict[str, Any],
        publish: Callable[[Sequence[Ticket], dict[str, Sequence[Part]]], None],
        publish_calls: Callable[[Sequence[WaitingCall]], None],
        make_calls: Callable[[Store, BrokerThread], CallKeeper],
        depths: QueueDepths,
        shared: SharedState,
        reserved: Callable[[], int],
        events: EventStream,
        events_enabled: Callable[[], bool],
        drain: Callable[[], None],
        look_after: Callable[[], None],
    ) -> None:
        self.name = name
        self.store = self._store = store
        self.revocations = Revocations(store, done=self._revoked)
        self._events = events
        self._events_enabled = events_enabled
        self._drain = drain
        self._look_after = look_after
        self._offers = offers
        self._details = msgpack.packb({**details, "pid": os.getpid()})
        self._publish = publish
        self._depths = depths
        self._shared = shared
        self._reserved = reserved
        self._lanes = KnownLanes()
        self._spared: set[str] = set()
        self._ended: set[LaneKey] = set()
        self._served: dict[str, None] = {}
        self._lost: SimpleQueue[tuple[LaneKey, str, str]] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poimen-keeper", daemon=True)
        self._broker = BrokerThread(
            publish=self._issue,
            publish_calls=publish_calls,
            check=self._check_tickets,
            look=self._look,
            period=store.settings.quantum,
        )
        self.calls = make_calls(store, self._broker)

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
        self._store.client.close()

    def lane_began(self, lane: KnownLane) -> None:
        """A child began a lane; its lease is renewed from here."""
        self._lanes.add(lane)
        self._served[lane.batch] = None
        if len(self._served) > _MOST_SERVED:
            del self._served[next(iter(self._served))]

    def served(self) -> list[str]:
        """Batches that lanes of this worker served, the newest 10,000 of them."""
        return list(self._served)

    def end_lane(self, lane: KnownLane, why: str) -> None:
        """End a lane's process, where it has one: what it holds goes back as if it had not begun. From any thread."""
        # Said first: whatever else hears of the process's end must not count it as a loss.
        self._ended.add(lane.key)
        if lane.kill():
            log.warning("batch %s: killed process %d: %s", lane.batch, lane.pid, why)
            self.lane_lost(lane.key, "paused", why)
            return
        self._ended.discard(lane.key)
        if lane.batch not in self._spared:
            self._spared.add(lane.batch)
            log.warning(
                "batch %s: %s, but only prefork can end a body: its running items go on to their end, or to their next "
                "checkpoint()",
                lane.batch,
                why,
            )

    def lanes(self) -> list[KnownLane]:
        """The lanes of this worker."""
        return self._lanes.all()

    def lane_lost(self, key: LaneKey, why: str, detail: str) -> None:
        """A child died or was killed under a lane; it is settled at once. Called from the worker's own loop."""
        self._lost.put((key, why, detail))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        settings = self._store.settings
        next_tick = monotonic()
        while not self._stopping.is_set():
            try:
                self._settle_lost(timeout=min(0.05, settings.tick))
                self._look_for_the_dead()
                self._shared.events_wanted = self._events_enabled()
                if self.revocations.settle():
                    self._renew()
                if monotonic() >= next_tick:
                    next_tick = monotonic() + settings.tick
                    self._beat(leave=False)
            except PoimenError as error:
                log.warning("keeper: %s", error)
                self._stopping.wait(settings.tick)
            except Exception:
                log.exception("keeper: unexpected error; it goes on")
                self._stopping.wait(settings.tick)
        try:
            while not self._lost.empty():
                self._settle_lost(timeout=0)
            self._beat(leave=True)
        except PoimenError as error:
            log.warning("keeper: could not say goodbye: %s", error)
        self._store.client.close()

    def _settle_lost(self, timeout: float) -> None:
        try:
            lost = self._lost.get(timeout=timeout) if timeout else self._lost.get_nowait()
        except Empty:
            return
        key, why, detail = lost
        if key in self._ended:
            why = "paused"
        try:
            reply = self._store.scripts.reap_lane(*key, why=why, detail=detail)
        except Exception:
            # The lane is renewed until it is settled, so it must not be forgotten.
            self._lost.put(lost)
            raise
        lane = self._lanes.forget(key)
        self._ended.discard(key)
        if reply.reaped:
            log.warning("lane %s slot %d was lost (%s): %s", key[0], key[1], why, detail)
            tell_lane_lost(self._events, "" if lane is None else lane.message_id, detail)
        self._broker.issue(reply.tickets)
        self._broker.release(reply.calls)
        self._tell(key[0], reply, why, detail)

    def _tell(self, batch: str, reply: Reaped, why: str, detail: str) -> None:
        kind = "TimeLimitExceeded" if why == "timeout" else "WorkerLost"
        tell_lost(self._events, self._store, batch, reply.lost, kind=kind, why=detail)
        tell_revoked(self._events, self._store, batch, reply.revoked, terminated=True)

    def _revoked(self, batch: str, reply: Revoked) -> None:
        self._broker.issue(reply.tickets)
        tell_revoked(self._events, self._store, batch, expand_ranges(reply.settled), terminated=False)

    def _beat(self, *, leave: bool) -> None:
        settings, scripts = self._store.settings, self._store.scripts
        self._renew()
        self.calls.beat()
        chores = scripts.tick(
            self.name,
            offers=self._offers(),
            payload=self._details,
            period=settings.tick,
            lease=settings.lease,
            leave=leave,
        )
        if chores.get(b"drain"):
            self._drain()
        if chores[b"leader"]:
            self._lead(chores)

    def _look(self) -> None:
        self._shared.others_wait = bool(self._lanes) and self._others_wait()

    def _others_wait(self) -> bool:
        """Whether messages that are not tickets wait, in a queue or in this worker's hands.

        Asked here once for all lanes of the worker, because each asking for itself would cost more than its step.
        """
        waiting = self._reserved()
        for queue, _slots in self._offers():
            count = self._depths.count(queue)
            waiting += 0 if count is None else count - self._store.reads.tickets_out(queue)
        return waiting > 0

    def _look_for_the_dead(self) -> None:
        for lane in self._lanes.drop_ended():
            self.lane_lost(lane.key, "lost", f"process {lane.pid} died")

    def _renew(self) -> None:
        lanes = self._lanes.by_key()
        keys = list(lanes)
        for at in range(0, len(keys), 500):
            some = keys[at : at + 500]
            for key, answer in zip(
                some, self._store.scripts.renew_leases(some, lease=self._store.settings.lease), strict=True
            ):
                if answer == "gone":
                    self._lanes.forget(key)
                elif answer == "kill":
                    self._kill(lanes[key])
                elif answer == "stop":
                    self.end_lane(lanes[key], "paused with terminate")
                elif answer.startswith("signal:"):
                    self._signal(lanes[key], answer)

    def _kill(self, lane: KnownLane) -> None:
        if lane.kill():
            log.warning("batch %s was cancelled with terminate: killed process %d", lane.batch, lane.pid)
            self.lane_lost(lane.key, "lost", "terminated by cancel")
        elif lane.batch not in self._spared:
            self._spared.add(lane.batch)
            log.warning(
                "batch %s was cancelled with terminate, but only prefork can end a body: its running items go on to "
                "their end, or to their next checkpoint()",
                lane.batch,
            )

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

    def _lead(self, chores: dict[bytes, Any]) -> None:
        scripts = self._store.scripts
        for member in chores[b"overdue"]:
            batch, slot, generation = member.decode().split("\t")
            reply = scripts.reap_lane(
                batch, int(slot), int(generation), why="lease", detail="lease expired", overdue_only=True
            )
            if reply.reaped:
                log.warning("batch %s: the lease of slot %s expired", batch, slot)
            self._broker.issue(reply.tickets)
            self._broker.release(reply.calls)
            self._tell(batch, reply, "lease", "lease expired")
        for batch in dict.fromkeys([*chores[b"due"], *chores[b"hungry"]]):
            self._broker.issue(scripts.promote_batch(batch.decode()))
        self._tend_pauses(chores)
        self._tend_cache(chores)
        self._look_after()
        self.calls.tend(chores)
        self._broker.check([member.decode().split("\t") for member in chores[b"tickets"]])

    def _tend_pauses(self, chores: dict[bytes, Any]) -> None:
        """Pauses whose time is over, and what a resume or a pause has left to be done."""
        pauses = self._store.pauses
        for scope, epoch in chores[b"expired"]:
            try:
                reply = pauses.resume_scope(scope.decode(), reason="expired", actor="keeper", epoch=epoch)
            except (NotPaused, StaleEpoch):
                continue  # somebody was quicker
            log.info("the pause of %s expired", scope.decode())
            self._released(reply)
        for scope in chores[b"releasing"]:
            for _ in range(_MOST_PORTIONS):
                reply = pauses.release_held(scope.decode())
                self._released(reply)
                if not reply.left or not reply.released:
                    break
        for scope in chores[b"keeping"]:
            for _ in range(_MOST_PORTIONS):
                if not pauses.keep_ended(scope.decode()):
                    break

    def _released(self, reply: HeldReleased) -> None:
        self._broker.issue(reply.tickets)
        self._broker.release(reply.calls)

    def _tend_cache(self, chores: dict[bytes, Any]) -> None:
        """Computations that are due, and some of what is hidden or expired."""
        for key in chores[b"flights"]:
            more = True
            while more:
                more, landed = self._store.cache.settle_flight(key)
                self._broker.issue(landed.tickets)
                self._broker.release(landed.calls)
        for name in chores[b"calls"]:
            self._broker.release(self._store.cache.release_call(name.decode()))
        if chores[b"sweep"]:
            self._store.cache.cache_sweep()

    # -- the broker's thread -----------------------------------------------------------------------------------------

    def _check_tickets(self, overdue: list[list[str]]) -> None:
        """Issue an overdue ticket again when its queue holds fewer messages than tickets are out.

        While the broker does not answer it stays overdue, so that it is looked for as soon as the broker is back.
        """
        short: dict[str, bool | None] = {}
        for batch, slot in overdue:
            queue = self._store.reads.ticket_queue(batch, int(slot))
            if queue is not None and queue not in short:
                count = self._depths.count(queue)
                short[queue] = None if count is None else count < self._store.reads.tickets_out(queue)
            missing = False if queue is None else short[queue]
            if missing is not None:
                self._issue(self._store.scripts.reissue_ticket(batch, int(slot), reissue=missing))

    def _issue(self, tickets: Sequence[Ticket]) -> None:
        if not tickets:
            return
        parts: dict[str, Sequence[Part]] = {}
        for batch in {ticket.batch for ticket in tickets}:
            (blob,) = self._store.reads.field(batch, "parts")
            if blob is not None:
                parts[batch] = unpack_parts(blob)
        self._publish([ticket for ticket in tickets if ticket.batch in parts], parts)
