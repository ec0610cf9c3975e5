"""What a lane tells whoever listens, as Celery's task events: of itself, and of the items that it runs.

Nothing is done while an item runs or ends. What an item went through is read off the report that the lane sends to the
store anyway; only of one that takes long the stream's own thread tells earlier that it started.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from poimen_tasks import codec
from poimen_tasks.dispatch.publish import LANE_TASK
from poimen_tasks.store.columns import Encoded
from poimen_tasks.store.ranges import expand_ranges
from poimen_tasks.store.values import Part
from poimen_tasks.worker.claim import Call
from poimen_tasks.worker.events import EventStream, TaskEvent, failure_text, short_repr, traceback_text
from poimen_tasks.worker.report import CANCELLED, SKIPPED, SUCCEEDED, LaneReport

__all__ = ["LaneEvents", "TellingLane", "item_received"]

_LONG = 0.05
"""Seconds after which it is told that an item started, before it has ended."""
_SLOW = 0.2
"""Seconds after which an item is told though it was not sampled."""
_DECODED = 64 * 1024


class TellingLane(Protocol):
    """What is asked of a lane."""

    batch: str
    call: tuple[str, int, int, str]

    @property
    def part(self) -> Part:
        """The partition of the items at hand."""

    @property
    def ending(self) -> str:
        """Why it ended."""

    def call_of(self, position: int) -> Call | None:
        """What an item of its claim is called with, where that is at hand."""

    def look(self) -> None:
        """Tell of an item that takes long."""


def item_received(
    stream: EventStream, part: Part, message_id: str, at: float, *, call: Call | None, retries: int, parent: str | None
) -> TaskEvent:
    """The event that says what an item is."""
    args, kwargs = ("", "") if call is None else (short_repr(tuple(call[0])), short_repr(call[1]))
    return stream.event(
        "task-received",
        message_id,
        at,
        name=part.activity,
        args=args,
        kwargs=kwargs,
        root_id=parent or message_id,
        parent_id=parent,
        retries=retries,
        eta=None,
        expires=None,
        queue=part.queue,
        exchange=part.exchange,
        routing_key=part.routing_key,
    )


def _result_text(result: Any) -> str:
    if type(result) is not Encoded:
        return short_repr(result)
    return short_repr(codec.decode(result)) if len(result) <= _DECODED else f"<{len(result):,} bytes>"


class LaneEvents:
    """One lane's events; entered and left with it. It is called under the lane's lock, or between items.

    Args:
        stream: this process's.
        lane: the lane.
        message_id: the lane's own.
    """

    def __init__(self, stream: EventStream, lane: TellingLane, message_id: str) -> None:
        self._stream = stream
        self._lane = lane
        self._id = message_id
        self._on = False
        self._since = 0.0
        self._began = 0.0
        self._watched = self._lane_told = False
        self._sampled: set[int] = set()
        self._told: set[int] = set()

    def __enter__(self) -> None:
        self._began = time.time()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._watched:
            self._tell_end(error)
            self._stream.unwatch(self._lane)

    def claimed(self, positions: Sequence[int], at: float) -> None:
        """Decide which items of a claim are told: each as a whole, all its events or none."""
        self._on = self._stream.wanted()
        if not self._on:
            if self._sampled:
                self._sampled = set()
            return
        self._since = at
        if not self._watched:
            self._watched = True
            self._stream.watch(self._lane)
        if not self._lane_told and self._stream.take(1):
            self._tell_lane()
        granted = self._stream.take(len(positions))
        self._sampled = set(positions[:granted])
        self._told = set()

    def running(self, position: int, attempt: int, started: float, age: float) -> None:
        """An item has been running for so many seconds: tell that it started, once."""
        if not self._on or age < _LONG or position in self._told:
            return
        if position not in self._sampled and (age < _SLOW or not self._stream.rate):
            return
        self._sampled.add(position)
        self._told.add(position)
        self._stream.add(self._opening(position, attempt, started))

    def reported(self, report: LaneReport, revoked: Sequence[int]) -> None:
        """The store has taken a report; `revoked`: ranges of items that ended as revoked when they came back."""
        if not self._on or not (self._sampled or report.errors or report.retries or report.stopped or revoked):
            return
        errors = {error[0]: error for error in report.errors}
        events: list[TaskEvent] = []
        for at in range(len(report.positions)) if self._sampled else errors:
            error = errors.get(at)
            if report.positions[at] in self._sampled or (error is not None and not _is_ignored(report, at, error)):
                events += self._story(report, at, error)
        events += self._retried(report)
        events += self._stopped(report)
        events += self._revoked(expand_ranges(revoked), report)
        if events:
            self._stream.add(events)

    # -- single events -----------------------------------------------------------------------------------------------

    def _message_id(self, position: int) -> str:
        return f"{self._lane.batch}.{position}"

    def _tell_end(self, error: BaseException | None) -> None:
        if not self._lane_told:
            return
        now, event = time.time(), self._stream.event
        fields: dict[str, Any] = {"runtime": now - self._began}
        if error is None:
            self._stream.add([event("task-succeeded", self._id, now, result=self._lane.ending, **fields)])
        else:
            fields |= {"exception": failure_text(type(error).__name__, str(error)), "traceback": ""}
            self._stream.add([event("task-failed", self._id, now, **fields)])

    def _tell_lane(self) -> None:
        self._lane_told = True
        fields = {"name": LANE_TASK, "args": short_repr(self._lane.call), "kwargs": "{}", "retries": 0}
        fields |= {"root_id": self._id, "parent_id": None, "eta": None, "expires": None}
        event = self._stream.event
        self._stream.add(
            [
                event("task-received", self._id, self._began, **fields),
                event("task-started", self._id, self._began),
            ]
        )

    def _received(self, position: int, attempt: int) -> TaskEvent:
        return item_received(
            self._stream,
            self._lane.part,
            self._message_id(position),
            self._since,
            call=self._lane.call_of(position),
            retries=attempt - 1,
            parent=self._id,
        )

    def _opening(self, position: int, attempt: int, started: float) -> list[TaskEvent]:
        begun = self._stream.event("task-started", self._message_id(position), started)
        return [self._received(position, attempt), begun]

    def _story(self, report: LaneReport, at: int, error: tuple[int, str, str, str] | None) -> list[TaskEvent]:
        """All events of an item that has its outcome; without those that were told while it ran."""
        position, attempt, status = report.positions[at], report.attempts[at], report.statuses[at]
        started, duration = report.started[at], report.durations[at]
        events: list[TaskEvent] = []
        if position not in self._told:
            events = self._opening(position, attempt, started)
        self._sampled.discard(position)
        self._told.discard(position)
        kind, fields = _ending(status, report.results[at], error)
        if fields.get("expired"):
            del events[1:]  # it never started
        events.append(
            self._stream.event(kind, self._message_id(position), started + duration, runtime=duration, **fields)
        )
        return events

    def _retried(self, report: LaneReport) -> Iterable[TaskEvent]:
        for (position, _delay, attempt, _call), (started, duration, error) in zip(
            report.retries, report.runs, strict=True
        ):
            if position not in self._told:
                yield from self._opening(position, attempt, started)
            self._sampled.discard(position)
            self._told.discard(position)
            kind, message, trace = error or ("Retry", "", "")
            yield self._stream.event(
                "task-retried",
                self._message_id(position),
                started + duration,
                exception=failure_text(kind, message),
                traceback=traceback_text(trace),
            )

    def _stopped(self, report: LaneReport) -> Iterable[TaskEvent]:
        """An item that was told to have started, and is paused, will run again: so it is said as Celery says that."""
        for position in report.stopped:
            self._sampled.discard(position)
            if position in self._told:
                self._told.discard(position)
                yield self._stream.event(
                    "task-retried", self._message_id(position), time.time(), exception="Paused()", traceback=""
                )

    def _revoked(self, positions: Iterable[int], report: LaneReport) -> Iterable[TaskEvent]:
        known = {retry[0] for retry in report.retries} | self._told
        for position in positions:
            if position not in known:
                yield self._received(position, 1)
            self._sampled.discard(position)
            self._told.discard(position)
            yield self._stream.event(
                "task-revoked", self._message_id(position), self._since, terminated=False, signum=None, expired=False
            )


def _is_ignored(report: LaneReport, at: int, error: tuple[int, str, str, str]) -> bool:
    return report.statuses[at] == SKIPPED and error[1] != "Expired"


def _ending(status: int, result: Any, error: tuple[int, str, str, str] | None) -> tuple[str, dict[str, Any]]:
    """The last event of an item: its type and what only it carries."""
    if status == SUCCEEDED or error is None:
        return "task-succeeded", {"result": _result_text(result)}
    _, kind, message, trace = error
    text = failure_text(kind, message)
    if status == CANCELLED:
        return "task-revoked", {"terminated": False, "signum": None, "expired": False, "exception": text}
    if status == SKIPPED:
        if kind == "Expired":
            return "task-revoked", {"terminated": False, "signum": None, "expired": True}
        return "task-ignored", {"result": text}  # the state IGNORED, as Celery's own tracer names it
    return "task-failed", {"exception": text, "traceback": traceback_text(trace)}
