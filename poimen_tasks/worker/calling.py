"""How a lane calls one item: its arguments, its cache key, whether it was asked to stop."""

from __future__ import annotations

import signal
from contextlib import suppress
from time import perf_counter, sleep
from typing import Any

import msgpack

from poimen_tasks import context
from poimen_tasks.cache_key import NO_DIGEST
from poimen_tasks.dispatch.gather import gather_results
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.cache_scripts import Labels
from poimen_tasks.worker.caching import CachedActivity, Kept
from poimen_tasks.worker.celery_compat.capture import Capture
from poimen_tasks.worker.claim import Call, OpenItem
from poimen_tasks.worker.item import Activity, Ended, Struck
from poimen_tasks.worker.report import CANCELLED, FAILED
from poimen_tasks.worker.steps import LaneSteps

__all__ = ["LaneCalls"]

#: What a pool process leaves with on such a signal (billiard's own numbers).
_STRUCK = frozenset(-(256 - number) for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP))
_HEAR, _POLL = 0.5, 0.01


class LaneCalls(LaneSteps):
    """What `Lane` is built on; `Lane` makes and explains these attributes."""

    parent: str | None
    kind: str | None
    _capture: Capture
    _running: context.RunningItem
    _opened: tuple[int, Call] | None
    _cached: dict[int, CachedActivity | None]
    _kept: Kept | None
    _cancel_seen: tuple[float, int, bool]

    def _call(self, activity: Activity, message_id: str, item: OpenItem) -> Any:
        try:
            args, kwargs = item.call if type(item.call) is tuple and self.kind is None else self._read(item)
        except PoimenError as error:
            return Ended(FAILED, error=(type(error).__name__, f"its call could not be read: {error}", ""))
        ended = activity.run(message_id, args, kwargs, item.attempt, item.more)
        return (
            ended if ended is None or type(ended) is not Ended or ended.fatal is None else self._ended_by_signal(ended)
        )

    def _call_cached(self, activity: Activity, message_id: str, item: OpenItem) -> Any:
        """Run an item of a cached task; where it leads the computation, what is to be kept goes with its outcome."""
        digest = self._claim.digest(self._at)
        if digest == NO_DIGEST:
            return self._call_linked(activity, message_id, item)
        cached, labels = self._labels(activity, item, digest)
        began = perf_counter()
        with context.leading(digest):
            ended = self._call(activity, message_id, item)
        if ended is None and cached is not None and labels is not None:
            self._kept = cached.kept(item.position, labels, self._capture.result, perf_counter() - began)
        return ended

    def _call_linked(self, activity: Activity, message_id: str, item: OpenItem) -> Any:
        """Run an item that leads no computation; one with a link asks the cache by itself, see `Digester`."""
        if not item.more or not item.more.get("callbacks"):
            return self._call(activity, message_id, item)
        cached = self._cached_activity(activity)
        try:
            args, kwargs = self._read(item)
        except PoimenError:
            return self._call(activity, message_id, item)
        item_id, extras = self._claim.labels(self._at)
        if cached is not None:
            self._running.filed = cached.filed(args, kwargs, item_id=item_id, extras=extras)
        try:
            return self._call(activity, message_id, item)
        finally:
            self._running.filed = None

    def _cached_activity(self, activity: Activity) -> CachedActivity | None:
        part = self._claim.part
        if part not in self._cached:
            self._cached[part] = CachedActivity.of(activity.task, self.host.store.settings)
        return self._cached[part]

    def _labels(self, activity: Activity, item: OpenItem, digest: bytes) -> tuple[CachedActivity | None, Labels | None]:
        cached = self._cached_activity(activity)
        if cached is None:
            return None, None
        try:
            args, kwargs = self._read(item)
        except PoimenError:
            return cached, None  # the item fails when it is called, in its own words
        item_id, extras = self._claim.labels(self._at)
        return cached, cached.labels(digest, args, kwargs, item_id=item_id, extras=extras)

    def _ended_by_signal(self, ended: Ended) -> Ended | Struck:
        """A process that gets SIGTERM leaves its body through `SystemExit`: that is no failure of the item.

        It was revoked; or the worker leaves, and it goes back; or else the process is lost as by any other kill.
        """
        with suppress(PoimenError):
            self._look_for_cancel()
        if self._running.revoked:
            error = ("Revoked", "revoked while it ran; its process was ended", "")
            return Ended(CANCELLED, error=error, fatal=ended.fatal)
        fatal = ended.fatal
        if fatal is None or ended.status != FAILED or getattr(fatal, "code", None) not in _STRUCK:
            return ended
        # A supervisor may tell all processes at once, and this one hears of it before its worker does.
        heard = perf_counter() + _HEAR
        while not self.host.leaving():
            if perf_counter() >= heard:
                with self._lock:
                    self._flush()
                raise fatal
            sleep(_POLL)
        return Struck(fatal)

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
