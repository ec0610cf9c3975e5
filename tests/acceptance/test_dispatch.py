"""A batch from end to end, with real worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from celery import chain, chord, group

from poimen_tasks import BatchFailed, BatchNotFound, BatchState, BatchTimeout, InvalidArgument, Item, ItemNotFound
from tests.conftest import ROOT, Workers, eventually

pytestmark = pytest.mark.usefixtures("lanes")


def lines(path: Path) -> list[str]:
    """The lines that bodies left."""
    return path.read_text().splitlines() if path.exists() else []


def test_results_come_back_by_item_id(shop: ModuleType) -> None:
    """Every item of a group runs, and its result is found under its id, in item order (promise D1)."""
    batch = shop.poimen.dispatch(group(shop.add.s(i, 1) for i in range(40)))
    report = batch.wait(timeout=20)
    assert dict(report.results) == {str(i): i + 1 for i in range(40)}
    assert list(report.results) == [str(i) for i in range(40)]


def test_outcomes_stream_and_resume_elsewhere(shop: ModuleType, module_env: dict[str, str]) -> None:
    """Outcomes come as they finish; another process goes on behind a cursor and misses nothing (promise D1)."""
    batch = shop.poimen.dispatch(shop.poimen.map(shop.noop, range(3000)))
    seen = []
    for outcome in batch.outcomes(timeout=20):
        seen.append(outcome.item_id)
        if len(seen) == 700:
            break
    code = (
        "import json, sys; from tests.acceptance.shop import poimen\n"
        f"seen = poimen.batch({batch.id!r}).outcomes(after={outcome.cursor}, timeout=20)\n"
        "print(json.dumps([o.item_id for o in seen]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **module_env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rest = json.loads(done.stdout)
    assert sorted(map(int, [*seen, *rest])) == list(range(3000))


def test_a_failing_item_does_not_stop_the_others(shop: ModuleType) -> None:
    """Errors stay apart: type, message and traceback of each, and the number of failures (promise D3)."""
    batch = shop.poimen.dispatch(shop.poimen.map(shop.odd_fails, range(10)))
    report = batch.wait(timeout=20)
    assert report.failed == 5
    assert dict(report.results) == {str(i): i for i in range(0, 10, 2)}
    assert {item: error.type for item, error in report.errors.items()} == {
        str(i): "ValueError" for i in range(1, 10, 2)
    }
    assert report.errors["3"].message == "3 is odd"
    assert "odd_fails" in report.errors["3"].traceback
    with pytest.raises(BatchFailed) as failed:
        batch.wait(timeout=5, raise_on_error=True)
    assert failed.value.failed == 5
    assert batch.status().state is BatchState.FAILED


def test_each_outcome_tells_its_times(shop: ModuleType) -> None:
    """An outcome has start, end, duration, queue wait, worker and attempts (promise D4)."""
    batch = shop.poimen.dispatch(shop.poimen.map(shop.nap, [0.05] * 4))
    for outcome in batch.outcomes(timeout=20):
        assert outcome.ok
        assert outcome.duration >= 0.05
        assert outcome.started_at < outcome.finished_at
        assert outcome.queue_wait >= 0
        assert outcome.worker.endswith("@test")
        assert (outcome.attempts, outcome.cached) == (1, False)


def test_the_report_adds_up(shop: ModuleType) -> None:
    """Wall time, task time and speedup belong together (promise D5); statistics count every item (promise D6)."""
    report = shop.poimen.dispatch(shop.poimen.map(shop.nap, [0.05] * 8)).wait(timeout=20)
    assert report.total_task_time >= 8 * 0.05
    assert report.speedup == pytest.approx(report.total_task_time / report.wall_time)
    assert report.efficiency == pytest.approx(report.speedup / 10)
    stats = report.stats()
    assert (stats["total"], stats["completed"], stats["concurrency"]) == (8, 8, 10)
    assert stats["min_duration"] <= stats["p50_duration"] <= stats["p99_duration"] <= stats["max_duration"]


def test_status_counts_every_item(shop: ModuleType, notes: Path) -> None:
    """The counters of a status add up to the total while the batch runs (promise D6)."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.2) for i in range(6)], concurrency=2)
    eventually(lambda: batch.status().running == 2)
    status = batch.status()
    assert status.total == status.pending + status.delayed + status.waiting + status.running + status.finished
    assert status.state is BatchState.RUNNING
    batch.wait(timeout=20)
    assert batch.status().finished == 6


