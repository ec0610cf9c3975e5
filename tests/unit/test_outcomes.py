from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks import codec
from poimen_tasks.dispatch.outcomes import ENTRY, STATUSES, cursor_start, decode_blob, resume_at
from poimen_tasks.errors import InvalidArgument, SerializationError
from poimen_tasks.model import ErrorInfo, ItemStatus, Outcome
from poimen_tasks.store.columns import pack_result
from poimen_tasks.store.outcome_blob import encode_outcomes

ROWS = st.lists(
    st.tuples(
        st.floats(1e9, 1.1e9),
        st.floats(0, 100),
        st.integers(0, 3),
        st.none() | st.text("abc") | st.integers(0, 9),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(ROWS)
def test_outcomes_are_what_was_recorded(rows: list[tuple[float, float, int, object, int]]) -> None:
    """An outcome tells id, status, result, times, queue wait, attempts and worker of its item (promise D4)."""
    started, durations, statuses, results, attempts = map(list, zip(*rows, strict=True))
    blob = encode_outcomes(
        positions=range(3, 3 + len(rows)),
        started=started,
        durations=durations,
        statuses=statuses,
        results=[pack_result(value) for value in results],
        attempts=attempts,
        worker="w",
        enqueued=1.05e9,
    )
    outcomes = decode_blob(blob, cursor_start(7))
    assert [outcome.item_id for outcome in outcomes] == [str(place) for place in range(3, 3 + len(rows))]
    for place, (outcome, row) in enumerate(zip(outcomes, rows, strict=True)):
        assert type(outcome) is Outcome
        assert outcome.status is STATUSES[row[2]]
        assert outcome.result == row[3]
        assert outcome[4] == pytest.approx(row[0], abs=1e-5)
        assert outcome.duration == pytest.approx(row[1], abs=1e-6)
        assert outcome.queue_wait == pytest.approx(max(0.0, row[0] - 1.05e9), abs=1e-5)
        assert (outcome.attempts, outcome.worker, outcome.cached) == (row[4], "w", False)
        assert outcome.cursor == 7 * ENTRY + place


def test_errors_and_cached_are_placed_by_item() -> None:
    """The error of a failed item is its own, as data (promise D3, fault K02).

    It reads alike whether or not its class is known here (fault F09).
    """
    blob = encode_outcomes(
        positions=[4, 9, 2],
        started=[1.0, 2.0, 3.0],
        durations=[0.5, 0.5, 0.5],
        statuses=[0, 1, 1],
        errors=[(1, "ValueError", "no", "Traceback"), (2, "Vanished", "gone", "")],
        enqueued=[0.5, 1.5, 4.0],
        ids=["a", "b", "c"],
        cached=[2],
    )
    one, two, three = decode_blob(blob, 0)
    assert one.error is None
    assert two.error is not None
    assert three.error is not None
    assert type(two.error) is type(three.error) is ErrorInfo
    assert (three.error.type, three.error.message) == ("Vanished", "gone")
    assert (two.error.type, two.error.message, two.error.traceback) == ("ValueError", "no", "Traceback")
    assert [outcome.item_id for outcome in (one, two, three)] == ["a", "b", "c"]
    assert [outcome.cached for outcome in (one, two, three)] == [False, False, True]
    assert [outcome.queue_wait for outcome in (one, two, three)] == [0.5, 0.5, 0.0]


def test_items_that_never_started_have_no_times() -> None:
    """A cancelled item has an outcome without a start (promise D8)."""
    (outcome,) = decode_blob(encode_outcomes(positions=[1], started=None, durations=[], statuses=[2]), 0)
    assert outcome.status is ItemStatus.CANCELLED
    assert (outcome.started_at, outcome.finished_at, outcome.duration, outcome.queue_wait) == (None, None, 0.0, 0.0)


@settings(deadline=None)
@given(st.integers(1, 2**32 - 1), st.integers(1, 512), st.data())
def test_a_cursor_goes_on_exactly_behind_its_outcome(ordinal: int, count: int, data: st.DataObject) -> None:
    """A reader that stopped inside an entry goes on with the next item, none lost, none twice (promise D1)."""
    blob = encode_outcomes(positions=range(count), started=[1.0] * count, durations=[0.0] * count)
    outcomes = decode_blob(blob, cursor_start(ordinal))
    place = data.draw(st.integers(0, count - 1))
    entry, skip = resume_at(outcomes[place].cursor)
    assert entry == ordinal
    assert decode_blob(blob, cursor_start(ordinal), skip=skip) == outcomes[place + 1 :]


def test_no_cursor_is_the_beginning() -> None:
    """Without a cursor reading begins before the first entry (promise D1)."""
    assert resume_at(None) == (0, 0)


@pytest.mark.parametrize("after", [-1, True, "5", 1.5])
def test_what_is_no_cursor_is_refused(after: object) -> None:
    """A cursor is a number from an outcome (promise D1)."""
    with pytest.raises(InvalidArgument, match="after"):
        resume_at(after)


def test_an_entry_without_items_holds_none() -> None:
    """The entry that ends a batch may be empty (fault A09)."""
    assert decode_blob(b"", 0) == []


def test_columns_of_different_lengths_are_refused() -> None:
    """A damaged blob is an error, not fewer outcomes (fault A15)."""
    row = [[0, 3], 1.0, [0, 1, 1], [5, 5], None, None, None, None, "w", 0.0, None, None]
    with pytest.raises(SerializationError, match="columns"):
        decode_blob(codec.encode(row), 0)
