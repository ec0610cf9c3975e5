from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, group
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks.dispatch.canvas import Map, StarMap, plan
from poimen_tasks.dispatch.slices import iter_slices
from poimen_tasks.errors import (
    DuplicateItem,
    InvalidArgument,
    InvalidId,
    PayloadTooLarge,
    PoimenError,
    SerializationError,
    UnknownTask,
    UnsupportedWork,
)
from poimen_tasks.model import Item
from poimen_tasks.settings import Settings
from poimen_tasks.store.chunk_blob import CHUNK, ChunkView
from poimen_tasks.store.values import Part, Slice

app = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)
SETTINGS = Settings(max_argument_bytes=100_000)
NOW = 1_700_000_000.0


@app.task(name="shop.add", shared=False)
def add(x: Any, y: Any = 0) -> Any:
    return x


@app.task(name="shop.other", shared=False)
def other(*args: Any, **kwargs: Any) -> None:
    pass


@app.task(name="shop.loose", shared=False, typing=False)
def loose(x: int) -> None:
    pass


@app.task(name="shop.expiring", shared=False, expires=60)
def expiring(x: int) -> None:
    pass


@app.task(name="shop.limited", shared=False, rate_limit="1/m")
def limited(x: int) -> None:
    pass


def sliced(
    work: Any, *, offset: int = 0, parts: tuple[Part, ...] = (), **options: Any
) -> tuple[list[Slice], list[Part]]:
    slices, found = [], list(parts)
    for piece, new in iter_slices(app, plan(app, work, **options), SETTINGS, now=NOW, offset=offset, parts=parts):
        slices.append(piece)
        found += new
    return slices, found


def opened(slices: list[Slice], first: int = 0) -> list[tuple[str, list[Any], dict[str, Any], int, dict[str, Any]]]:
    """Every item as a worker reads it: id, args, kwargs, partition, extras."""
    items = []
    position = first
    for piece in slices:
        big = dict(piece.big)
        for blob in piece.chunks:
            view = ChunkView(blob)
            for i in range(len(view)):
                args, kwargs = view.open_big(big[position]) if view.is_big(i) else view.call(i)
                items.append((view.item_id(i, position), args, kwargs, view.part(i), view.extras(i)))
                position += 1
    return items


def ready(slices: list[Slice]) -> list[int]:
    return [place for piece in slices for _, lo, hi in piece.runs for place in range(lo, hi)]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
)
ARGUMENTS = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text("ab", max_size=3), SCALARS, max_size=2)
ROWS = st.lists(
    st.tuples(st.lists(ARGUMENTS, max_size=3), st.dictionaries(st.text("abc", min_size=1), ARGUMENTS, max_size=2)),
    max_size=20,
)


@settings(deadline=None)
@given(ROWS, st.sampled_from([1, 40]))
def test_a_worker_reads_the_calls_that_were_written(rows: list[tuple[list[Any], dict[str, Any]]], times: int) -> None:
    """Arguments of any carried kind arrive as they were given, in order, at their positions (promise D1)."""
    work = [other.s(*args, **kwargs) for args, kwargs in rows] * times
    slices, parts = sliced(work)
    assert [item[1:3] for item in opened(slices)] == [(list(args), kwargs) for args, kwargs in rows] * times
    assert [item[0] for item in opened(slices)] == [str(place) for place in range(len(work))]
    assert ready(slices) == list(range(len(work)))
    assert sum(piece.count for piece in slices) == len(work)
    assert len(parts) == (1 if work else 0)


@settings(deadline=None)
@given(st.lists(ARGUMENTS, max_size=600))
def test_a_map_is_the_same_as_a_signature_each(values: list[Any]) -> None:
    """The fast path and the general one write the same calls (promise D1)."""
    mapped = opened(sliced(Map(add, values))[0])
    assert mapped == opened(sliced([add.s(value) for value in values])[0])
    assert mapped == opened(sliced(add.map(values))[0])


def test_rows_are_arguments() -> None:
    """A row of a starmap is positional arguments, a dict is keyword arguments, and they may be mixed (promise D1)."""
    assert [item[1:3] for item in opened(sliced(StarMap(add, [(1, 2), [3]]))[0])] == [([1, 2], {}), ([3], {})]
    assert [item[1:3] for item in opened(sliced(StarMap(add, [{"x": 1}]))[0])] == [([], {"x": 1})]
    assert [item[1:3] for item in opened(sliced(StarMap(add, [{"x": 1}, (2,)]))[0])] == [([], {"x": 1}), ([2], {})]
    with pytest.raises(UnsupportedWork, match='item "1": int 7 is not a row'):
        sliced(StarMap(add, [(1,), 7]))


