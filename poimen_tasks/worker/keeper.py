"""The keeper: one thread in every worker's parent. It renews its lanes' leases and says that the worker lives.

One elected keeper also does the fleet's chores: it reaps lost lanes, issues tickets again, releases what is due.
It has a Redis client of its own, so that a child that is forked meanwhile shares nothing with it.
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

from poimen_tasks.errors import PoimenError
from poimen_tasks.store.scripts import unpack_parts
from poimen_tasks.store.values import Part, Ticket

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.worker.shared import SharedState

__all__ = ["Keeper", "KnownLane"]

log = logging.getLogger(__name__)


class KnownLane:
    """A lane that a child of this worker runs, as its parent knows it."""

    __slots__ = ("batch", "generation", "kill", "pid", "slot")

    def __init__(self, batch: str, slot: int, generation: int, pid: int, kill: Callable[[], bool]) -> None:
        self.batch = batch
        self.slot = slot
        self.generation = generation
        self.pid = pid
        self.kill = kill

    @property
    def key(self) -> tuple[str, int, int]:
        """What the store knows it by."""
        return self.batch, self.slot, self.generation


def _has_died(pid: int) -> bool:
    """True when a child of this process has ended, whether or not somebody collected it; looks without collecting."""
    if pid in (0, os.getpid()) or not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


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
        count_waiting: Callable[[str], int],
        shared: SharedState,
        reserved: Callable[[], int],
    ) -> None:
        self.name = name
        self._store = store
        self._offers = offers
        self._details = msgpack.packb({**details, "pid": os.getpid()})
        self._publish = publish
        self._count_waiting = count_waiting
        self._shared = shared
        self._reserved = reserved
        self._lanes: dict[tuple[str, int, int], KnownLane] = {}
        self._lost: SimpleQueue[tuple[tuple[str, int, int], str, str]] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poimen-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye to the fleet and end."""
        self._stopping.set()
        self._thread.join(timeout=5.0)

    def lane_began(self, lane: KnownLane) -> None:
        """A child began a lane; its lease is renewed from here."""
        self._lanes[lane.key] = lane

    def lane_lost(self, key: tuple[str, int, int], why: str, detail: str) -> None:
        """A child died or was killed under a lane; it is settled at once. Called from the worker's own loop."""
        self._lost.put((key, why, detail))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        settings = self._store.settings
        next_tick = next_look = monotonic()
        while not self._stopping.is_set():
            try:
                self._settle_lost(timeout=min(0.05, settings.tick))
                self._look_for_the_dead()
                if monotonic() >= next_look:
                    next_look = monotonic() + settings.quantum
                    self._shared.others_wait = bool(self._lanes) and self._others_wait()
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
        try:
            reaped, tickets = self._store.scripts.reap_lane(*key, why=why, detail=detail)
        except Exception:
            # The lane is renewed until it is settled, so it must not be forgotten.
            self._lost.put(lost)
            raise
        self._lanes.pop(key, None)
        if reaped:
            log.warning("lane %s slot %d was lost (%s): %s", key[0], key[1], why, detail)
        self._issue(tickets)

    def _beat(self, *, leave: bool) -> None:
        settings, scripts = self._store.settings, self._store.scripts
        self._renew()
        chores = scripts.tick(
            self.name,
            offers=self._offers(),
            payload=self._details,
            period=settings.tick,
            lease=settings.lease,
            leave=leave,
        )
        if chores[b"leader"]:
            self._lead(chores)

    def _others_wait(self) -> bool:
        """Whether messages that are not tickets wait, in a queue or in this worker's hands.

        Asked here once for all lanes of the worker, because each asking for itself would cost more than its step.
        """
        waiting = self._reserved()
        for queue, _slots in self._offers():
            waiting += self._count_waiting(queue) - self._store.reads.tickets_out(queue)
        return waiting > 0

    def _look_for_the_dead(self) -> None:
        """A child that is gone is settled at once; the worker itself notices only after some seconds."""
        for lane in list(self._lanes.values()):
            if _has_died(lane.pid):
                self._lanes.pop(lane.key, None)
                self.lane_lost(lane.key, "lost", f"process {lane.pid} died")

    def _renew(self) -> None:
        keys = list(self._lanes)
        for at in range(0, len(keys), 500):
            some = keys[at : at + 500]
            for key, answer in zip(
                some, self._store.scripts.renew_leases(some, lease=self._store.settings.lease), strict=True
            ):
                if answer == "gone":
                    self._lanes.pop(key, None)
                elif answer == "kill":
                    lane = self._lanes.get(key)
                    if lane is not None and lane.kill():
                        log.warning("batch %s was cancelled with terminate: killed process %d", lane.batch, lane.pid)
                        self.lane_lost(key, "lost", "terminated by cancel")

    def _lead(self, chores: dict[bytes, Any]) -> None:
        scripts = self._store.scripts
        for member in chores[b"overdue"]:
            batch, slot, generation = member.decode().split("\t")
            reaped, tickets = scripts.reap_lane(
                batch, int(slot), int(generation), why="lease", detail="lease expired", overdue_only=True
            )
            if reaped:
                log.warning("batch %s: the lease of slot %s expired", batch, slot)
            self._issue(tickets)
        for batch in dict.fromkeys([*chores[b"due"], *chores[b"hungry"]]):
            self._issue(scripts.promote_batch(batch.decode()))
        self._check_tickets([member.decode().split("\t") for member in chores[b"tickets"]])

    def _check_tickets(self, overdue: list[list[str]]) -> None:
        """Issue an overdue ticket again when its queue holds fewer messages than tickets are out."""
        short: dict[str, bool] = {}
        for batch, slot in overdue:
            queue = self._store.reads.ticket_queue(batch, int(slot))
            if queue is not None and queue not in short:
                short[queue] = self._count_waiting(queue) < self._store.reads.tickets_out(queue)
            tickets = self._store.scripts.reissue_ticket(batch, int(slot), reissue=queue is not None and short[queue])
            self._issue(tickets)

    def _issue(self, tickets: Sequence[Ticket]) -> None:
        if not tickets:
            return
        parts: dict[str, Sequence[Part]] = {}
        for batch in {ticket.batch for ticket in tickets}:
            (blob,) = self._store.reads.field(batch, "parts")
            if blob is not None:
                parts[batch] = unpack_parts(blob)
        self._publish([ticket for ticket in tickets if ticket.batch in parts], parts)
