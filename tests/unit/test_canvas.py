from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group, shared_task
from celery.canvas import Signature, xmap

from poimen_tasks.dispatch.canvas import Map, StarMap, members, plan
from poimen_tasks.errors import InvalidArgument, PoimenError, SerializationError, UnknownTask, UnsupportedWork
from poimen_tasks.model import Item


def make_app(name: str = "shop") -> Celery:
    return Celery(name, broker="redis://localhost:1/0", set_as_current=False)


app = make_app()


@app.task(name="shop.add", shared=False)
def add(x: int, y: int = 0) -> int:
    return x + y


@app.task(name="shop.total", shared=False)
def total(values: list[int]) -> int:
    return sum(values)


@app.task(name="shop.alarm", shared=False)
def alarm(batch: str) -> None:
    pass


@app.task(name="shop.slow", shared=False, rate_limit="1/s")
def slow(x: int) -> int:
    return x


def calls(work: Any) -> list[tuple[list[Any], dict[str, Any]]]:
    found = members(app, plan(app, work).calls)
    signatures = [member.signature if isinstance(member, Item) else member for member in found]
    return [(list(signature["args"]), dict(signature["options"])) for signature in signatures]


@pytest.mark.parametrize(
    "work",
    [
        group(add.s(1), add.s(2), add.s(3)),
        group(add.s(i) for i in (1, 2, 3)),
        [add.s(1), Item(add.s(2), id="two"), add.s(3)],
        (add.s(i) for i in (1, 2, 3)),
        [group(add.s(1), add.s(2)), chain(add.s(3))],
        [add.s(1), group(add.s(2), group(add.s(9))).tasks[0], add.s(3)],
        chord([add.s(1), add.s(2), add.s(3)], total.s()),
        json.loads(json.dumps(group(add.s(1), add.s(2), add.s(3)))),
        json.loads(json.dumps(chord([add.s(1), add.s(2), add.s(3)], total.s()))),
        [json.loads(json.dumps(add.s(i))) for i in (1, 2, 3)],
        [{"task": "shop.add", "args": [i]} for i in (1, 2, 3)],
    ],
    ids=lambda work: type(work).__name__,
)
def test_every_listed_kind_of_work_is_a_series_of_calls(work: Any) -> None:
    """A group, a chord, an iterable and their plain dicts are the same calls in the same order (promise D1)."""
    assert [args for args, _ in calls(work)] == [[1], [2], [3]]


@pytest.mark.parametrize(
    "work",
    [[], (), iter(()), group(), group([]), chord([], total.s()), chord(group(), total.s()), Map(add, [])],
    ids=lambda work: type(work).__name__,
)
def test_empty_work_is_work(work: Any) -> None:
    """Nothing to do is no error; its callbacks are kept (promise D10, fault A09)."""
    made = plan(app, work, on_complete=alarm.s())
    assert made.callbacks["on_complete"]["task"] == "shop.alarm"
    if not isinstance(made.calls, Map):
        assert list(members(app, made.calls)) == []


def test_a_generator_is_consumed_only_as_far_as_it_is_read() -> None:
    """A generator of calls is never exhausted first (promise D1, fault A20)."""
    taken: list[int] = []

    def produce() -> Iterator[Signature[Any]]:
        for i in range(1000):
            taken.append(i)
            yield add.s(i)

    stream = members(app, plan(app, produce()).calls)
    assert taken == []
    next(stream)
    assert taken == [0]


def test_celery_maps_are_read() -> None:
    """`task.map` and `task.starmap` become maps of the same task, also as plain dicts (promise D1)."""
    for work in (add.map([1, 2]), json.loads(json.dumps(add.map([1, 2])))):
        made = plan(app, work).calls
        assert type(made) is Map
        assert (made.task, list(made.iterable)) == ("shop.add", [1, 2])
    made = plan(app, add.starmap([(1, 2)]).set(queue="slow"))
    assert type(made.calls) is StarMap
    assert made.options == {"queue": "slow"}


def test_options_of_a_group_reach_its_members() -> None:
    """A nested group's options are its members', whose own count first (promise D1)."""
    inner = group(add.s(1), add.s(2).set(queue="b")).set(queue="a")
    assert calls([inner]) == [([1], {"queue": "a"}), ([2], {"queue": "b"})]
    assert plan(app, inner).options == {"queue": "a"}


def test_the_size_is_known_only_when_it_is_certain() -> None:
    """A size is exact or not told: a nested group or a lazy series may hold any number (promise D6)."""
    assert plan(app, [add.s(1), Item(add.s(2))]).size_hint == 2
    assert plan(app, group(add.s(1))).size_hint == 1
    assert plan(app, Map(add, range(9))).size_hint == 9
    assert plan(app, [add.s(1), group(add.s(2), add.s(3))]).size_hint is None
    assert plan(app, [chain(add.s(1))]).size_hint is None
    assert plan(app, group(add.s(i) for i in range(3))).size_hint is None
    assert plan(app, Map(add, iter([1]))).size_hint is None


def test_a_chords_body_runs_on_success_and_its_errbacks_on_failure() -> None:
    """A chord's body and the body's errbacks are callbacks of the batch (promise D1, fault A13)."""
    body = total.s().on_error(alarm.s())
    made = plan(app, chord([add.s(1)], body)).callbacks
    assert made["on_success"]["task"] == "shop.total"
    assert made["on_failure"]["task"] == "shop.alarm"
    assert "on_complete" not in made
    json.dumps(made)


