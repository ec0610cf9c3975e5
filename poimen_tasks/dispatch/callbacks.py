"""Reads the callbacks of a batch: a chord's body and errbacks, and the signatures given beside the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from celery.canvas import group, maybe_signature

from poimen_tasks import codec
from poimen_tasks.errors import InvalidArgument, UnknownTask, UnsupportedWork

if TYPE_CHECKING:
    from celery import Celery

__all__ = [
    "CANVAS", "INTERNAL_OPTIONS", "SIMPLE", "as_list", "body_of", "callback_of", "canvas_name", "check_leaves", "plain_signature"
]

INTERNAL_OPTIONS = frozenset(
    {"root_id", "parent_id", "group_id", "group_index", "reply_to", "chord", "link", "link_error", "task_id"}
)
"""Options that Celery itself puts on a canvas; they say nothing about the items inside one."""

SIMPLE = {
    "celery.chunks": "chunks",
    "celery.map": "a map (xmap)",
    "celery.starmap": "a starmap (xstarmap)",
    "celery.chord": "a chord",
    "celery.chain": "a chain",
}
"""Canvases other than a group, in words."""

CANVAS = {**SIMPLE, "celery.group": "a group"}
"""Task names of signatures that are a canvas, not a call, and what they are in words."""


def canvas_name(work: Any) -> str | None:
    """The task name of a signature, or of a dict that is one; None for anything else."""
    return work.get("task") if isinstance(work, dict) and "kwargs" in work else None


def as_list(value: Any) -> list[Any]:
    """None is an empty list, a single value a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def plain_signature(value: Any) -> Any:
    """A signature, and all signatures inside it, as plain dicts and lists that the codec carries."""
    if isinstance(value, dict):
        return {name: plain_signature(inner) for name, inner in value.items()}
    return [plain_signature(inner) for inner in value] if isinstance(value, list | tuple) else value


def body_of(app: Celery, chord: Mapping[str, Any]) -> Any:
    """A chord's body with the options given to the chord, which in Celery are its body's.

    Raises:
        UnsupportedWork: there is none, or it is not a signature.
    """
    body = chord["kwargs"].get("body")
    if body is None:
        raise UnsupportedWork("work: a chord without a body is not supported; give it one, or use a group")
    if canvas_name(body) is None:
        raise UnsupportedWork(f"chord body: {type(body).__name__} {body!r:.60} is not a signature; use task.s(...)")
    body = maybe_signature(plain_signature(body), app=app)
    given = {**(chord.get("options") or {})}
    for name in ("link", "link_error"):
        linked = as_list(given.pop(name, None))
        if linked:
            body["options"] = {**body["options"], name: [*as_list(body["options"].get(name)), *linked]}
    body["options"] = {**body["options"], **{n: v for n, v in given.items() if n not in INTERNAL_OPTIONS}}
    return body


def callback_of(app: Celery, name: str, given: list[Any]) -> dict[str, Any] | None:
    """The signatures of one callback as a single one, in plain values; more than one become a group, none is None.

    Raises:
        UnsupportedWork: one is not a signature, or an empty group.
        UnknownTask: one calls a task that this app does not have.
        InvalidArgument: two for `on_success`.
        SerializationError: arguments that cannot travel.
    """
    signatures = [signature for signature in given if signature is not None]
    for signature in signatures:
        _check(app, name, signature)
    if len(signatures) > 1 and name == "on_success":
        raise InvalidArgument(
            "on_success: the chord's body is that already; give one of the two, or a group as the body"
        )
    if not signatures:
        return None
    plain = [plain_signature(signature) for signature in signatures]
    made = plain[0] if len(plain) == 1 else plain_signature(group(maybe_signature(one, app=app) for one in plain))
    codec.encode(made, what=name)
    return dict(made)


def _check(app: Celery, name: str, signature: Any) -> None:
    check_leaves(app, signature, name)
    if signature["task"] == "celery.group" and not list(signature["kwargs"]["tasks"]):
        raise UnsupportedWork(f"{name}: an empty group is not supported as a callback; it would never run anything")


def _leaves(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every signature below a canvas, its links included; arguments of a task are not looked into."""
    for one in as_list(value):
        yield one
        inner = one["kwargs"] if one["task"] in CANVAS else {}
        options = one.get("options") or {}
        for below in (*map(inner.get, ("tasks", "header", "body", "task")), *map(options.get, ("link", "link_error"))):
            yield from _leaves(below)


def check_leaves(app: Celery, signature: Any, what: str) -> None:
    """Check that a signature to run later, and all inside it, are calls of tasks of this app.

    Raises:
        UnsupportedWork: it is not a signature.
        UnknownTask: one of them is not registered.
    """
    if canvas_name(signature) is None:
        raise UnsupportedWork(f"{what}: {type(signature).__name__} {signature!r:.60} is not a signature; use task.s(...)")
    for leaf in _leaves(signature):
        if leaf["task"] not in app.tasks:
            raise UnknownTask(f"{what}: task {leaf['task']!r:.120} is not registered with app {app.main!r}")
