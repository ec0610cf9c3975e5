"""What is told of items: texts that are cut and masked, the bucket, and the events of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State

from poimen_tasks.store.columns import pack_result
from poimen_tasks.store.values import Part
from poimen_tasks.worker.claim import Call
from poimen_tasks.worker.events import EventStream, are_enabled, failure_text, short_repr, traceback_text
from poimen_tasks.worker.lane_events import LaneEvents
from poimen_tasks.worker.report import CANCELLED, FAILED, SKIPPED, SUCCEEDED, LaneReport
from poimen_tasks.worker.revoking import item_of


class Kept(EventStream):
    """A stream that keeps what it is given, and whose bucket is what the test says."""

    def __init__(self, app: Celery, *, bucket: int, wanted: bool = True) -> None:
        super().__init__(app, hostname="w@h", rate=float(bucket), wanted=lambda: self.enabled)
        self.enabled = wanted
        self.kept: list[dict[str, Any]] = []

    def add(self, events: list[dict[str, Any]]) -> None:
        """Keep them."""
        self.kept += events

    def watch(self, watched: object) -> None:
        """No thread."""

    unwatch = watch

    def kinds(self, position: int) -> list[str]:
        """The types of an item's events in order."""
        return [event["type"].removeprefix("task-") for event in self.kept if event["uuid"] == f"b.{position}"]


class FakeLane:
    """What a lane says of itself."""

    batch = "b"
    call = ("b", 0, 1, "q")
    part = Part("q", "q", "q", None, "acts.work", None, None, None, 3)
    ending = "over"

    def call_of(self, position: int) -> Call | None:
        """Called with its position."""
        return [position], {"password": "hush"}

    def look(self) -> None:
        """Nothing."""


Told = tuple[Kept, LaneEvents]
Make = Callable[..., Told]


@pytest.fixture
def make() -> Iterator[Make]:
    """A stream and a lane's events that have seen a claim."""
    app = Celery("events", set_as_current=False)

    def make(positions: Sequence[int], *, bucket: int, wanted: bool = True) -> Told:
        stream = Kept(app, bucket=bucket, wanted=wanted)
        events = LaneEvents(stream, FakeLane(), "lane-1")
        events.__enter__()
        events.claimed(positions, 100.0)
        return stream, events

    yield make
    app.close()


def report_of(*statuses: int) -> LaneReport:
    """A report of items from position 0 on."""
    report = LaneReport()
    for position, status in enumerate(statuses):
        error = None if status == SUCCEEDED else (("Expired" if status == SKIPPED else "ValueError"), "no", "trace")
        result = pack_result({"n": position}) if status == SUCCEEDED else None
        report.add(position, 100.0 + position, 0.5, status, result, error, 1, 99.0, 0, None)
    return report


def test_an_item_is_told_as_a_whole(make: Make) -> None:
    """As many items as the bucket holds get all their events, after the lane's own; the others none."""
    stream, events = make([0, 1, 2, 3], bucket=3)
    events.reported(report_of(*[SUCCEEDED] * 4), ())
    assert [stream.kinds(position) for position in range(4)] == [
        ["received", "started", "succeeded"], ["received", "started", "succeeded"], [], [],
    ]  # fmt: skip
    events.__exit__(None, None, None)
    assert [event["type"] for event in stream.kept if event["uuid"] == "lane-1"] == [
        "task-received", "task-started", "task-succeeded",
    ]  # fmt: skip


def test_what_went_wrong_is_always_told(make: Make) -> None:
    """Failed, cancelled, expired and retried items are told in full with an empty bucket; successes are not."""
    stream, events = make([0, 1, 2, 3, 4], bucket=0)
    report = report_of(SUCCEEDED, FAILED, CANCELLED, SKIPPED)
    report.retries.append([4, 1.0, 1, False])
    report.runs.append((104.0, 0.1, ("OSError", "disk", "")))
    events.reported(report, [])
    assert [stream.kinds(position) for position in range(5)] == [
        [],
        ["received", "started", "failed"],
        ["received", "started", "revoked"],
        ["received", "revoked"],
        ["received", "started", "retried"],
    ]
    assert {event["uuid"] for event in stream.kept} == {f"b.{position}" for position in range(1, 5)}


def test_revoked_when_it_came_back(make: Make) -> None:
    """An item that was given back or retried, and had been revoked, ends as revoked."""
    stream, events = make([0, 1], bucket=0)
    report = LaneReport()
    report.retries.append([0, 1.0, 1, False])
    report.runs.append((104.0, 0.1, None))
    events.reported(report, [0, 2])
    assert stream.kinds(0) == ["received", "started", "retried", "revoked"]
    assert stream.kinds(1) == ["received", "revoked"]


def test_nothing_is_told_while_events_are_off(make: Make) -> None:
    """Not even a failure; enabled, the next claim is told."""
    stream, events = make([0], bucket=9, wanted=False)
    events.reported(report_of(FAILED), ())
    events.running(0, 1, 100.0, 9.0)
    assert not stream.kept
    stream.enabled = True
    events.claimed([0], 101.0)
    events.reported(report_of(SUCCEEDED), ())
    assert stream.kinds(0) == ["received", "started", "succeeded"]


