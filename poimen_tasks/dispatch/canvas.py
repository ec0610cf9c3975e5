"""Reads Celery's canvas: work becomes a stream of single calls, and what surrounds it becomes callbacks.

What is taken: `group`, `chord` (its header is the items, its body runs on success, the body's errbacks on failure),
`task.map(it)` and `task.starmap(it)`, `Map` and `StarMap`, and any iterable of signatures and `Item`, consumed lazily.
A group inside a list is flattened and a chain of one step is its step; every other nesting is refused by name. A
partial signature is a complete call: a batch adds no arguments. Signatures may be plain dicts, as after a round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic

from celery.canvas import Signature

from poimen_tasks._checks import expected
from poimen_tasks.dispatch.calls import check_call
from poimen_tasks.dispatch.registry import task_of
from poimen_tasks.dispatch.signatures import (
    CANVAS,
    EACH_TASK,
    INTERNAL_OPTIONS,
    as_list,
    body_of,
    callback_of,
    canvas_name,
)
from poimen_tasks.errors import InvalidArgument, UnsupportedWork
from poimen_tasks.model import Item, R_co

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Map", "Plan", "StarMap", "is_series", "members", "plan"]

_PARTS = frozenset({"tasks", "task", "it", "header", "body", "kwargs"})
"""What Celery keeps of a canvas among its keyword arguments."""

_TAKEN = "a batch takes a group, a chord, map, starmap or an iterable of signatures"

_NO_CALLS = {**CANVAS, EACH_TASK: "poimen.each (a step of a chain)"}
"""Signatures that are not one call of a task, and what they are called."""


@dataclass(frozen=True, slots=True)
class Map(Generic[R_co]):
    """Calls a task once for each value, with the value as its only argument.

    The fast path of a batch: no signature is built for an item, and a lazy iterable is consumed in slices.

    Attributes:
        task: a task of the app, or its name.
        iterable: the values.
        ids: an id for each, in the same order; None: the position.
    """

    task: Any
    iterable: Iterable[Any]
    ids: Iterable[str] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class StarMap(Map[R_co]):
    """Calls a task once for each row: a list or tuple is its positional arguments, a dict its keyword arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Work, read but not yet encoded.

    Attributes:
        calls: a `Map`, or the iterable that `members` flattens.
        options: what a surrounding canvas says about every item; an item's own options count first.
        queue: the queue for items that name none.
        priority: `high`, `normal` or `low`, for items that have none.
        callbacks: `on_success`, `on_failure`, `on_complete` → a signature as plain values; absent when there is none.
        size_hint: exactly how many items, when that is known without consuming anything.
    """

    calls: Map | Iterable[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    priority: str = "normal"
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    size_hint: int | None = None


def plan(
    app: Celery,
    work: Any,
    *,
    queue: str | None = None,
    priority: str = "normal",
    on_success: Any = None,
    on_failure: Any = None,
    on_complete: Any = None,
) -> Plan:
    """Read work without consuming it.

    Args:
        app: the Celery app whose tasks may be called.
        work: see the module.
        queue: the queue for items that name none.
        priority: `high`, `normal` or `low`.
        on_success: a signature to run when all items succeeded; a chord's body is one already.
        on_failure: a signature to run when the batch is over and not all succeeded; a chord's errbacks join it.
        on_complete: a signature to run when the batch is over.

    Raises:
        UnsupportedWork: a kind of work or callback that a batch does not take; the message names it.
        UnknownTask: a callback, or the task of a map, is not a task of this app.
        SerializationError: a callback has arguments that cannot travel.
        InvalidArgument: a chord and `on_success` at once, or another number of ids than of values.
    """
    success, failure = [on_success], [on_failure]
    if canvas_name(work) == "celery.chord":
        _refuse_arguments(work)
        work, body = work["kwargs"]["header"], body_of(app, work)
        success.append(body)
        failure += as_list(body.get("options", {}).get("link_error"))
    calls, options = _calls(app, work)
    wanted = {"on_success": success, "on_failure": failure, "on_complete": [on_complete]}
    made = {name: callback_of(app, name, given) for name, given in wanted.items()}
    for name, given in wanted.items():
        for later in given:
            _check_fits(app, later, name)
    return Plan(
        calls=calls,
        options=options,
        queue=queue,
        priority=priority,
        callbacks={name: callback for name, callback in made.items() if callback is not None},
        size_hint=_size(calls),
    )


def _check_fits(app: Celery, later: Any, name: str) -> None:
    """Refuse a callback whose task does not take what it will be called with, as an errback of three arguments."""
    if later is None or canvas_name(later) in _NO_CALLS:
        return
    given = () if later.get("immutable") else (None,)
    called = "its own arguments" if not given else "the results" if name == "on_success" else "the batch's id"
    args, kwargs = later.get("args") or (), later.get("kwargs") or {}
    check_call(app.tasks[later["task"]], (*given, *args), kwargs, f"{name}, called with {called}")


# --- the kinds of work -------------------------------------------------------------------------------------------


def _calls(app: Celery, work: Any) -> tuple[Map | Iterable[Any], dict[str, Any]]:
    """The calls of a piece of work, and the options that surround them."""
    if isinstance(work, Map):
        _check_map(app, work)
        return work, {}
    name = canvas_name(work)
    if name == "celery.group":
        return work["kwargs"]["tasks"], _surrounding(work)
    if name in ("celery.map", "celery.starmap"):
        return _map(app, work), _surrounding(work["kwargs"]["task"]) | _surrounding(work)
    if name == "celery.chain" and len(work["kwargs"]["tasks"]) == 1:
        return _calls(app, work["kwargs"]["tasks"][0])
    if name is not None or isinstance(work, Item):
        if str(name) not in _NO_CALLS:
            raise UnsupportedWork("work: a single call is not supported; put it in a list: dispatch([task.s(...)])")
        hint = "; for a batch as a step of a chain there is poimen.each" if name == "celery.chain" else ""
        raise UnsupportedWork(f"work: {_NO_CALLS[str(name)]} is not supported; {_TAKEN}{hint}")
    if isinstance(getattr(work, "name", None), str) and callable(getattr(work, "s", None)):
        raise UnsupportedWork(f"work: task {work.name} alone is not supported; use poimen.map(task, values)")
    if isinstance(work, Mapping) or not is_series(work):
        raise UnsupportedWork(f"work: {type(work).__name__} {work!r:.60} is not supported; {_TAKEN}")
    return work, {}


def _check_map(app: Celery, work: Map) -> None:
    if isinstance(work.task, dict) and (work.task.get("args") or work.task.get("kwargs")):
        raise UnsupportedWork(f"map: arguments bound to {work.task['task']} would be lost; pass them in every row")
    task_of(app, work.task)
    if not is_series(work.iterable):
        raise UnsupportedWork(f"map: {type(work.iterable).__name__} {work.iterable!r:.60} has no values to call with")
    ids: Any = work.ids
    if ids is not None and (not isinstance(ids, Iterable) or isinstance(ids, _NO_IDS)):
        raise expected("map: ids", "a list of item ids, one for each value, in the same order", ids)


def is_series(value: Any) -> bool:
    """True for what can be iterated, but for texts; a task looks iterable until it is tried."""
    try:
        iter(value)
    except TypeError:
        return False
    return not isinstance(value, str | bytes)


def _surrounding(canvas: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_arguments(canvas)
    options = canvas.get("options") or {}
    for name in ("link", "link_error"):
        if options.get(name):
            raise UnsupportedWork(
                f"work: {name} on {canvas['task']} is not supported; link single calls, or use on_success"
            )
    return {name: value for name, value in options.items() if name not in INTERNAL_OPTIONS and value is not None}


def _refuse_arguments(canvas: Mapping[str, Any]) -> None:
    if canvas.get("args") or canvas["kwargs"].keys() - _PARTS:
        raise UnsupportedWork(f"work: arguments given to {canvas['task']} are not supported; give them to its members")


def _map(app: Celery, work: Mapping[str, Any]) -> Map:
    inner, iterable = work["kwargs"]["task"], work["kwargs"]["it"]
    if inner.get("args") or inner.get("kwargs"):
        raise UnsupportedWork(f"work: arguments bound to {inner['task']} are lost in a map; pass them in every row")
    task_of(app, inner["task"], inner)
    return (Map if work["task"] == "celery.map" else StarMap)(inner["task"], iterable)


def _size(calls: Map | Iterable[Any]) -> int | None:
    if isinstance(calls, Map):
        size = _length(calls.iterable)
        ids = size if calls.ids is None else _length(calls.ids)
        if size is not None and ids is not None and ids != size:
            raise InvalidArgument(f"map: there are {ids} ids for {size} values; give one each, or none")
        return size
    if not isinstance(calls, list | tuple) or _length(calls) is None or not set(map(type, calls)) <= _ONE_EACH:
        return None
    flat = CANVAS.keys().isdisjoint(member.get("task") for member in calls if type(member) is Signature)
    return len(calls) if flat else None


def _length(values: Any) -> int | None:
    # Celery's lazy list answers len() by consuming its generator, so only what is really a container is asked.
    return len(values) if type(values) in _CONTAINERS else None


_CONTAINERS = frozenset({list, tuple, range, dict, set, frozenset})
#: What has no members that could be ids, or not in the order of the values. Keys of a dict have one.
_NO_IDS = (str, bytes, bytearray, Mapping, set, frozenset)
_ONE_EACH = frozenset({Signature, Item})


# --- members of an iterable --------------------------------------------------------------------------------------


def members(app: Celery, calls: Iterable[Any]) -> Iterator[Any]:
    """Flatten an iterable into single signatures and items, one at a time.

    Raises:
        UnsupportedWork: a member is not a call; its place and what it is are named.
    """
    place = 0
    for member in calls:
        if type(member) is Signature and member.get("task") not in _NO_CALLS:
            yield member
            place += 1
            continue
        for inner in _expand(app, member, place):
            yield inner
            place += 1


def _expand(app: Celery, member: Any, place: int) -> Iterator[Any]:
    if isinstance(member, Item):
        signature = _single(app, member.signature, f'item "{member.id or place}"')
        yield member if signature is member.signature else replace(member, signature=signature)
        return
    what = f'item "{place}"'
    if canvas_name(member) != "celery.group":
        yield _single(app, member, what)
        return
    options = _surrounding(member)
    for inner in members(app, member["kwargs"]["tasks"]):
        yield _with_options(app, inner, options) if options else inner


def _with_options(app: Celery, member: Any, options: dict[str, Any]) -> Any:
    if isinstance(member, Item):
        return replace(member, signature=_with_options(app, member.signature, options))
    clone = member.clone()
    clone["options"] = {**options, **clone["options"]}
    return clone


def _single(app: Celery, member: Any, what: str) -> Signature[Any]:
    """Check that a member is one call of a task, and make it a signature."""
    name = canvas_name(member)
    if name is None:
        raise UnsupportedWork(
            f"{what}: {type(member).__name__} {member!r:.60} is not a signature; use task.s(...) or Item"
        )
    if name == "celery.chain":
        steps = member["kwargs"]["tasks"]
        if len(steps) == 1:
            return _single(app, steps[0], what)
        raise UnsupportedWork(f"{what}: a chain of {len(steps)} steps is not supported; one call is one item")
    if name in _NO_CALLS:
        raise UnsupportedWork(f"{what}: {_NO_CALLS[name]} is not supported here; one call is one item")
    if isinstance(member, Signature):
        return member
    whole: Any = {"args": (), "kwargs": {}, "options": {}, **member}
    return Signature(whole, app=app)
