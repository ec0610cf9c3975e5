"""Makes one signature or `Item` a normalised call: checked arguments, a partition, an id, a due time, extras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils.time import maybe_make_aware

from poimen_tasks._checks import check_tags
from poimen_tasks.dispatch.registry import task_of
from poimen_tasks.dispatch.routing import ROUTE_OPTIONS, Router
from poimen_tasks.dispatch.signatures import as_list, check_leaves, plain_signature
from poimen_tasks.errors import InvalidArgument, UnsupportedWork
from poimen_tasks.ids import check_label
from poimen_tasks.model import Item

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["OPTIONS", "Call", "CallReader", "check_call"]

OPTIONS = (
    *ROUTE_OPTIONS,
    "countdown",
    "eta",
    "expires",
    "link",
    "link_error",
    "ignore_result",
    "task_id",
)
"""Signature options that a batch honours. `ignore_result` changes nothing: an outcome keeps its result anyway. A
`task_id`, as a frozen signature has one, becomes the item's id, so that using it twice is refused."""

_FROZEN = frozenset({"root_id", "parent_id", "group_id", "group_index", "reply_to"})
_ROUTE = frozenset(ROUTE_OPTIONS)
_KNOWN = frozenset(OPTIONS) | _FROZEN


class Call(NamedTuple):
    """One item, ready to be put into a chunk.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        part: its partition number.
        id: its own id, or None for its position.
        due: when it may run, seconds since 1970; None for at once.
        extra: what it carries besides; the keys are those of `encode_chunk`.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    part: int
    id: str | None
    due: float | None
    extra: dict[str, Any]


def check_call(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> None:
    """Check arguments against the task's parameters, as Celery does when the task's `typing` is on.

    Raises:
        UnsupportedWork: they do not fit.
    """
    header = getattr(task, "__header__", None) if task.typing else None
    if header is None:
        return
    try:
        header(*args, **kwargs)
    except TypeError as error:
        raise UnsupportedWork(f"{what}: arguments do not fit task {task.name}: {error}") from None


class CallReader:
    """Turns signatures and items of one batch into calls."""

    def __init__(self, app: Celery, router: Router, options: Mapping[str, Any]) -> None:
        """Read for one app and one batch.

        Args:
            app: the Celery app.
            router: numbers the partitions.
            options: options of a surrounding canvas; an item's own count first.
        """
        self._app = app
        self._router = router
        self._options = dict(options)
        self._tasks: dict[tuple[str, int, int], Any] = {}

    def is_plain(self, task: Any) -> bool:
        """True when a call of this task without options of its own is nothing but arguments and one partition."""
        return (
            not self._router.by_arguments
            and self._options.keys() <= _ROUTE
            and getattr(task, "expires", None) is None
            and getattr(task, "_dump_pydantic_arguments", None) is None
        )

    def task(self, signature: Any, what: str) -> Any:
        """The app's task of a signature; looked up once for each that made signatures."""
        name = signature.get("task")
        key = (name, id(getattr(signature, "_type", None)), id(getattr(signature, "_app", None)))
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = task_of(self._app, name, signature, what=what)
        return task

    def part(self, task: Any) -> int:
        """The partition of the calls of a task that `is_plain`."""
        return self._router.number(task, self._options, (), {})

    def read(self, member: Any, position: int, now: float) -> Call:
        """Normalise one member.

        Raises:
            UnsupportedWork: an option is not supported, or arguments do not fit.
            UnknownTask: its task is not one of this app.
            InvalidArgument: an option's value is out of its range.
            InvalidId: an id breaks its rule.
        """
        item = member if isinstance(member, Item) else None
        signature = member.signature if isinstance(member, Item) else member
        own = signature.get("options") or {}
        item_id = own.get("task_id") if item is None or item.id is None else item.id
        if item_id is not None:
            item_id = check_label(item_id, f"id of item {position}")
        what = f'item "{position if item_id is None else item_id}"'
        task = self.task(signature, what)
        args, kwargs = _arguments(task, signature, what)
        options = self._merge(task, own, what)
        extra = {} if item is None else _labels(item, what)
        try:
            part = self._router.number(task, options, args, kwargs)
            due, more = self._timing(options, now)
        except InvalidArgument as error:
            raise InvalidArgument(f"{what}: {error}") from None
        extra |= more | self._links(options, what)
        return Call(args, kwargs, part, item_id, due, extra)

    def _merge(self, task: Any, own: Mapping[str, Any], what: str) -> dict[str, Any]:
        options = {name: value for name, value in self._options.items() if value is not None}
        options |= {name: value for name, value in own.items() if value is not None}
        unknown = options.keys() - _KNOWN
        if unknown:
            raise UnsupportedWork(
                f"{what}: signature option {min(unknown)!r} is not supported; a batch honours {', '.join(OPTIONS)}"
            )
        if "expires" not in options and getattr(task, "expires", None) is not None:
            options["expires"] = task.expires
        return options

    def _timing(self, options: Mapping[str, Any], now: float) -> tuple[float | None, dict[str, Any]]:
        due = self._moment(options.get("eta"), now, "eta", relative=False)
        if options.get("countdown") is not None:
            due = self._moment(options["countdown"], now, "countdown", relative=True)
        expires = self._moment(options.get("expires"), now, "expires", relative=True)
        return (due if due is not None and due > now else None), ({} if expires is None else {"x": expires})

    def _moment(self, value: Any, now: float, what: str, *, relative: bool) -> float | None:
        """Seconds since 1970 of a datetime, an ISO 8601 text or, when relative, a number of seconds from now."""
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and relative and abs(value) < float("inf"):
            return now + value
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            return float(maybe_make_aware(moment, self._app.timezone).timestamp())
        except (AttributeError, TypeError, ValueError):
            allowed = "seconds, a datetime or ISO 8601 text" if relative else "a datetime or ISO 8601 text"
            raise InvalidArgument(f"{what} {value!r:.60} is not allowed; use {allowed}") from None

    def _links(self, options: Mapping[str, Any], what: str) -> dict[str, Any]:
        links = {}
        for name, key in (("link", "cb"), ("link_error", "eb")):
            linked = as_list(options.get(name))
            for signature in linked:
                check_leaves(self._app, signature, f"{what}: {name}")
            if linked:
                links[key] = plain_signature(linked)
        return links


def _arguments(task: Any, signature: Mapping[str, Any], what: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    args, kwargs = signature.get("args") or (), signature.get("kwargs") or {}
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise UnsupportedWork(f"{what}: args must be a list and kwargs a dict, got {args!r:.60} and {kwargs!r:.60}")
    check_call(task, args, kwargs, what)
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return (args, kwargs) if dump is None else dump(args, kwargs)


def _labels(item: Item, what: str) -> dict[str, Any]:
    labels: dict[str, Any] = {}
    for key, name, value in (
        ("t", "task_id", item.task_id),
        ("m", "model_id", item.model_id),
        ("l", "limit_key", item.limit_key),
    ):
        if value is not None:
            labels[key] = check_label(value, f"{what}: {name}")
    if item.tags != ():
        labels["g"] = check_tags(f"{what}: tag", item.tags)
    return labels