def test_the_first_slice_is_small_and_all_are_bounded() -> None:
    """The first slice is 256 items so that a ticket leaves at once; none is over 16,384 items (fault A20)."""
    slices, _ = sliced(Map(add, range(100_000)))
    counts = [piece.count for piece in slices]
    assert counts[0] == CHUNK
    assert max(counts) == 16_384
    assert all(count % CHUNK == 0 for count in counts[:-1])
    assert sum(counts) == 100_000
    assert all(math.ceil(piece.count / CHUNK) == len(piece.chunks) for piece in slices)


def test_slices_are_bounded_in_bytes() -> None:
    """A slice is about a megabyte at most (promise D1)."""
    slices, _ = sliced(Map(add, ["x" * 900] * 20_000))
    assert max(sum(map(len, piece.chunks)) for piece in slices) < 1_400_000


def test_slices_with_ids_are_short() -> None:
    """Ids cost the store work one by one, so a slice of them is 512 items at most (promise D1)."""
    ids = [f"id {i}" for i in range(3000)]
    slices, _ = sliced(Map(add, range(3000), ids=ids))
    assert max(piece.count for piece in slices) == 512
    assert [item_id for piece in slices for item_id in piece.ids or []] == ids
    assert [item[0] for item in opened(slices)] == ids


def test_work_is_taken_only_as_far_as_it_is_written() -> None:
    """A lazy series is consumed slice by slice (fault A20)."""
    taken = 0

    def produce() -> Iterator[int]:
        nonlocal taken
        for i in range(100_000):
            taken = i + 1
            yield i

    stream = iter_slices(app, plan(app, Map(add, produce())), SETTINGS, now=NOW)
    next(stream)
    assert taken == CHUNK


def test_a_slow_source_hands_over_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that come slowly are written a chunk at a time: they do not wait until a long slice is full."""
    clock = iter(range(10_000))
    monkeypatch.setattr("poimen_tasks.dispatch.slices.time.monotonic", lambda: float(next(clock)))
    slices, _ = sliced(Map(add, iter(range(CHUNK * 5 + 3))))
    assert [piece.count for piece in slices] == [CHUNK] * 5 + [3]


def test_an_id_in_the_middle_makes_all_later_ids_known() -> None:
    """From the first item with its own id on the store is told every id (fault A08)."""
    work = [add.s(i) if i != 700 else Item(add.s(i), id="seven") for i in range(1500)]
    slices, _ = sliced(work)
    told = [item_id for piece in slices for item_id in piece.ids or [None] * piece.count]
    assert told[700] == "seven"
    assert told[701:] == [str(place) for place in range(701, 1500)]
    assert [item[0] for item in opened(slices)][699:702] == ["699", "seven", "701"]


@pytest.mark.parametrize(
    "work",
    [
        [Item(add.s(1), id="a"), Item(add.s(2), id="a")],
        [add.s(0), Item(add.s(1), id="0")],
        [Item(add.s(1), id="1"), add.s(0)],
        Map(add, [1, 2], ids=["a", "a"]),
        [*map(add.s, range(600)), Item(add.s(1), id="3")],
        [add.s(1).set(task_id="f")] * 2,
    ],
)
def test_two_items_of_one_id_are_refused(work: Any) -> None:
    """Ids of a batch differ; a frozen signature that is used twice is found (fault A08)."""
    with pytest.raises(DuplicateItem, match="item id"):
        sliced(work)


def test_a_frozen_signature_keeps_its_id() -> None:
    """The task id of a frozen signature is the item's id (fault A08)."""
    signature = add.s(1)
    result = signature.freeze()
    assert opened(sliced([signature])[0])[0][0] == result.id


@pytest.mark.parametrize("bad", ["", "x" * 257, "a\nb", "a\x00", 7])
def test_a_bad_id_is_refused(bad: Any) -> None:
    """Item ids are 1 to 256 printable characters (fault H10)."""
    with pytest.raises(InvalidId, match="item"):
        sliced([Item(add.s(1), id=bad)])
    with pytest.raises(InvalidId, match="item id"):
        sliced(Map(add, [1], ids=[bad]))
    with pytest.raises(InvalidId, match='item "0": task_id'):
        sliced([Item(add.s(1), task_id=bad)])


