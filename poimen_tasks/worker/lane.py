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

from poimen_tasks import context
from poimen_tasks.dispatch.publish import LANE_LIFE
from poimen_tasks.dispatch.tracing import unpack_trace
from poimen_tasks.store.scripts import new_owner, unpack_parts
from poimen_tasks.store.values import Part
from poimen_tasks.worker.caching import CachedActivity, Kept
from poimen_tasks.worker.calling import LaneCalls
from poimen_tasks.worker.celery_compat.capture import Capture, capture_here
from poimen_tasks.worker.celery_compat.stacks import in_focus
from poimen_tasks.worker.checkpoints import Checkpoints
from poimen_tasks.worker.claim import Call, Claim, OpenItem
from poimen_tasks.worker.host import LaneHost
from poimen_tasks.worker.item import Activity, Ended, Retry, Stopped
from poimen_tasks.worker.lane_events import LaneEvents
from poimen_tasks.worker.limits import Timer
from poimen_tasks.worker.report import SKIPPED, SUCCEEDED, LaneReport

__all__ = ["Lane"]

_FLUSH_BYTES = 256 * 1024


class Lane(LaneCalls):
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
        self._cancelled = self._paused = False
        self._ended: str | None = None
        self._cancel_seen = (0.0, -1, False)
        self._life = LANE_LIFE
        self._epoch = time.time() - perf_counter()
        self._confirmed = perf_counter()
        self._trust = 0.8 * host.store.settings.lease
        self.call = (batch, slot, generation, queue)
        self._opened: tuple[int, Call] | None = None
        self._cached: dict[int, CachedActivity | None] = {}
        self._kept: Kept | None = None
        self._events = None if host.events is None else LaneEvents(host.events, self, message_id)

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until there is nothing to do here or somebody else's turn has come."""
        with self._events or nullcontext():
            return self._run()

    def _run(self) -> str:
        born = quantum = perf_counter()
        reply = self._step(*self._first_step(), LaneReport())
        if self._ended is not None:
            return self._ended
        self._begin(reply[b"info"])
        outer = capture_here(self._capture)
        try:
            while self._ended is None:
                began = perf_counter()
                if reply.get(b"again"):
                    reply = self._ask_again(reply, began - born)
                    continue
                if not self._take(reply):
                    break
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

    def _first_step(self) -> tuple[str, dict[str, Any]]:
        """Begin and claim; or, when this worker was told to leave while it had the message, hand the slot on."""
        if self.host.leaving() and not self.host.eager:
            return "finish", {"begin": True, "k": 0, "t": "yield"}
        return "step", {"begin": True, "k": 1, "t": "free"}

    def _take(self, reply: dict[bytes, Any]) -> bool:
        """Open a claim; False when it is another worker's to run, and this lane ends."""
        self._open_claim(reply)
        if self._activity(self._claim.part).task is None and self._is_anothers():
            self._leave("decline")
            return False
        if len(self._claim) > 1 and not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, name="poimen-lane-watcher", daemon=True).start()
        return True

    def _ask_again(self, reply: dict[bytes, Any], age: float) -> dict[bytes, Any]:
        """So far the claim found results in the cache only, and there are more items to look at."""
        if not self._must_yield(age, reply):
            return self._step_or_leave(1)
        self._leave("yield")
        return reply

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
            Checkpoints(self),
            origin=self.batch,
            task=self._task_id,
        )
        self._outer = context.enter(self._running)

    def _task_id(self) -> str | None:
        """The task id of the item that runs."""
        if self.parent is not None:
            return None
        item_id, extras = self._claim.labels(self._at)
        return str(extras.get("t", item_id))

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
        call = self._call_cached if claim.is_cached else self._call
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
                ended = call(activity, prefix + str(item.position), item)
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
                    if self._kept is not None:
                        add.kept.append(self._kept)
                        add.size += len(self._kept.value)
                        self._kept = None
                else:
                    self._note_end(item, epoch + began, duration, ended)
                self._item_since = None
                if add.oldest is None:
                    add.oldest = perf_counter()
                fatal = ended.fatal if isinstance(ended, (Ended, Stopped)) else None
                stops = fatal is not None or isinstance(ended, Stopped)
                if stops or (add.size > _FLUSH_BYTES and at + 1 < self._stop):
                    self._flush(give_from=at + 1 if stops else None)
            if fatal is not None:
                return fatal
        return None

    def _note_end(self, item: OpenItem, started: float, duration: float, ended: Retry | Ended | Stopped) -> None:
        """Put anything but a success into the report."""
        add = self._report
        if isinstance(ended, Stopped):
            add.stopped.append(item.position)
            return
        if isinstance(ended, Retry):
            add.retries.append([item.position, ended.delay, item.attempt, ended.call or False])
            add.runs.append((started, duration, self._capture.error))
            add.size += len(ended.call or b"")
            return
        add.add(
            item.position,
            started,
            duration,
            ended.status,
            ended.result,
            ended.error,
            item.attempt,
            item.enqueued,
            item.claim,
            item.item_id,
        )

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
