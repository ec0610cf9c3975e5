"""A lane: the worker's run of one ticket. It claims items, runs them, reports, and leaves when it should.

Each step is one script call that reports what ended and claims what comes next. While a claim of several items runs, a
watcher thread sends outcomes that have waited 10 ms, and gives the unstarted items back when one takes too long.
"""

from __future__ import annotations

import logging
import threading
import time
from time import perf_counter
from typing import Any

from poimen_tasks import context
from poimen_tasks.dispatch.gather import gather_results
from poimen_tasks.dispatch.publish import LANE_LIFE
from poimen_tasks.errors import PoimenError, StoreRefused, StoreUnavailable
from poimen_tasks.store.scripts import new_owner, tickets_of, unpack_parts
from poimen_tasks.store.values import Part, Ticket
from poimen_tasks.worker.celery_compat import Capture, capture_here, in_focus
from poimen_tasks.worker.claim import Call, Claim, OpenItem
from poimen_tasks.worker.host import LaneHost
from poimen_tasks.worker.item import Activity, Ended, Retry
from poimen_tasks.worker.limits import Timer
from poimen_tasks.worker.report import FAILED, SKIPPED, SUCCEEDED, LaneReport

__all__ = ["Lane"]

log = logging.getLogger(__name__)

_FLUSH_AFTER = 0.010
_OVERRUN = 0.050
_FLUSH_BYTES = 256 * 1024
_REPORT_PATIENCE = 600.0


def _read(item: OpenItem) -> Call:
    """The item's call; reads it first where it is out of line or was changed by a retry."""
    return item.call if type(item.call) is tuple else item.call()  # type: ignore[operator]