@pytest.mark.parametrize(
    ("work", "path"),
    [
        ([add.s(0), add.s({1})], r'item "1": args\[0\]'),
        ([add.s(0, y={"rows": [1, {2}]})], r'item "0": kwargs\.y\.rows\[1\]'),
        ([Item(add.s(object()), id="it")], r'item "it": args\[0\]'),
        (Map(add, [1, {2}]), r'item "1": args\[0\]'),
        (Map(add, [1, {2}], ids=["a", "b"]), r'item "b": args\[0\]'),
        (StarMap(add, [(1, 2**64)]), r'item "0": args\[1\]'),
        ([add.s("\ud800")], r'item "0": args\[0\]'),
        ([add.s({1: "a"})], r'item "0": args\[0\]'),
    ],
)
def test_an_argument_that_cannot_travel_is_named(work: Any, path: str) -> None:
    """The error names the item and the path to the value (faults F04, F05, A15)."""
    with pytest.raises(SerializationError, match=path):
        sliced(work)


def test_a_bad_item_spares_the_slices_before_it() -> None:
    """What is bad in a later slice is found when that slice is made, not before (promise D1)."""
    stream = iter_slices(app, plan(app, Map(add, [*range(300), {1}])), SETTINGS, now=NOW)
    assert next(stream)[0].count == CHUNK
    with pytest.raises(SerializationError, match='item "300"'):
        next(stream)


def test_big_arguments_are_moved_out_of_line() -> None:
    """A call over 1,024 bytes is stored by itself; its chunk stays small (fault F12)."""
    texts = ["x" * size for size in (10, 1021, 1022, 5000)]
    for work in (Map(add, texts), [*map(add.s, texts)], [Item(add.s(text)) for text in texts]):
        slices, _ = sliced(work)
        assert [position for position, _ in slices[0].big] == [2, 3]
        assert [item[1] for item in opened(slices)] == [[text] for text in texts]
        assert len(slices[0].chunks[0]) < 1100
    item = Item(add.s("x" * 3000, y=[1]), tags=["t"])
    assert opened(sliced([item])[0])[0][1:] == (["x" * 3000], {"y": [1]}, 0, {"g": ["t"], "big": True})


def test_arguments_over_the_limit_are_refused() -> None:
    """The setting `max_argument_bytes` bounds one item's arguments (fault F12)."""
    for work in ([add.s(0), add.s("x" * 100_001)], Map(add, [0, "x" * 100_001])):
        with pytest.raises(PayloadTooLarge, match='item "1"'):
            sliced(work)


@pytest.mark.parametrize(
    ("work", "named"),
    [
        ([add.s()], 'item "0": arguments do not fit task shop.add: .*missing 1'),
        ([add.s(1), add.s(1, 2, 3)], 'item "1".*positional'),
        ([add.s(1, z=2)], "item \"0\".*'z'"),
        (StarMap(add, [(1,), ()]), 'item "1"'),
        (StarMap(add, [{"z": 1}]), 'item "0"'),
        ([{"task": "shop.add", "args": 7}], 'item "0": args must be a list'),
    ],
)
def test_arguments_that_do_not_fit_are_refused(work: Any, named: str) -> None:
    """Calls are checked against the task's parameters as Celery does (promise D1)."""
    with pytest.raises(UnsupportedWork, match=named):
        sliced(work)
    assert len(opened(sliced([loose.s()])[0])) == 1


@pytest.mark.parametrize(
    ("signature", "error", "named"),
    [
        (add.s(1).set(serializer="json"), UnsupportedWork, "'serializer' is not supported; a batch honours queue"),
        (add.s(1).set(shadow="x"), UnsupportedWork, "'shadow'"),
        (add.s(1).set(chord=other.s()), UnsupportedWork, "'chord'"),
        (limited.s(1), UnsupportedWork, "rate_limit"),
        (app.signature("shop.nobody"), UnknownTask, r"item .0.: task 'shop\.nobody' is not registered"),
        (add.s(1).set(link=app.signature("shop.nobody")), UnknownTask, 'item "0": link'),
        (add.s(1).set(countdown="soon"), InvalidArgument, 'item "0": countdown'),
        (add.s(1).set(eta=5), InvalidArgument, 'item "0": eta'),
        (add.s(1).set(expires=float("nan")), InvalidArgument, 'item "0": expires'),
        (add.s(1).set(time_limit=-1), InvalidArgument, 'item "0": time_limit'),
        (add.s(1).set(priority="urgent"), InvalidArgument, 'item "0": priority'),
    ],
)
def test_options_a_batch_does_not_honour_are_refused(signature: Any, error: type[PoimenError], named: str) -> None:
    """What cannot be honoured is refused by name and item, never dropped (promise D1)."""
    with pytest.raises(error, match=named):
        sliced([signature])


