from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks import codec
from poimen_tasks.dispatch.ledger import Ledger
from poimen_tasks.dispatch.report import BatchReport
from poimen_tasks.dispatch.spread import spread
from poimen_tasks.model import ItemStatus
from poimen_tasks.store.columns import pack_result
from poimen_tasks.store.outcome_blob import encode_outcomes


def recorded(*blobs: bytes) -> Ledger:
    ledger = Ledger()
    for ordinal, blob in enumerate(blobs, 1):
        ledger.add(ordinal, blob)
    return ledger


def finish(positions: list[int], results: list[Any], *, start: float = 100.0, each: float = 1.0, **more: Any) -> bytes:
    return encode_outcomes(
        positions=positions,
        started=[start + i * each for i in range(len(positions))],
        durations=[each] * len(positions),
        results=[pack_result(value) for value in results],
        **{"enqueued": start - 1.0, "worker": "w", **more},
    )


def test_results_come_in_item_order_however_they_finished() -> None:
    """Results are by item id, in item order (promise D1)."""
    report = BatchReport(recorded(finish([3, 1], ["d", "b"]), finish([0, 2], ["a", "c"])), batch_id="b")
    assert list(report.results.items()) == [("0", "a"), ("1", "b"), ("2", "c"), ("3", "d")]
    assert list(report.results) == ["0", "1", "2", "3"]
    assert list(report.results.values()) == ["a", "b", "c", "d"]
    assert dict(report.results) == {"0": "a", "1": "b", "2": "c", "3": "d"}
    assert report.ok


def test_custom_ids_find_their_results() -> None:
    """Results are found by the ids their items were given (promise D1)."""
    report = BatchReport(recorded(finish([1, 0], [{"n": 1}, [0]], ids=["b.py", "a.py"])), batch_id="b")
    assert report.results["b.py"] == {"n": 1}
    assert list(report.results) == ["a.py", "b.py"]
    assert "c.py" not in report.results


@pytest.mark.parametrize("key", ["9", "-1", "01", "x", "", "²", 0, None])
def test_an_unknown_id_is_a_key_error(key: Any) -> None:
    """Only the ids of its items are keys of a report (promise D7)."""
    report = BatchReport(recorded(finish([0, 1], [1, 2])), batch_id="b")
    assert key not in report.results
    with pytest.raises(KeyError):
        report.results[key]


def test_a_failed_item_is_an_error_and_no_result() -> None:
    """Failures are counted and told by item; the others keep their results (promise D3)."""
    blob = finish([0, 1, 2, 3], [1, None, None, None], statuses=[0, 1, 2, 3], errors=[(1, "ValueError", "no", "")])
    report = BatchReport(recorded(blob), batch_id="b")
    assert (report.succeeded, report.failed, report.cancelled, report.skipped) == (1, 1, 1, 1)
    assert list(report.results) == ["0"]
    assert {item_id: str(error) for item_id, error in report.errors.items()} == {"1": "ValueError: no"}
    assert not report.ok


def test_the_newest_outcome_counts() -> None:
    """After another round an item's new outcome replaces the old one, in results and in sums (promise D3)."""
    first = finish([0, 1], [None, "ok"], statuses=[1, 0], errors=[(0, "E", "x", "")], attempts=[3, 1])
    report = BatchReport(recorded(first, finish([0], ["later"], start=200.0, each=4.0)), batch_id="b")
    assert dict(report.results) == {"0": "later", "1": "ok"}
    assert dict(report.errors) == {}
    assert report.completed == 2
    assert report.total_task_time == pytest.approx(5.0)
    assert report.stats()["attempts"] == 2
    assert report.wall_time == pytest.approx(104.0)


def test_speedup_and_efficiency() -> None:
    """Speedup is the sum of durations over the wall time, efficiency is that over the limit (promise D5)."""
    lanes = [finish([lane], [None], start=100.0 + lane * 0.01, each=1.0) for lane in range(4)]
    report = BatchReport(recorded(*lanes), batch_id="b", concurrency=8)
    assert report.wall_time == pytest.approx(1.03)
    assert report.total_task_time == pytest.approx(4.0)
    assert report.speedup == pytest.approx(4 / 1.03)
    assert report.efficiency == pytest.approx(4 / 1.03 / 8)


def test_without_a_limit_the_lanes_seen_count() -> None:
    """Efficiency without a limit is against the lanes that worked at one time (promise D5)."""
    blobs = [finish([0, 1], [1, 1]), finish([2], [1], start=100.5), finish([3], [1], start=300.0)]
    assert BatchReport(recorded(*blobs), batch_id="b").concurrency == 2


