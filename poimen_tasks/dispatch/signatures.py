"""Signatures that run later: callbacks of a batch, a chord's body, links of an item. They travel as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from celery.canvas import group, signature

from poimen_tasks import codec
from poimen_tasks.dispatch.registry import own_task
from poimen_tasks.errors import InvalidArgument, UnsupportedWork

if TYPE_CHECKING:
    from celery import Celery

__all__ = [
    "CANVAS",
    "COLLECT_TASK",
    "EACH_TASK",
    "INTERNAL_OPTIONS",
    "as_list",
    "body_of",
    "callback_of",
    "canvas_name",
    "check_leaves",
    "plain_signature",
]

CANVAS = {
    "celery.chunks": "chunks",
    "celery.map": "a map (xmap)",
    "celery.starmap": "a starmap (xstarmap)",
    "celery.chord": "a chord",
    "celery.chain": "a chain",
    "celery.group": "a group",
}
"""The task names of Celery's canvas, and what they are called."""

EACH_TASK = "poimen.each"
"""The task that is a batch as a step of a canvas."""

COLLECT_TASK = "poimen.each.collect"
"""The task that takes that step's place when its batch is over."""

INTERNAL_OPTIONS = frozenset(
    {"root_id", "parent_id", "group_id", "group_index", "reply_to", "chord", "link", "link_error", "task_id"}
)
"""Options that Celery itself puts on a canvas; they say nothing about the items inside one."""


def canvas_name(work: Any) -> str | None:
    """The task name of a signature, or of a dict that is one; None for anything else."""
    name = work.get("task") if isinstance(work, dict) else None
    return name if isinstance(name, str) else None


def as_list(value: Any) -> list[Any]:
    """An option that holds one signature or several, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def plain_signature(value: Any) -> Any:
    """A signature, and all signatures inside it, as plain dicts and lists that the codec carries."""
    if isinstance(value, dict):
        return {name: plain_signature(inner) for name, inner in value.items()}
    return [plain_signature(inner) for inner in value] if isinstance(value, list | tuple) else value


def check_leaves(app: Celery, later: Any, what: str) -> None:
    """Check that a signature to run later, and all inside it, are calls of tasks of this app.

    Raises:
        UnsupportedWork: it is not a signature.
        UnknownTask: one of them is not registered, or belongs to another app.
    """
    if canvas_name(later) is None:
        raise UnsupportedWork(f"{what}: {type(later).__name__} {later!r:.60} is not a signature; use task.s(...)")
    for leaf in _leaves(later):
        name = canvas_name(leaf)
        # Celery registers its canvas with every app, and builds a canvas for whichever is current.
        own_task(app, name, None if name in CANVAS else leaf, what=what)


def _leaves(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every signature below a canvas, its links included; arguments of a task are not looked into."""
    for one in as_list(value):
        yield one
        inner = one["kwargs"] if canvas_name(one) in CANVAS else {}
        options = one.get("options") or {}
        for below in (*map(inner.get, ("tasks", "header", "body", "task")), *map(options.get, ("link", "link_error"))):
            yield from _leaves(below)


def body_of(app: Celery, chord: Mapping[str, Any]) -> dict[str, Any]:
    """A chord's body as plain values, with the options given to the chord, which in Celery are its body's.

    Raises:
        UnsupportedWork: there is no body, or it is not a signature.
        UnknownTask: it, or something in it, is not a task of this app.
    """
    body = chord["kwargs"].get("body")
    if body is None:
        raise UnsupportedWork("work: a chord without a body is not supported; give it one, or use a group")
    check_leaves(app, body, "chord body")
    plain: dict[str, Any] = plain_signature(body)
    options, given = dict(plain.get("options") or {}), plain_signature(dict(chord.get("options") or {}))
    for name in ("link", "link_error"):
        linked = as_list(options.get(name)) + as_list(given.get(name))
        if linked:
            options[name] = linked
    options |= {name: value for name, value in given.items() if name not in INTERNAL_OPTIONS}
    return {**plain, "options": options}


def callback_of(app: Celery, name: str, given: list[Any]) -> dict[str, Any] | None:
    """One signature, as plain values, for all that was given for a callback; None when nothing was.

    Several errbacks become a group; a batch that succeeded has one next step.

    Raises:
        UnsupportedWork: not a signature, or an empty group.
        UnknownTask: a task that is not one of this app.
        InvalidArgument: both a chord's body and `on_success` were given.
        SerializationError: an argument cannot travel.
    """
    wanted = [later for later in given if later is not None]
    for later in wanted:
        check_leaves(app, later, name)
        if later["task"] == "celery.group" and not list(later["kwargs"]["tasks"]):
            raise UnsupportedWork(f"{name}: an empty group is not supported as a callback; it would never run anything")
    if len(wanted) > 1 and name == "on_success":
        raise InvalidArgument(f"{name}: the chord's body is that already; give one of the two, or a group as the body")
    if not wanted:
        return None
    plain = [plain_signature(later) for later in wanted]
    made: dict[str, Any] = plain[0] if len(plain) == 1 else plain_signature(group(map(signature, plain)))
    codec.encode(made, what=name)
    return made