class Lane:
    """One run. `run()` returns why it ended."""

    def __init__(self, host: LaneHost, batch: str, slot: int, generation: int, queue: str) -> None:
        self.host = host
        self.batch = batch
        self.queue = queue
        self.parts: list[Part] = []
        self._slot = {"b": batch, "s": slot, "g": generation, "q": queue, "lease": host.store.settings.lease}
        self._token = new_owner()
        self._sequence = 0
        self._quantum = host.store.settings.quantum
        self._capture = Capture(host.store.settings.max_result_bytes)
        self._activities: dict[int, Activity] = {}
        self._timer: Timer | None = None
        self._report = LaneReport()
        self._lock = threading.Lock()
        self._claim = Claim.none()
        self._stop = 0
        self._item_since: float | None = None
        self._watching = False
        self._claim_since = 0.0
        self._cancelled = False
        self._ended: str | None = None
        self._cancel_seen = (0.0, False)
        self._life = LANE_LIFE
        self._epoch = time.time() - perf_counter()
        self._confirmed = perf_counter()
        self._trust = 0.8 * host.store.settings.lease

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until there is nothing to do here or somebody else's turn has come."""
        born = quantum = perf_counter()
        reply = self._step("step", {"begin": True, "k": 1, "t": "free"}, LaneReport())
        if self._ended is not None:
            return self._ended
        self._begin(reply[b"info"])
        watcher = None
        outer = capture_here(self._capture)
        try:
            while self._ended is None:
                began = perf_counter()
                self._open_claim(reply)
                if self._activity(self._claim.part).task is None and self._is_anothers():
                    self._leave("decline")
                    break
                if len(self._claim) > 1 and watcher is None:
                    self._watching = True
                    watcher = threading.Thread(target=self._watch, name="poimen-lane-watcher", daemon=True)
                    watcher.start()
                durations: list[float] = []
                with in_focus(self._activity(self._claim.part).task):
                    fatal = self._run_claim(durations)
                part = self._claim.part
                now = perf_counter()
                self.host.paces[self.parts[part].activity].note(durations, now - began)
                if fatal is not None:
                    self._leave("yield")
                    raise fatal
                if now - quantum >= self._quantum:
                    if self._must_yield(now - born, reply):
                        self._leave("yield")
                        break
                    quantum = now
                elif self.host.leaving():
                    self._leave("yield")
                    break
                left = self._quantum - (now - quantum)
                size = self.host.paces[self.parts[part].activity].size(left, self._quantum, self.parts[part].prefetch)
                reply = self._step_or_leave(size)
        finally:
            self._watching = False
            capture_here(outer)
            context.enter(self._outer)
            if self._timer is not None:
                self._timer.close()
        return str(self._ended)

    def _begin(self, info: dict[bytes, Any]) -> None:
        self.parts = unpack_parts(info[b"parts"])
        self.parent = info[b"parent"].decode() if info.get(b"parent") else None
        self.kind = info[b"kind"].decode() if info.get(b"kind") else None
        if any(part.time_limit or part.soft_time_limit for part in self.parts):
            self._timer = self.host.pool.timer_for(self.parts)
            self._limited = True
        else:
            self._limited = False
        self._running = context.RunningItem(
            self.parent or self.batch,
            info[b"workflow"].decode(),
            info[b"stage"].decode(),
            info[b"actor"].decode(),
            self._is_cancelled,
            origin=self.batch,
        )
        self._outer = context.enter(self._running)

    def _is_anothers(self) -> bool:
        """True when this worker does not know the claimed task, but another one does: a deployment is under way."""
        return not self.host.eager and self.host.known_elsewhere(self._activity_name(), self.queue)

    def _must_yield(self, age: float, reply: dict[bytes, Any]) -> bool:
        if self.host.eager:
            return False
        pool = self.host.pool
        if self.host.leaving() or pool.blocks or (self._limited and age >= self._life) or pool.wants_fresh_process():
            return True
        return reply.get(b"others", 0) > 0 or self.host.others_wait()

    # -- items -----------------------------------------------------------------------------------------------------

    def _know_parts(self, reply: dict[bytes, Any]) -> None:
        """A slice that was appended since the lane began may have brought partitions."""
        claim = reply.get(b"claim")
        named = [ticket[4] for ticket in reply.get(b"tickets") or ()] + ([claim[b"p"]] if claim else [])
        if self.parts and max(named, default=0) >= len(self.parts):
            self.parts = self.host.store.reads.parts(self.batch)
            if not self._limited and any(part.time_limit or part.soft_time_limit for part in self.parts):
                self._limited = True
                self._timer = self.host.pool.timer_for(self.parts)

    def _open_claim(self, reply: dict[bytes, Any]) -> None:
        self._claim = Claim.read(reply, self._claim, self.batch, self.host.store.reads)
        self._stop = len(self._claim)
        self._item_since = None
        self._claim_since = perf_counter()

    def _activity(self, part: int) -> Activity:
        activity = self._activities.get(part)
        if activity is None:
            activity = self._activities[part] = Activity(
                self.host.app,
                self.parts[part],
                hostname=self.host.hostname,
                capture=self._capture,
                timer=self._timer,
                tracers=self.host.tracers,
            )
        return activity

    def _run_claim(self, durations: list[float]) -> BaseException | None:
        """Run what was claimed, unless the watcher takes the rest away. Returns what must end the lane."""
        activity, lock, claim = self._activity(self._claim.part), self._lock, self._claim
        epoch, prefix, running = self._epoch, self.batch + ".", self._running
        for at, item in enumerate(claim.items()):
            with lock:
                if at >= self._stop:
                    break
                began = self._item_since = perf_counter()
                self._at = at
                if began - self._confirmed > self._trust and not self._still_mine():
                    break
            running.position, running.attempt, running.dispatches = item.position, item.attempt, 0
            if item.expires is not None and epoch + began > item.expires:
                ended: Any = Ended(SKIPPED, error=("Expired", "it was still waiting when it expired", ""))
            else:
                ended = self._call(activity, prefix + str(item.position), item)
            duration = perf_counter() - began
            durations.append(duration)
            with lock:
                add = self._report
                if ended is None:
                    add.add(
                        item.position,
                        epoch + began,
                        duration,
                        SUCCEEDED,
                        self._capture.result,
                        None,
                        item.attempt,
                        item.enqueued,
                        item.claim,
                        item.item_id,
                    )
                elif type(ended) is Retry:
                    add.retries.append([item.position, ended.delay, item.attempt, ended.call or False])
                    add.size += len(ended.call or b"")
                else:
                    add.add(
                        item.position,
                        epoch + began,
                        duration,
                        ended.status,
                        ended.result,
                        ended.error,
                        item.attempt,
                        item.enqueued,
                        item.claim,
                        item.item_id,
                    )
                self._item_since = None
                if add.oldest is None:
                    add.oldest = perf_counter()
                fatal = ended.fatal if type(ended) is Ended else None
                if fatal is not None or (add.size > _FLUSH_BYTES and at + 1 < self._stop):
                    self._flush(give_from=at + 1 if fatal is not None else None)
            if fatal is not None:
                return fatal
        return None

    def _call(self, activity: Activity, message_id: str, item: OpenItem) -> Any:
        try:
            args, kwargs = _read(item) if self.kind is None else self._callback_call(item)
        except PoimenError as error:
            return Ended(FAILED, error=(type(error).__name__, f"its call could not be read: {error}", ""))
        return activity.run(message_id, args, kwargs, item.attempt, item.more)

    def _callback_call(self, item: OpenItem) -> tuple[list[Any], dict[str, Any]]:
        """A callback is given what it is called with when it starts: the results, or the batch's id."""
        args, kwargs = _read(item)
        if item.immutable or self.parent is None:
            return args, kwargs
        first = gather_results(self.host.store.reads, self.parent) if self.kind == "success" else self.parent
        return [first, *args], kwargs

    def _is_cancelled(self) -> bool:
        """Asked by a running body through `checkpoint()`: a read at most five times a second."""
        seen, cancelled = self._cancel_seen
        now = perf_counter()
        if cancelled or now - seen < 0.2:
            return cancelled
        (flag,) = self.host.store.reads.field(self.batch, "cancel")
        self._cancel_seen = (now, flag == b"1")
        return self._cancel_seen[1]

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
                request["f"], outcome, entry = report.pack(self.host.hostname, self._activity_name())
                request["f"] |= {"g": give or [], "late": late}
                payloads = (outcome, entry)
            self._sequence += 1
            reply = self.host.store.scripts.step(
                name,
                request,
                token=self._token,
                sequence=self._sequence,
                payloads=payloads,
                patience=_REPORT_PATIENCE,
            )
            if reply[b"s"] != b"late":
                self._confirmed = perf_counter()
                break
            report, give, late = report.only(set(reply[b"late"])), None, True
        if reply[b"s"] == b"end":
            self._ended = reply.get(b"why", b"").decode() or "ended"
            self._stop = 0  # what is left of the claim is somebody else's now
        self._cancelled = bool(reply.get(b"cancel"))
        self._know_parts(reply)
        self._publish(tickets_of(reply))
        return reply

    def _activity_name(self) -> str:
        return self.parts[self._claim.part].activity if self.parts else ""

    def _publish(self, tickets: list[Ticket]) -> None:
        if tickets:
            self.host.publish(tickets, {self.batch: self.parts})

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
        overrun = self._at + 1 < self._stop and (late or self._cancelled or self.host.leaving())
        oldest = self._report.oldest
        if overrun:
            self._flush(give_from=self._at + 1)
        elif oldest is not None and now - oldest > _FLUSH_AFTER:
            self._flush()
