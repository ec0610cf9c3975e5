from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import Signature
from kombu.utils import json

from poimen_tasks import InvalidArgument, InvalidId, Poimen, SerializationError, UnknownTask, UnsupportedWork
from poimen_tasks.dispatch.canvas import Map, members, plan
from poimen_tasks.dispatch.handover import hand_over, name_of
from poimen_tasks.dispatch.hidden import encode_callback, pack_canvas
from poimen_tasks.store.scripts import unpack_parts

URL = "redis://localhost:1/0"


@pytest.fixture
def poimen() -> Iterator[Poimen]:
    """An app that never connects."""
    app = Celery("shop", broker=URL, set_as_current=False)

    @app.task(name="shop.double", shared=False)
    def double(x: int) -> int:
        return 2 * x

    @app.task(name="shop.total", shared=False)
    def total(values: list[int]) -> int:
        return sum(values)

    yield Poimen(app, redis_url=URL)
    app.close()


def test_a_step_is_a_signature_that_says_only_what_was_asked(poimen: Poimen) -> None:
    """`each` gives a signature of plain values; what is not said keeps its default where the step runs (promise D2)."""
    step = poimen.each("shop.double")
    assert (step.task, step.args, step.kwargs) == ("poimen.each", (), {"task": "shop.double"})
    assert not step.immutable
    step = poimen.each(
        poimen.celery.tasks["shop.double"], concurrency=None, queue="q", priority="low", workflow="w", stage="s",
        actor="a", star=True,
    )  # fmt: skip
    assert step.kwargs == {
        "task": "shop.double",
        "concurrency": None,
        "queue": "q",
        "priority": "low",
        "workflow": "w",
        "stage": "s",
        "actor": "a",
        "star": True,
    }
    json.dumps(step)


def test_given_values_make_the_step_complete(poimen: Poimen) -> None:
    """With values of its own a step takes nothing from the one before; a lazy iterable is read (promise D1)."""
    step = poimen.each("shop.double", (x for x in (1, 2)))
    assert (tuple(step.args), step.immutable) == (([1, 2],), True)
    assert step.clone((["other"],)).args == step.args
    assert tuple(poimen.each("shop.double").clone(([3],)).args) == ([3],)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"task": "shop.nobody"}, UnknownTask, "each: task 'shop.nobody'"),
        ({"task": 7}, UnknownTask, "each: task 7"),
        ({"task": Signature("shop.double", args=(1,))}, UnsupportedWork, "'shop.double' would be lost"),
        ({"values": 7}, UnsupportedWork, "each of shop.double: expected a list of values, got int 7"),
        ({"values": "text"}, UnsupportedWork, "got str 'text'"),
        ({"values": None}, UnsupportedWork, "got NoneType None"),
        ({"concurrency": "3"}, InvalidArgument, "concurrency '3'"),
        ({"priority": "urgent"}, InvalidArgument, "priority 'urgent'"),
        ({"queue": "a b"}, InvalidId, "queue"),
        ({"workflow": ""}, InvalidId, "workflow"),
        ({"stage": "é"}, InvalidId, "stage"),
        ({"actor": 3}, InvalidId, "actor"),
    ],
)
def test_bad_options_are_refused_where_the_canvas_is_built(
    poimen: Poimen, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    """What is wrong with a step shows when its signature is made, in one error that names it (promise D1)."""
    with pytest.raises(error, match=named):
        poimen.each(**{"task": "shop.double", **options})


def test_a_step_is_no_item(poimen: Poimen) -> None:
    """A batch in a batch is refused by name, wherever it stands; as a callback it is taken (promise D1)."""
    app, step = poimen.celery, poimen.each("shop.double", [1])
    for work in ([step], group(step), chord([step], app.tasks["shop.total"].s()), [dict(step)], [group(step)], step):
        with pytest.raises(UnsupportedWork, match=r"poimen\.each"):
            list(members(app, plan(app, work).calls))
    made = plan(app, [], on_success=poimen.each("shop.double"), on_failure=step)
    assert made.callbacks["on_success"]["task"] == "poimen.each"


def test_a_map_loses_no_arguments() -> None:
    """A map of a signature that has arguments is refused: they would not be passed (promise D1)."""
    app = Celery("shop", broker=URL, set_as_current=False)
    with pytest.raises(UnsupportedWork, match=r"arguments bound to shop\.add would be lost"):
        plan(app, Map(Signature("shop.add", args=(1,)), [1]))


def published(app: Celery, signature: Any) -> bool:
    """True when a callback is published as a plain message."""
    import msgpack

    callback = plan(app, [], on_success=signature).callbacks["on_success"]
    stored = msgpack.unpackb(encode_callback(app, callback, 0.0), raw=True)
    return [part.activity for part in unpack_parts(stored[b"parts"])] == ["poimen.callback"]


def test_which_callbacks_are_published(poimen: Poimen) -> None:
    """A canvas, a step that is a batch, and a signature with an option of Celery's own go out as plain messages."""
    app = poimen.celery
    total = app.tasks["shop.total"]
    for own in (total.s(), total.s().set(queue="q", priority=3, time_limit=4), total.s().set(ignore_result=True)):
        assert not published(app, own)
    frozen = total.s()
    frozen.freeze()
    assert not published(app, frozen)
    for foreign in (
        total.s().set(countdown=3),
        total.s().set(headers={"a": 1}),
        chain(total.s(), total.s()),
        group(total.s()),
        poimen.each("shop.double"),
    ):
        assert published(app, foreign)


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        ("on_success", "called with the results: arguments do not fit task shop.none"),
        ("on_failure", "called with the batch's id: arguments do not fit task shop.none"),
    ],
)
def test_a_callback_that_does_not_fit_is_refused(poimen: Poimen, callback: str, named: str) -> None:
    """A callback is called with one value before its own arguments; a task that takes none is refused (promise D1)."""

    @poimen.celery.task(name="shop.none", shared=False)
    def none() -> None: ...

    with pytest.raises(UnsupportedWork, match=named):
        plan(poimen.celery, [], **{callback: none.s()})
    assert plan(poimen.celery, [], **{callback: none.si()}).callbacks