def test_completeness_of_single_items(shop: ModuleType) -> None:
    """An unknown id is not complete, and asking for its result is a clear error (promise D7)."""
    batch = shop.poimen.dispatch([])
    assert not batch.is_complete("0")
    batch = shop.poimen.dispatch([Item(shop.add.s(1, 2), id="a/b"), Item(shop.boom.s("x"), id="c")])
    batch.wait(timeout=20)
    assert batch.is_complete("a/b")
    assert not batch.is_complete("0")
    assert batch.result("a/b") == 3
    with pytest.raises(ItemNotFound, match="no item 'zz'"):
        batch.result("zz")
    with pytest.raises(BatchFailed, match="ValueError: x"):
        batch.result("c")


def test_a_deadline_leaves_the_batch_going(shop: ModuleType) -> None:
    """Waiting ends at its deadline with an error; the batch goes on and can be waited for again (promise D9)."""
    batch = shop.poimen.dispatch(shop.poimen.map(shop.nap, [1.0] * 2))
    with pytest.raises(BatchTimeout):
        batch.wait(timeout=0.1)
    with pytest.raises(InvalidArgument, match="-1"):
        batch.wait(timeout=-1)
    assert batch.wait(timeout=20).succeeded == 2


@pytest.mark.parametrize(
    "make", [list, iter, group, lambda items: (x for x in items)], ids=["list", "iterator", "group", "generator"]
)
def test_an_empty_batch_is_complete(shop: ModuleType, notes: Path, make: object) -> None:
    """Nothing to do is done at once, and the callback runs with an empty list (promise D10, fault A09)."""
    batch = shop.poimen.dispatch(make([]), on_success=shop.tell.s(str(notes)))
    report = batch.wait(timeout=20)
    assert (report.total, dict(report.results)) == (0, {})
    assert batch.callback_result(timeout=20) == "told"
    assert lines(notes) == ["[]"]
    assert batch.status().state is BatchState.COMPLETED


def test_a_chord_gives_its_body_the_results_in_order(shop: ModuleType) -> None:
    """A chord's body runs once with all results in item order (promise D1, fault A01)."""
    batch = shop.poimen.dispatch(chord(group(shop.add.s(i, i) for i in range(600)), shop.total.s()))
    assert batch.callback_result(timeout=30) == sum(2 * i for i in range(600))


def test_a_canvas_as_callback_is_published(shop: ModuleType, notes: Path) -> None:
    """A chain as a callback runs as Celery runs it, with the results."""
    batch = shop.poimen.dispatch(
        [shop.add.s(1, 1), shop.add.s(2, 2)], on_success=chain(shop.total.s(), shop.tell.s(str(notes)))
    )
    batch.wait(timeout=20)
    eventually(lambda: lines(notes) == ["6"])


def test_failure_and_complete_callbacks_get_the_batch_id(shop: ModuleType, notes: Path) -> None:
    """When not all succeeded `on_failure` runs and `on_success` does not; `on_complete` runs either way (fault A13)."""
    batch = shop.poimen.dispatch(
        [shop.boom.s("x"), shop.add.s(1, 1)],
        on_success=shop.tell.s(str(notes), tag="success "),
        on_failure=shop.tell.s(str(notes), tag="failure "),
        on_complete=shop.told.si(str(notes), tag="complete "),
    )
    batch.wait(timeout=20)
    expected = {f"failure {batch.id!r}", "complete None"}
    eventually(lambda: set(lines(notes)) == expected)
    eventually(lambda: batch.status().callbacks_pending == 0)
    assert set(lines(notes)) == expected
    assert batch.result("1") == 2


def test_retry_failed_opens_another_round(shop: ModuleType, tmp_path: Path, notes: Path) -> None:
    """Failed items run again on request, the newest outcome counts, the new round has its callbacks (promise D3)."""
    there = tmp_path / "there"
    batch = shop.poimen.dispatch(
        [shop.fails_unless.s(str(there)), shop.add.s(1, 1)],
        on_success=shop.tell.s(str(notes), tag="success "),
        on_failure=shop.tell.s(str(notes), tag="failure "),
    )
    assert batch.wait(timeout=20).failed == 1
    eventually(lambda: batch.status().callbacks_pending == 0)
    there.touch()
    assert batch.retry_failed(actor="me") == 1
    report = batch.wait(timeout=20)
    assert dict(report.results) == {"0": "there", "1": 2}
    eventually(lambda: lines(notes) == [f"failure {batch.id!r}", "success ['there', 2]"])
    assert batch.retry_failed() == 0


