"""The small parts of a worker: pace, report, shared state, retry policy around a body, time limits."""

from __future__ import annotations

import time

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from poimen_tasks import RetryPolicy, policy
from poimen_tasks.store.columns import pack_result
from poimen_tasks.store.outcome_blob import decode_outcomes
from poimen_tasks.worker.limits import ItemTimer, can_enforce
from poimen_tasks.worker.pace import MOST, Pace, Paces
from poimen_tasks.worker.report import CANCELLED, FAILED, SUCCEEDED, LaneReport
from poimen_tasks.worker.retrying import install_retry
from poimen_tasks.worker.shared import SharedState


def paced(duration: float, runs: int) -> Pace:
    """A pace after some runs of the same length."""
    pace = Pace()
    for _ in range(runs):
        pace.note([duration], duration)
    return pace


def test_an_unknown_activity_is_claimed_one_by_one() -> None:
    """Until 20 runs are known a claim is one item (protocol 3)."""
    assert paced(0.0001, 19).size(0.1, 0.1, None) == 1
    assert paced(0.0001, 20).size(0.1, 0.1, None) > 1


def test_a_claim_fits_the_rest_of_the_quantum() -> None:
    """As many items as fit, at most 512; never less than one (protocol 3)."""
    assert paced(0.001, 40).size(0.05, 0.1, None) == pytest.approx(50, abs=1)
    assert paced(0.000001, 40).size(0.1, 0.1, None) == MOST
    assert paced(0.001, 40).size(-1.0, 0.1, None) >= 1


def test_long_or_pinned_items_are_claimed_one_by_one() -> None:
    """Items over a tenth of the quantum, and `prefetch=1`, are claimed one at a time (protocol 3)."""
    assert paced(0.011, 40).size(0.1, 0.1, None) == 1
    assert paced(0.0001, 40).size(0.1, 0.1, 1) == 1
    assert paced(0.0001, 40).size(0.1, 0.1, 7) == 7


def test_one_slow_run_among_many_is_seen() -> None:
    """A bulk report with slow items in it makes the pace careful again."""
    pace = paced(0.0001, 40)
    pace.note([0.0001] * 100 + [0.5] * 4, 2.0)
    assert pace.size(0.1, 0.1, None) == 1


def test_paces_are_kept_by_activity() -> None:
    """Each activity has its own pace."""
    paces = Paces()
    assert paces["a"] is paces["a"]
    assert paces["a"] is not paces["b"]


def filled() -> LaneReport:
    """A report of three outcomes and a retry."""
    report = LaneReport()
    report.add(5, 100.0, 0.1, SUCCEEDED, pack_result({"a": 1}), None, 1, 99.0, 0, "five")
    report.add(6, 100.1, 0.1, FAILED, None, ("ValueError", "no", "trace"), 2, 99.5, 3, "six")
    report.add(9, 100.2, 0.1, CANCELLED, None, ("Cancelled", "", ""), 1, 99.0, 0, "nine")
    report.retries.append([7, 1.5, 1, False])
    return report


def test_a_report_packs_what_a_script_takes() -> None:
    """Ranges, counts by status, claim numbers and retries; the blob holds the outcomes (protocol 0)."""
    request, (outcome, audit) = filled().pack("w@h", "shop.add")
    assert request["r"] == [5, 7, 9, 10]
    assert (request["ok"], request["failed"], request["cancelled"]) == (1, 1, 1)
    assert "skipped" not in request
    assert request["n"] == [[6, 3]]
    assert request["y"] == [[7, 1.5, 1, False]]
    columns = decode_outcomes(outcome)
    assert columns is not None
    assert columns.results == [{"a": 1}, None, None]
    assert columns.errors == [[1, "ValueError", "no", "trace"], [2, "Cancelled", "", ""]]
    assert columns.ids == ["five", "six", "nine"]
    told = decode_outcomes(audit)
    assert told is not None
    assert told.results is None
    assert told.errors is not None
    assert told.errors[0] == [1, "ValueError", "no", ""]


def test_a_late_report_keeps_only_what_still_counts() -> None:
    """The part about some positions has their columns and no retries (protocol 3)."""
    part = filled().only({6, 9})
    assert part.positions == [6, 9]
    assert part.errors == [(0, "ValueError", "no", "trace"), (1, "Cancelled", "", "")]
    assert part.claims == [[6, 3]]
    assert part.ids == ["six", "nine"]
    assert not part.retries
    assert not filled().only(set())


def test_shared_state_starts_quiet_and_keeps_what_is_set() -> None:
    """Two flags, as the parent set them."""
    state = SharedState()
    assert (state.leaving, state.others_wait) == (False, False)
    state.leaving = True
    assert (state.leaving, state.others_wait) == (True, False)
    state.others_wait = True
    assert (state.leaving, state.others_wait) == (True, True)


def test_a_direct_call_runs_the_body_only() -> None:
    """Calling a task with a retry policy directly raises its error at once."""
    app = Celery("direct", set_as_current=False)

    @app.task(shared=False)
    @policy(retry=RetryPolicy(max_attempts=5))
    def fails() -> None:
        raise KeyError("x")

    install_retry(fails)
    install_retry(fails)
    with pytest.raises(KeyError):
        fails()


def test_a_retried_task_keeps_its_signature() -> None:
    """The wrapped body is found by `inspect`, as `self.retry(args=…)` needs."""
    import inspect

    app = Celery("kept", set_as_current=False)

    @app.task(shared=False)
    @policy(retry=RetryPolicy())
    def body(first: int, second: str = "x") -> None:
        """Nothing."""

    install_retry(body)
    assert list(inspect.signature(body.run).parameters) == ["first", "second"]


def spin(seconds: float) -> str:
    """A body that is busy, not asleep."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))
    return "done"


def test_limits_strike_and_are_disarmed() -> None:
    """The soft limit raises first, the hard one after it; after disarming nothing strikes (fault B11)."""
    assert can_enforce()
    timer = ItemTimer()
    try:
        timer.arm(0.05, 0.2)
        with pytest.raises(SoftTimeLimitExceeded):
            spin(5)
        with pytest.raises(TimeLimitExceeded):
            spin(5)
        assert timer.exceeded
        timer.disarm()
        assert spin(0.3) == "done"
        timer.arm(None, 5.0)
        assert spin(0.01) == "done"
        timer.disarm()
        assert not timer.exceeded
    finally:
        timer.close()