# --- the place in a canvas -------------------------------------------------------------------------------------------


def placed(poimen: Poimen, **request: Any) -> tuple[Any, Any]:
    """The callback of a step with this request, and the canvas that it publishes."""
    step = poimen.celery.tasks["poimen.each"]
    step.push_request(**{"id": "m", "called_directly": False, **request})
    try:
        callback = hand_over(step, "b")
    finally:
        step.pop_request()
    (canvas,) = callback.args
    return callback, canvas


def test_the_whole_place_is_handed_over(poimen: Poimen) -> None:
    """Id, root, parent, chord, group, links, headers, stamps and the wish for a result go on (fault A24)."""
    alarm, then = {"task": "a"}, {"task": "t"}
    _, canvas = placed(
        poimen,
        root_id="r", parent_id="p", group="g", group_index=3, chord={"task": "body"}, callbacks=[then],
        errbacks=[alarm], headers={"trace": "1"}, stamped_headers=["run"], stamps={"run": ["x"]}, ignore_result=True,
    )  # fmt: skip
    assert (canvas["task"], list(canvas["args"]), canvas["immutable"]) == ("poimen.each.collect", ["b"], True)
    expected = {
        "task_id": "m", "root_id": "r", "parent_id": "p", "group_id": "g", "group_index": 3, "chord": {"task": "body"},
        "headers": {"trace": "1"}, "stamped_headers": ["run"], "run": ["x"], "ignore_result": True,
    }  # fmt: skip
    assert {name: canvas["options"].get(name) for name in expected} == expected
    assert [dict(link) for link in canvas["options"]["link"]] == [then]
    assert [dict(link) for link in canvas["options"]["link_error"]] == [alarm]


def test_the_rest_of_the_chain_is_handed_over(poimen: Poimen) -> None:
    """The steps behind a batch follow in their order, with the message ids they had (promise D1)."""
    steps = [dict(poimen.celery.tasks["shop.total"].s().set(task_id=name)) for name in ("last", "next")]
    _, canvas = placed(poimen, chain=steps)
    assert canvas["task"] == "celery.chain"
    assert [step["options"]["task_id"] for step in canvas["kwargs"]["tasks"]] == ["m", "next", "last"]


def test_what_goes_on_is_published_where_the_step_came_from(poimen: Poimen) -> None:
    """Callback and canvas go to the queue of the step's own message, with its priority (promise D1)."""
    for info, queue in (
        ({"exchange": "", "routing_key": "far", "priority": 6}, "far"),
        ({"exchange": "celery", "routing_key": "celery", "priority": 6}, "celery"),
        ({"exchange": "topics", "routing_key": "a.b", "priority": 6}, None),
    ):
        callback, canvas = placed(poimen, delivery_info=info)
        for options in (callback.options, canvas["options"]):
            assert (options.get("queue"), options["priority"]) == (queue, 6)


def test_a_canvas_that_came_as_json_goes_on(poimen: Poimen) -> None:
    """What the strict codec does not carry travels as it came; what nothing carries is one error (fault A15)."""
    total = poimen.celery.tasks["shop.total"]
    assert pack_canvas(total.s(datetime(2025, 1, 2, tzinfo=UTC)))["task"] == "shop.total"
    naive = pack_canvas(total.s(datetime(2025, 1, 2)))  # noqa: DTZ001 - the point of it
    assert json.loads(naive)["args"] == [datetime(2025, 1, 2)]  # noqa: DTZ001
    with pytest.raises(SerializationError, match="canvas"):
        pack_canvas(total.s({1, 2}))


def test_names_of_messages() -> None:
    """A message id names its batch where it may; any other gets a name of its own, always the same (fault H10)."""
    assert name_of("00f1b8b3-0626-4c84-8cf1-9767fc2761eb") == "00f1b8b3-0626-4c84-8cf1-9767fc2761eb"
    assert name_of("a b") == name_of("a b") != name_of("a c")
    assert name_of("a b").startswith("each-")