def test_several_errbacks_become_a_group() -> None:
    """Each errback of a body and `on_failure` itself are kept (fault A13)."""
    body = total.s().on_error(alarm.s())
    failure = plan(app, chord([add.s(1)], body), on_failure=alarm.si("other")).callbacks["on_failure"]
    assert failure["task"] == "celery.group"
    assert [task["args"] for task in failure["kwargs"]["tasks"]] == [["other"], []]


def test_options_of_a_chord_are_its_bodys() -> None:
    """What is set on a chord is meant for its body, as in Celery (promise D1)."""
    made = plan(app, chord([add.s(1)], total.s().set(priority=3)).set(queue="reports")).callbacks["on_success"]
    assert made["options"] == {"priority": 3, "queue": "reports"}


def test_a_canvas_may_be_a_callback() -> None:
    """A callback may be a group or a chain of this app's tasks (fault A23)."""
    made = plan(
        app, [add.s(1)], on_success=chain(total.s(), add.s(1)), on_complete=group(alarm.s(), alarm.s())
    ).callbacks
    assert made["on_success"]["task"] == "celery.chain"
    assert len(made["on_complete"]["kwargs"]["tasks"]) == 2


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (add.chunks([(1, 2)], 1), "chunks"),
        ([add.chunks([(1, 2)], 1)], "chunks"),
        ([add.map([1])], "xmap"),
        ([add.starmap([(1,)])], "xstarmap"),
        ([chord([add.s(1)], total.s())], "a chord"),
        (chord([chord([add.s(1)], total.s())], total.s()), "a chord"),
        (chain(add.s(1), add.s(2)), "a chain"),
        ([chain(add.s(1), add.s(2))], "a chain of 2 steps"),
        ([Item(group(add.s(1)))], "a group"),
        (add.s(1), "single call"),
        (Item(add.s(1)), "single call"),
        (add, "not supported"),
        ("text", "str"),
        (b"text", "bytes"),
        ({"a": 1}, "dict"),
        (7, "int"),
        (None, "NoneType"),
        ([add.s(1), 7], 'item "1": int'),
        ([Item(7, id="x")], 'item "x": int'),  # type: ignore[arg-type]
        (xmap(add.s(1), [1]), "bound"),
        (Map(add, "text"), "map: str"),
        (Map(add, 7), "map: int"),  # type: ignore[arg-type]
        (group(add.s(1)).set(link=total.s()), "link"),
        (Map(slow, [1]), "rate_limit"),
    ],
)
def test_what_a_batch_does_not_take_is_refused_by_name(work: Any, named: str) -> None:
    """Other canvas, and what is no work at all, is one error that names it (promise D1, fault A12)."""
    with pytest.raises(UnsupportedWork, match=named):
        list(members(app, plan(app, work).calls))


@pytest.mark.parametrize(
    ("callback", "error", "named"),
    [
        (group(), UnsupportedWork, "empty group"),
        (total, UnsupportedWork, "on_success"),
        ("shop.total", UnsupportedWork, "str"),
        (Signature("shop.unknown"), UnknownTask, r"shop\.unknown"),
        (group(total.s(), Signature("shop.unknown")), UnknownTask, r"shop\.unknown"),
        (total.s().set(link=Signature("shop.unknown")), UnknownTask, r"shop\.unknown"),
        (total.s({1, 2}), SerializationError, "on_success"),
    ],
)
def test_a_callback_that_could_not_run_is_refused(callback: Any, error: type[PoimenError], named: str) -> None:
    """A callback that would never run, or not here, is refused at dispatch (fault A16)."""
    with pytest.raises(error, match=named):
        plan(app, [add.s(1)], on_success=callback)


def test_an_empty_group_is_no_body() -> None:
    """A chord whose body is an empty group is refused (fault A09)."""
    with pytest.raises(UnsupportedWork, match="empty group"):
        plan(app, chord([add.s(1)], group()))


def test_a_chord_needs_one_body() -> None:
    """A chord without a body, or with `on_success` beside it, is refused (promise D1)."""
    with pytest.raises(UnsupportedWork, match="without a body"):
        plan(app, chord([add.s(1)]))
    with pytest.raises(InvalidArgument, match="on_success"):
        plan(app, chord([add.s(1)], total.s()), on_success=total.s())


def test_ids_must_be_as_many_as_values() -> None:
    """Ids and values of a map that differ in number are refused before anything is read (promise D1)."""
    with pytest.raises(InvalidArgument, match="2 ids for 3 values"):
        plan(app, Map(add, [1, 2, 3], ids=["a", "b"]))


def test_a_task_of_another_app_is_refused() -> None:
    """A name that two apps share does not make their tasks the same; a shared task is the same (promise D1)."""
    other, ours = make_app("other"), make_app("ours")

    @other.task(name="shop.same", shared=False)
    def theirs() -> None: ...

    @ours.task(name="shop.same", shared=False)
    def own() -> None: ...

    @shared_task(name="shop.shared")
    def everywhere() -> None: ...

    with pytest.raises(UnknownTask, match="'other', not of app 'ours'"):
        plan(ours, [own.s()], on_success=theirs.s())
    with pytest.raises(UnknownTask, match="'other', not of app 'ours'"):
        plan(ours, Map(theirs, [1]))
    with pytest.raises(UnknownTask, match="not registered"):
        plan(ours, Map(add, [1]))
    assert plan(ours, [], on_success=other.tasks["shop.shared"].si()).callbacks["on_success"]["task"] == "shop.shared"