@pytest.mark.parametrize(("bucket", "age", "told"), [(9, 0.01, 0), (9, 0.1, 1), (1, 0.1, 0), (1, 0.3, 1), (0, 9.0, 0)])
def test_an_item_that_takes_long_is_told_early(make: Make, bucket: int, age: float, told: int) -> None:
    """One of the sample soon, another one a little later, once; and never with a rate of nothing."""
    stream, events = make([0], bucket=bucket)
    events.running(0, 1, 100.0, age)
    events.running(0, 1, 100.0, age)
    assert stream.kinds(0) == ["received", "started"] * told
    events.reported(report_of(SUCCEEDED), ())
    assert stream.kinds(0).count("started") == stream.kinds(0).count("succeeded") == (1 if told or bucket > 1 else 0)


def test_celerys_state_takes_them(make: Make) -> None:
    """Celery's own picture of a cluster has the item with all that was told, under this worker alone."""
    stream, events = make([0, 1], bucket=9)
    events.reported(report_of(SUCCEEDED, FAILED), ())
    state = State()
    for event in stream.kept:
        state.event({**event, "local_received": event["timestamp"]})
    done, failed = state.tasks["b.0"], state.tasks["b.1"]
    assert (done.state, done.name, done.args, done.result) == ("SUCCESS", "acts.work", "(0,)", "{'n': 0}")
    assert (done.received, done.started, done.succeeded, done.runtime) == (100.0, 100.0, 100.5, 0.5)
    assert (failed.state, failed.exception, failed.traceback) == ("FAILURE", "ValueError('no')", "trace")
    assert (done.parent_id, done.worker.hostname, list(state.workers)) == ("lane-1", "w@h", ["w@h"])
    assert done.kwargs == "{'password': '***'}"


def test_the_bucket() -> None:
    """It holds a second's worth, and gives no more than it has; a rate of nothing gives nothing."""
    app = Celery("bucket", set_as_current=False)
    stream = EventStream(app, hostname="w", rate=10.0, wanted=lambda: True)
    assert stream.take(7) == 7
    assert stream.take(7) in (3, 4)
    assert EventStream(app, hostname="w", rate=0.0, wanted=lambda: True).take(1) == 0
    assert EventStream(app, hostname="w", rate=0.2, wanted=lambda: True).take(5) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"password": "a'b", "n": 1}, "{'password': '***', 'n': 1}"),
        ({"db": {"api_key": 'x"y'}, "max_tokens": 5}, "{'db': {'api_key': '***'}, 'max_tokens': 5}"),
        ({"Authorization": "Bearer abc"}, "{'Authorization': '***'}"),
        (("redis://user:pass@host/0",), "('redis://user:***@host/0',)"),
        ((1, "plain"), "(1, 'plain')"),
    ],
)
def test_secrets_are_masked(value: Any, text: str) -> None:
    """What stands under a name that says so, and passwords in URLs, are not shown."""
    assert short_repr(value) == text


def test_texts_are_cut() -> None:
    """A long value, message or traceback is cut; a secret that the cut ended stays hidden; a broken repr has a name."""
    assert len(short_repr("x" * 100_000)) <= 1024
    assert "hush" not in short_repr({"token": "hush" * 1000})
    assert len(failure_text("ValueError", "x" * 100_000)) <= 1024
    assert traceback_text("a" * 9000 + "end").endswith("end")
    assert len(traceback_text("a" * 9000)) < 4200

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Broken" in short_repr(Broken())


@pytest.mark.parametrize(
    ("enabled", "groups", "found"),
    [(True, set(), True), (True, {"worker", "task"}, True), (True, {"worker"}, False), (False, set(), False)],
)
def test_whether_events_are_enabled(enabled: bool, groups: set[str], found: bool) -> None:
    """As Celery's own dispatcher decides for a task; without a dispatcher they are not."""

    class Consumer:
        event_dispatcher: Any = None

    assert not are_enabled(Consumer())
    app = Celery("enabled", set_as_current=False, broker="memory://")
    consumer = Consumer()
    consumer.event_dispatcher = app.events.Dispatcher(app.connection_for_write(), enabled=enabled, groups=groups)
    assert are_enabled(consumer) is found


@pytest.mark.parametrize(
    ("message_id", "item"),
    [
        ("nightly-7.12", ("nightly-7", 12)),
        ("a.b.0", ("a.b", 0)),
        ("b@success.1.0", ("b@success.1", 0)),
        ("b.01", None),
        ("b.", None),
        (".3", None),
        ("b.x", None),
        ("b@else.1.0", None),
        ("1480b55c-b8b2-462c-985e-24af3e9158f9", None),
    ],
)
def test_which_ids_are_items(message_id: str, item: tuple[str, int] | None) -> None:
    """An item's message id is its batch, a dot and its position."""
    assert item_of(message_id) == item