def test_delayed_items_wait_for_their_time() -> None:
    """`countdown` and `eta` make an item due later; a time that has passed does not (promise D1)."""
    eta = datetime.fromtimestamp(NOW + 60, tz=UTC)
    work = [
        add.s(0),
        add.s(1).set(countdown=30),
        add.s(2).set(eta=eta),
        add.s(3).set(eta=eta.isoformat()),
        add.s(4).set(countdown=0),
        add.s(5).set(eta=eta - timedelta(days=1)),
    ]
    slices, _ = sliced(work)
    assert [place for place, _, _ in slices[0].delayed] == [1, 2, 3]
    assert [due - NOW for _, _, due in slices[0].delayed] == pytest.approx([30, 60, 60], abs=5)
    assert ready(slices) == [0, 4, 5]


def test_labels_and_links_travel_with_their_item() -> None:
    """Task id, model id, tags, limit key, expiry and links are kept beside the call (promise D1)."""
    item = Item(
        add.s(1).set(expires=10, link=other.s(1), link_error=[other.s(2)]),
        task_id="T1.1",
        model_id="m",
        tags=["a"],
        limit_key="k",
    )
    (_, _, _, _, extra), (_, _, _, _, nothing) = opened(sliced([item, add.s(2)])[0])
    assert {name: extra[name] for name in "tmgl"} == {"t": "T1.1", "m": "m", "g": ["a"], "l": "k"}
    assert extra["x"] == pytest.approx(NOW + 10, abs=5)
    assert [link["args"] for link in extra["cb"] + extra["eb"]] == [[1], [2]]
    assert nothing == {}
    with pytest.raises(InvalidArgument, match="tags"):
        sliced([Item(add.s(1), tags="abc")])


def test_a_tasks_own_expiry_counts() -> None:
    """`expires` of a task holds for its items, in a map too (promise D1)."""
    for work in ([expiring.s(1)], Map(expiring, [1])):
        assert opened(sliced(work)[0])[0][4]["x"] == pytest.approx(NOW + 60, abs=5)


def test_items_of_several_tasks_fall_into_partitions() -> None:
    """Each task and route is a partition, numbered by first appearance; runs name them (promise D2)."""
    work = [add.s(0), add.s(1), other.s(2), add.s(3).set(queue="q"), add.s(4)]
    slices, parts = sliced(work)
    assert [(part.activity, part.queue) for part in parts] == [
        ("shop.add", "celery"),
        ("shop.other", "celery"),
        ("shop.add", "q"),
    ]
    assert slices[0].runs == [(0, 0, 2), (1, 2, 3), (2, 3, 4), (0, 4, 5)]
    assert [item[3] for item in opened(slices)] == [0, 0, 1, 2, 0]


def test_queue_and_priority_of_a_batch_reach_its_items() -> None:
    """`queue` and `priority` of a dispatch hold for every item, also in a group with options (promise D2)."""
    _, parts = sliced(group(add.s(1), add.s(2)).set(queue="g"), queue="batch", priority="high")
    assert [(part.queue, part.priority) for part in parts] == [("g", 0)]
    assert sliced(Map(add, [1]), queue="batch")[1][0].queue == "batch"


@pytest.mark.parametrize("kind", ["map", "signatures", "ids"])
def test_a_continued_batch_goes_on_where_it_stopped(kind: str) -> None:
    """Skipping what is written gives exactly the rest, with the same positions, ids and partitions (fault A22)."""

    def work() -> Any:
        if kind == "map":
            return Map(add, range(2000))
        if kind == "ids":
            return Map(add, range(2000), ids=(f"i{i}" for i in range(2000)))
        return (Item(add.s(i), id="x") if i == 5 else (add if i < 1200 else other).s(i) for i in range(2000))

    whole, parts = sliced(work())
    rest, continued = sliced(work(), offset=768, parts=tuple(parts[:1]))
    assert opened(rest, 768) == opened(whole)[768:]
    assert continued == parts
    assert ready(rest) == list(range(768, 2000))
    assert all((piece.ids is None) == (kind == "map") for piece in rest)
    assert sliced(work(), offset=2000)[0] == []


def test_a_batch_that_ended_takes_no_more() -> None:
    """A batch whose last chunk is not full cannot grow (fault A22)."""
    assert sliced(Map(add, range(300)), offset=300)[0] == []
    with pytest.raises(InvalidArgument, match="ended at 300 items"):
        sliced(Map(add, range(301)), offset=300)


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"]])
def test_lazy_ids_must_be_as_many_as_values(ids: list[str]) -> None:
    """Too few or too many ids of a lazy map are found when they run out (promise D1)."""
    with pytest.raises(InvalidArgument, match="ids than values"):
        sliced(Map(add, iter([1, 2]), ids=iter(ids)))


def test_no_work_is_no_slice() -> None:
    """An empty work writes nothing (promise D10, fault A09)."""
    assert sliced([]) == ([], [])
    assert sliced(Map(add, [])) == ([], [])
    assert sliced(group()) == ([], [])
