from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks import codec
from poimen_tasks.errors import PayloadTooLarge, SerializationError
from poimen_tasks.store.chunk_blob import KIND_ARGS, KIND_FULL, KIND_SINGLE, ChunkView, encode_chunk
from poimen_tasks.store.columns import Encoded, pack_result
from poimen_tasks.store.outcome_blob import decode_outcomes, encode_outcomes
from poimen_tasks.store.ranges import expand_ranges, ranges_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
SECONDS = st.floats(0, 1e5)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=9), st.floats(0, 4e9))
def test_single_argument_chunk_round_trip(values: list[Any], enqueued: float) -> None:
    """A chunk of single arguments gives back each call, its partition and its position as its id (promise D1)."""
    calls = codec.encode_many(values, name=str)
    view = ChunkView(encode_chunk(enqueued=enqueued, parts=3, kind=KIND_SINGLE, calls=calls))
    assert [view.call(i) for i in range(len(view))] == [([value], {}) for value in values]
    assert view.enqueued == enqueued
    assert {view.part(i) for i in range(len(view))} == {3}
    assert view.item_id(0, 512) == "512"
    assert view.custom_ids(0, 1) is None
    assert not view.has_extras


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(VALUES, max_size=3), st.dictionaries(TEXT, VALUES, max_size=2), TEXT),
        min_size=1,
        max_size=12,
    )
)
def test_full_chunk_round_trip(rows: list[tuple[list[Any], dict[str, Any], str]]) -> None:
    """Keyword arguments, ids and partitions of each item survive a chunk (promise D1)."""
    calls = codec.encode_many([[args, kwargs] for args, kwargs, _ in rows], name=str)
    numbers = list(range(len(rows)))
    ids = [item_id for _, _, item_id in rows]
    view = ChunkView(encode_chunk(enqueued=1.0, parts=numbers, kind=KIND_FULL, calls=calls, ids=ids))
    for i, (args, kwargs, item_id) in enumerate(rows):
        assert view.call(i) == (args, kwargs)
        assert view.part(i) == i
        assert view.item_id(i, 99) == item_id


def test_a_big_call_is_read_from_its_own_bytes() -> None:
    """A call that is out of line is marked, and its bytes open in the chunk's form (promise D1)."""
    calls = codec.encode_many([None, [1]], name=str)
    view = ChunkView(
        encode_chunk(enqueued=1.0, parts=0, kind=KIND_ARGS, calls=calls, extras=[(0, {"big": True, "t": "T1"})])
    )
    assert view.is_big(0)
    assert not view.is_big(1)
    assert view.extras(0)["t"] == "T1"
    assert view.extras(1) == {}
    assert view.open_big(codec.encode(["x" * 2000, 2])) == (["x" * 2000, 2], {})


@pytest.mark.parametrize("blob", [b"", b"\x93\x01\x02\x03", codec.encode("text"), b"\xc1"])
def test_foreign_bytes_are_no_chunk(blob: bytes) -> None:
    """Bytes that are not a chunk blob are one clear error (fault A15)."""
    with pytest.raises(SerializationError):
        ChunkView(blob)


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), unique=True))
def test_ranges_keep_positions_and_order(positions: list[int]) -> None:
    """Positions written as ranges come back the same, in the same order (promise D4)."""
    assert list(expand_ranges(ranges_of(positions))) == positions


def test_one_run_is_one_range() -> None:
    """Neighbours cost two numbers however many they are (promise D1)."""
    assert ranges_of(range(7, 500)) == [7, 500]


OUTCOME = st.tuples(SECONDS, st.floats(0, 1e4), st.integers(0, 3), VALUES, st.integers(1, 9), SECONDS, st.booleans())