def test_a_generator_is_consumed_in_slices(shop: ModuleType) -> None:
    """Work begins while a generator is still being read (fault A20)."""
    seen = []

    def work() -> object:
        batch = shop.poimen.batch("lazy")
        for number in range(2000):
            if number == 1000:
                eventually(lambda: batch.status().succeeded > 0)
                seen.append(batch.status().state)
            yield shop.add.s(number, 0)

    report = shop.poimen.dispatch(work(), batch_id="lazy", concurrency=None).wait(timeout=30)
    assert report.succeeded == 2000
    assert seen == [BatchState.RUNNING]


def test_a_finished_batch_is_not_dispatched_again(shop: ModuleType, notes: Path) -> None:
    """The same batch id gives the same batch, and nothing runs twice (fault A22)."""
    work = [shop.marked.s(str(notes), "a")]
    first = shop.poimen.dispatch(work, batch_id="nightly", metadata={"source": "test"})
    first.wait(timeout=20)
    assert first.metadata == {"source": "test"}
    again = shop.poimen.dispatch(work, batch_id="nightly")
    assert again.wait(timeout=20).succeeded == 1
    assert len(lines(notes)) == 2


def test_an_unknown_batch_shows_at_the_first_read(shop: ModuleType) -> None:
    """Making a handle asks nothing; reading it says that there is no such batch."""
    batch = shop.poimen.batch("nobody")
    for read in (batch.status, batch.wait, lambda: next(batch.outcomes()), lambda: batch.result("0"), batch.cancel):
        with pytest.raises(BatchNotFound, match="nobody"):
            read()


def test_arguments_and_results_keep_their_types(shop: ModuleType) -> None:
    """What the wire format carries arrives as it was; a tuple arrives as a list (fault F04)."""
    from datetime import date, datetime, timedelta, timezone
    from decimal import Decimal
    from uuid import UUID

    values = [
        None,
        True,
        2**63,
        -1.5,
        "tëxt",
        b"\x00\xff",
        [1, [2]],
        {"a": {"b": None}},
        date(2025, 1, 2),
        timedelta(seconds=1.5),
        datetime(2025, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=2))),
        Decimal("1.10"),
        UUID(int=5),
        "x" * 5000,
    ]
    report = shop.poimen.dispatch([shop.echo.s(value, key=value) for value in values]).wait(timeout=20)
    assert list(report.results.values()) == [[[value], {"key": value}] for value in values]


def test_large_calls_and_results_travel(shop: ModuleType) -> None:
    """Arguments of some megabytes are kept out of line and arrive whole."""
    blobs = [bytes([i]) * 700_000 for i in range(8)]
    report = shop.poimen.dispatch(shop.poimen.map(shop.echo, blobs)).wait(timeout=30)
    assert [result[0][0] for result in report.results.values()] == blobs


def test_a_slow_item_among_fast_ones_holds_nobody_up(shop: ModuleType) -> None:
    """Items that were claimed together with a slow one go to somebody else, and what is finished is seen meanwhile."""
    batch = shop.poimen.dispatch(shop.poimen.map(shop.slow_sometimes, range(2000)), concurrency=2)
    order = [outcome.item_id for outcome in batch.outcomes(timeout=30)]
    assert len(set(order)) == 2000
    assert order.index("30") > 1500


def test_fifty_batches_at_once(shop: ModuleType, lanes: Workers) -> None:
    """Many small batches share the same lanes and all end (fault E01)."""
    batches = [shop.poimen.dispatch([shop.add.s(n, i) for i in range(5)], workflow="many") for n in range(50)]
    for n, batch in enumerate(batches):
        assert list(batch.wait(timeout=40).results.values()) == [n + i for i in range(5)]
    assert len(shop.poimen.batches(workflow="many")) == 50


def test_a_callback_of_a_later_round(shop: ModuleType, notes: Path) -> None:
    """`retry_failed` opens a round with callbacks of its own; the last round's result is given (protocol 6)."""
    batch = shop.poimen.dispatch(
        [shop.fails_unless.s(f"{notes}.there")],
        on_success=shop.joined.s(),
        on_failure=shop.tell.s(str(notes), tag="failed "),
    )
    assert batch.wait(timeout=20).failed
    assert batch.callback_result("on_failure", timeout=20) == "told"
    Path(f"{notes}.there").touch()
    assert batch.retry_failed() == 1
    assert batch.wait(timeout=20).succeeded == 1
    assert batch.callback_result("on_success", timeout=20) == "there"
    assert lines(notes) == [f"failed {batch.id!r}"]