def test_stats_name_counts_and_seconds() -> None:
    """Stats hold counts, durations, percentiles, queue wait and its share, and are plain values (promise D6)."""
    durations = [float(i) for i in range(1, 101)]
    blob = encode_outcomes(
        positions=range(100),
        started=[50.0] * 100,
        durations=durations,
        enqueued=40.0,
        cached=[5],
        attempts=[2] + [1] * 99,
    )
    stats = BatchReport(recorded(blob), batch_id="b", total=120, concurrency=10).stats()
    assert (stats["total"], stats["completed"], stats["cached"], stats["attempts"]) == (120, 100, 1, 101)
    assert [stats[f"{rank}_duration"] for rank in ("min", "p50", "p95", "p99", "max")] == [1.0, 50.0, 95.0, 99.0, 100.0]
    assert stats["avg_duration"] == pytest.approx(50.5)
    assert stats["total_duration"] == pytest.approx(5050.0)
    assert [stats[f"{rank}_queue_wait"] for rank in ("p50", "p95", "p99")] == [10.0, 10.0, 10.0]
    assert stats["queue_wait_share"] == pytest.approx(1000 / 6050)
    assert stats["concurrency"] == 10
    json.dumps(stats)


def test_an_empty_batch_has_an_empty_report() -> None:
    """No items: empty results, zero seconds, no error (promise D10, fault A09)."""
    report = BatchReport(recorded(b""), batch_id="b", total=0)
    assert (dict(report.results), dict(report.errors), report.wall_time, report.speedup, report.efficiency) == (
        {},
        {},
        0,
        0,
        0,
    )
    assert report.ok
    assert report.stats()["total"] == 0


def test_items_that_never_ran_take_no_part_in_durations() -> None:
    """A cancelled item is counted but does not pull the averages down (promise D8)."""
    cancelled = encode_outcomes(positions=[1, 2], started=None, durations=[], statuses=[2, 2])
    stats = BatchReport(recorded(finish([0], [1], each=2.0), cancelled), batch_id="b").stats()
    assert (stats["cancelled"], stats["min_duration"], stats["avg_duration"]) == (2, 2.0, 2.0)


def test_to_dict_holds_everything_as_plain_values() -> None:
    """A report as plain values carries results, errors and stats (promise D1)."""
    report = BatchReport(recorded(finish([0], [[1]])), batch_id="b", workflow="w", stage="s")
    data = report.to_dict()
    assert (data["batch_id"], data["workflow"], data["stage"], data["results"], data["errors"]) == (
        "b",
        "w",
        "s",
        {"0": [1]},
        {},
    )
    assert "results" not in report.to_dict(items=False)
    json.dumps(data)


def test_a_status_is_known_by_position() -> None:
    """A position without an outcome has no status (promise D7)."""
    ledger = recorded(finish([2], [1]))
    assert [ledger.status(place) for place in (-1, 0, 2, 3)] == [None, None, ItemStatus.SUCCEEDED, None]
    assert len(ledger) == 3


ENTRIES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), st.integers(0, 3), st.floats(0, 9, width=16)
    ),
    max_size=12,
)


@settings(deadline=None)
@given(ENTRIES)
def test_a_report_is_the_newest_outcome_of_each_item(entries: list[tuple[list[int], int, float]]) -> None:
    """Whatever order and rounds outcomes come in, a report equals a dict that the newest is written to (promise D3)."""
    newest: dict[int, tuple[int, float, int]] = {}
    blobs = []
    for number, (positions, status, seconds) in enumerate(entries):
        count = len(positions)
        blobs.append(finish(positions, [number] * count, each=seconds, statuses=[status] * count))
        newest.update((position, (status, seconds, number)) for position in positions)
    report = BatchReport(recorded(*blobs), batch_id="b")
    wanted = {str(place): number for place, (status, _, number) in sorted(newest.items()) if status == 0}
    assert list(report.results.items()) == list(wanted.items())
    assert all(report.results[item_id] == number for item_id, number in wanted.items())
    assert report.completed == len(newest)
    assert report.failed == sum(status == 1 for status, _, _ in newest.values())
    assert report.total_task_time == pytest.approx(sum(seconds for _, seconds, _ in newest.values()), abs=1e-3)
    assert report.stats()["attempts"] == len(newest)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6, width=32), st.booleans())))
def test_ranks_are_those_of_the_sorted_values(rows: list[tuple[float, bool]]) -> None:
    """Percentiles are exact, by nearest rank (promise D5)."""
    column = array("f", [value for value, _ in rows])
    values = sorted(value for value, chosen in rows if chosen)
    found = spread(column, bytes(chosen for _, chosen in rows))
    if not values:
        assert set(found.values()) == {0.0}
        return
    assert (found["min"], found["max"]) == (values[0], values[-1])
    for percent in (50, 95, 99):
        assert found[f"p{percent}"] == values[-(-percent * len(values) // 100) - 1]


def test_a_long_batch_takes_few_bytes_per_item() -> None:
    """What a report keeps for a no-op item stays below 20 bytes (promise D6)."""
    ledger = Ledger()
    for ordinal, lo in enumerate(range(0, 51_200, 512), 1):
        ledger.add(ordinal, encode_outcomes(positions=range(lo, lo + 512), started=[1.0] * 512, durations=[1e-5] * 512))
    columns = (ledger._flags, ledger._entries, ledger._durations, ledger._waits, ledger._data, ledger._ends)
    assert sum(memoryview(column).nbytes for column in columns) / 51_200 < 20
    assert codec.decode(ledger._blob(99))[0] == [50_688, 51_200]