@settings(deadline=None)
@given(st.lists(OUTCOME, min_size=1, max_size=12), st.booleans(), st.booleans())
def test_outcome_columns_round_trip(rows: list[tuple[Any, ...]], named: bool, one_enqueued: bool) -> None:
    """Every column of an outcome blob comes back; times to the microsecond (promise D4)."""
    started, durations, statuses, results, attempts, enqueued, cached = map(list, zip(*rows, strict=True))
    columns = decode_outcomes(
        encode_outcomes(
            positions=range(5, 5 + len(rows)),
            started=started,
            durations=durations,
            statuses=statuses,
            results=[pack_result(value) for value in results],
            errors=[(0, "ValueError", "bad", "trace")],
            attempts=attempts,
            worker="celery@host",
            enqueued=enqueued[0] if one_enqueued else enqueued,
            ids=[f"i{i}" for i in range(len(rows))] if named else None,
            cached=[i for i, flag in enumerate(cached) if flag],
        )
    )
    assert columns is not None
    assert list(expand_ranges(columns.ranges)) == list(range(5, 5 + len(rows)))
    assert columns.starts is not None
    assert columns.durations is not None
    marks = [columns.base + sum(columns.starts[: i + 1]) / 1e6 for i in range(len(rows))]
    assert all(math.isclose(mark, start, abs_tol=2e-6) for mark, start in zip(marks, started, strict=True))
    assert columns.durations == [round(duration * 1e6) for duration in durations]
    assert (columns.statuses or [0] * len(rows)) == statuses
    assert (columns.results or [None] * len(rows)) == results
    assert (columns.attempts or [1] * len(rows)) == attempts
    assert columns.errors == [[0, "ValueError", "bad", "trace"]]
    assert columns.enqueued == (enqueued[0] if one_enqueued else enqueued)
    assert (columns.ids is not None) is named
    assert (columns.cached or []) == [i for i, flag in enumerate(cached) if flag]


def test_columns_that_say_nothing_are_left_out() -> None:
    """A successful first attempt without a result costs its times only (promise D6)."""
    columns = decode_outcomes(
        encode_outcomes(
            positions=[0, 1],
            started=[1.0, 1.5],
            durations=[0.0, 0.0],
            statuses=[0, 0],
            results=[None] * 2,
            attempts=[1, 1],
        )
    )
    assert columns is not None
    assert (columns.statuses, columns.results, columns.errors, columns.attempts, columns.cached) == (None,) * 5


def test_no_items_is_an_empty_blob() -> None:
    """An entry may end a batch without holding an item (fault A09)."""
    assert encode_outcomes(positions=[], started=None, durations=[]) == b""
    assert decode_outcomes(b"") is None


def test_scalars_wait_as_they_are_and_containers_encoded() -> None:
    """A result is ready for its column when it is buffered (promise D4)."""
    assert pack_result(7) == 7
    assert type(pack_result("ok")) is str
    assert type(pack_result(["ok"])) is Encoded
    assert type(pack_result("ü")) is Encoded


@pytest.mark.parametrize("value", [{1, 2}, 2**64, -(2**63) - 1, "\ud800", object(), {"a": [{1}]}])
def test_a_bad_result_is_found_before_its_neighbours_are_encoded(value: Any) -> None:
    """A result that cannot travel is refused by itself, by name (fault F06)."""
    with pytest.raises(SerializationError, match='item "7": result'):
        pack_result(value, what='item "7": result')


def test_a_result_over_the_limit_is_refused() -> None:
    """Results are bounded in bytes (fault F12)."""
    with pytest.raises(PayloadTooLarge):
        pack_result("x" * 2000, limit=1000)


def test_an_error_text_always_encodes() -> None:
    """A message that is not valid Unicode is recorded all the same (fault F06)."""
    blob = encode_outcomes(
        positions=[0], started=[1.0], durations=[0.1], statuses=[1], errors=[(0, "E", "\ud800", "\udfff")]
    )
    columns = decode_outcomes(blob)
    assert columns is not None
    assert columns.errors == [[0, "E", "?", "?"]]


@pytest.mark.parametrize("blob", [codec.encode([1, 2]), codec.encode(None), b"\xc1"])
def test_foreign_bytes_are_no_outcomes(blob: bytes) -> None:
    """Bytes that are not an outcome blob are one clear error (fault A15)."""
    with pytest.raises(SerializationError):
        decode_outcomes(blob)
