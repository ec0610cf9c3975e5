"""A lane: the worker's run of one ticket. It claims items, runs them, reports, and leaves when it should.

Each step is one script call that reports what ended and claims what comes next. While a claim of several items runs, a
watcher thread sends outcomes that have waited 10 ms, and gives the unstarted items back when one takes too long.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import msgpack

from poimen_tasks import context
from poimen_tasks.dispatch.gather import gather_results
from poimen_tasks.dispatch.publish import LANE_LIFE
from poimen_tasks.dispatch.tracing import unpack_trace
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.scripts import new_owner, unpack_parts
from poimen_tasks.store.values import Part
from poimen_tasks.worker.celery_compat import Capture, capture_here, in_focus
from poimen_tasks.worker.claim import Call, Claim, OpenItem
from poimen_tasks.worker.host import LaneHost
from poimen_tasks.worker.item import Activity, Ended, Retry
from poimen_tasks.worker.lane_events import LaneEvents
from poimen_tasks.worker.limits import Timer
from poimen_tasks.worker.report import CANCELLED, FAILED, SKIPPED, SUCCEEDED, LaneReport
from poimen_tasks.worker.steps import LaneSteps

__all__ = ["Lane"]

_FLUSH_BYTES = 256 * 1024


class Lane(LaneSteps):
    """One run. `run()` returns why it ended."""

    def __init__(
        self, host: LaneHost, batch: str, slot: int, generation: int, queue: str, *, message_id: str = ""
    ) -> None:
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
        self._stop = self._at = 0
        self._item_since: float | None = None
        self._watching = False
        self._claim_since = 0.0
        self._cancelled = False
        self._ended: str | None = None
        self._cancel_seen = (0.0, -1, False)
        self._life = LANE_LIFE
        self._epoch = time.time() - perf_counter()
        self._confirmed = perf_counter()
        self._trust = 0.8 * host.store.settings.lease
        self.call = (batch, slot, generation, queue)
        self._opened: tuple[int, Call] | None = None
        self._events = None if host.events is None else LaneEvents(host.events, self, message_id)

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until there is nothing to do here or somebody else's turn has come."""
        with self._events or nullcontext():
            return self._run()

    def _run(self) -> str:
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
        self._trace = unpack_trace(info.get(b"trace"))
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
        if self._events is not None:
            self._events.claimed(self._claim.positions, self._epoch + self._claim_since)

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
                trace=self._trace,
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
                    add.runs.append((epoch + began, duration, self._capture.error))
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
            args, kwargs = item.call if type(item.call) is tuple and self.kind is None else self._read(item)
        except PoimenError as error:
            return Ended(FAILED, error=(type(error).__name__, f"its call could not be read: {error}", ""))
        ended = activity.run(message_id, args, kwargs, item.attempt, item.more)
        return ended if ended is None or type(ended) is Retry or ended.fatal is None else self._ended_by_signal(ended)

    def _ended_by_signal(self, ended: Ended) -> Ended:
        """An item that was revoked with SIGTERM leaves through `SystemExit`: it did not fail, it was cancelled."""
        try:
            self._look_for_cancel()
        except PoimenError:
            return ended
        if not self._running.revoked:
            return ended
        return Ended(CANCELLED, error=("Revoked", "revoked while it ran; its process was ended", ""), fatal=ended.fatal)

    def _read(self, item: OpenItem) -> Call:
        """A call that is out of line, was changed by a retry, or is a callback's; kept while the item runs."""
        self._opened = (item.position, self._callback_call(item))
        return self._opened[1]

    def _callback_call(self, item: OpenItem) -> Call:
        """A callback is given what it is called with when it starts: the results, or the batch's id."""
        args, kwargs = item.call if type(item.call) is tuple else item.call()  # type: ignore[operator]
        if item.immutable or self.parent is None or self.kind is None:
            return args, kwargs
        first = gather_results(self.host.store.reads, self.parent) if self.kind == "success" else self.parent
        return [first, *args], kwargs

    def _is_cancelled(self) -> bool:
        """Asked by a running body through `checkpoint()`: a read at most five times a second."""
        seen, position, cancelled = self._cancel_seen
        if position == self._running.position and (cancelled or perf_counter() - seen < 0.2):
            return cancelled
        return self._look_for_cancel()

    def _look_for_cancel(self) -> bool:
        position = self._running.position
        flag, marks = self.host.store.reads.field(self.batch, "cancel", "marks")
        self._running.revoked = marks is not None and str(position).encode() in msgpack.unpackb(marks, raw=True)
        self._cancel_seen = (perf_counter(), position, flag == b"1" or self._running.revoked)
        return self._cancel_seen[2]

    # -- what is told --------------------------------------------------------------------------------------------------

    @property
    def part(self) -> Part:
        """The partition of the items at hand."""
        return self.parts[self._claim.part]

    @property
    def ending(self) -> str:
        """Why it ended: `over`, `empty`, `yield` …."""
        return str(self._ended)

    def call_of(self, position: int) -> Call | None:
        """What an item of the claim is called with, unless it is out of line and not the one that runs."""
        if self._opened is not None and self._opened[0] == position:
            return self._opened[1]
        return self._claim.call_of(position)
