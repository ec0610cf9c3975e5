"""A lane's side of the talk with the store: its steps and flushes, and the watcher that sends what has waited."""

from __future__ import annotations

import logging
import threading
import time
from time import perf_counter
from typing import Any

from poimen_tasks.errors import PoimenError, StoreRefused, StoreUnavailable
from poimen_tasks.store.scripts import calls_of, tickets_of
from poimen_tasks.store.values import Part, Ticket
from poimen_tasks.worker.claim import Claim
from poimen_tasks.worker.host import LaneHost
from poimen_tasks.worker.lane_events import LaneEvents
from poimen_tasks.worker.leaving import until_given_up
from poimen_tasks.worker.report import LaneReport

__all__ = ["LaneSteps"]

log = logging.getLogger(__name__)

_FLUSH_AFTER = 0.010
_OVERRUN = 0.050
_REPORT_PATIENCE = 600.0


class LaneSteps:
    """What `Lane` is built on; `Lane` makes and explains these attributes."""

    host: LaneHost
    batch: str
    parts: list[Part]
    _slot: dict[str, Any]
    _token: str
    _sequence: int
    _quantum: float
    _report: LaneReport
    _lock: threading.Lock
    _claim: Claim
    _claim_since: float
    _at: int
    _stop: int
    _item_since: float | None
    _watching: bool
    _cancelled: bool
    _paused: bool
    _ended: str | None
    _confirmed: float
    _epoch: float
    _events: LaneEvents | None

    # -- steps -----------------------------------------------------------------------------------------------------

    def _step_or_leave(self, size: int) -> dict[bytes, Any]:
        """Report and claim; on a server without memory report only, and leave."""
        with self._lock:
            try:
                return self._report_by("step", {"k": size, "t": "free"})
            except StoreRefused as refused:
                log.warning("batch %s: no more claims here: %s", self.batch, refused)
                return self._report_by("finish", {"k": 0, "t": "free"})

    def _leave(self, how: str) -> None:
        with self._lock:
            self._report_by("finish", {"k": 0, "t": how, "p": self._claim.part})
            self._ended = self._ended or how

    def _flush(self, give_from: int | None = None) -> None:
        """Send what there is; give back the items from that place on. The caller holds the lock."""
        give: list[int] = []
        if give_from is not None and give_from < self._stop:
            give = self._claim.ranges(give_from, self._stop)
        if self._report or give:
            self._report_by("finish", {"k": 0, "t": "stay"}, give)
            if give_from is not None:
                self._stop = min(self._stop, give_from)

    def _still_mine(self) -> bool:
        """Ask before a start when the lease may have ended meanwhile: this process may have been frozen."""
        self._report_by("finish", {"k": 0, "t": "stay"})
        return self._ended is None

    def _report_by(self, name: str, request: dict[str, Any], give: list[int] | None = None) -> dict[bytes, Any]:
        """A step with what there is to report; what could not be sent stays to be reported."""
        report, self._report = self._report, LaneReport()
        try:
            return self._step(name, request, report, give)
        except BaseException:
            report.absorb(self._report)
            self._report = report
            raise

    def _step(
        self, name: str, request: dict[str, Any], report: LaneReport, give: list[int] | None = None
    ) -> dict[bytes, Any]:
        """One script call; a report that came too late is sent again with what still counts."""
        request = {**self._slot, **request, "have": list(self._claim.chunks)}
        late = False
        while True:
            payloads: tuple[bytes, ...] = ()
            request.pop("f", None)
            if report or give:
                request["f"], payloads = report.pack(self.host.hostname, self._activity_name())
                request["f"] |= {"g": give or [], "late": late}
            self._sequence += 1
            reply = self.host.store.scripts.step(
                name,
                request,
                token=self._token,
                sequence=self._sequence,
                payloads=payloads,
                patience=_REPORT_PATIENCE,
                give_up=until_given_up(self.host.leaving, self.host.store.settings),
            )
            if reply[b"s"] != b"late":
                self._confirmed = perf_counter()
                break
            report, give, late = report.only(set(reply[b"late"])), None, True
        if reply[b"s"] == b"end":
            self._ended = reply.get(b"why", b"").decode() or "ended"
            self._stop = 0  # what is left of the claim is somebody else's now
        self._cancelled = bool(reply.get(b"cancel"))
        self._paused = bool(reply.get(b"paused"))
        self._know_parts(reply)
        if self._events is not None:
            self._events.reported(report, reply.get(b"revoked") or ())
        self._publish(tickets_of(reply))
        if b"calls" in reply:
            self.host.publisher.calls(calls_of(reply))
        return reply

    def _know_parts(self, reply: dict[bytes, Any]) -> None:
        raise NotImplementedError

    def _activity_name(self) -> str:
        return self.parts[self._claim.part].activity if self.parts else ""

    def _publish(self, tickets: list[Ticket]) -> None:
        if tickets:
            self.host.publisher.tickets(tickets, {self.batch: self.parts})

    # -- the watcher -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Runs beside claims of several items, as long as the lane does."""
        while self._watching and self._ended is None:
            time.sleep(_FLUSH_AFTER / 2)
            try:
                with self._lock:
                    self._look()
            except (StoreUnavailable, PoimenError) as error:
                log.warning("batch %s: outcomes wait, they could not be sent yet: %s", self.batch, error)

    def _look(self) -> None:
        since, now = self._item_since, perf_counter()
        if since is None or self._ended is not None:
            return
        # What has not begun goes back: when one item takes long, the claim as a whole does, or nothing more may begin.
        late = now - since > _OVERRUN or now - self._claim_since > 2 * self._quantum
        overrun = self._at + 1 < self._stop and (late or self._must_not_begin())
        oldest = self._report.oldest
        if overrun:
            self._flush(give_from=self._at + 1)
        elif oldest is not None and now - oldest > _FLUSH_AFTER:
            self._flush()
            if self._paused:
                self._flush(give_from=self._at + 1)

    def _must_not_begin(self) -> bool:
        return self._cancelled or self._paused or self.host.leaving()

    # -- what is told ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Tell of an item that takes long. Called by the event stream's thread, which must not wait for a step."""
        if self._events is None or not self._lock.acquire(blocking=False):
            return
        try:
            if self._item_since is not None:
                position, attempt = self._claim.item_at(self._at)
                age = perf_counter() - self._item_since
                self._events.running(position, attempt, self._epoch + self._item_since, age)
        finally:
            self._lock.release()
