"""Where the items of a batch go: a route is fixed once, at dispatch, and becomes a partition of the batch.

A partition is what all items of one route, activity and set of limits share. Celery's own router decides
(`app.amqp.router`), so `task_routes`, `task_queues`, custom routers, task attributes and signature options mean here
what they mean everywhere. A router that looks at arguments is asked for every item; otherwise a route is computed once
for each distinct combination of task and options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery.app.routes import MapRoute
from celery.exceptions import QueueNotFound
from kombu import Queue

from poimen_tasks.errors import InvalidArgument
from poimen_tasks.ids import check_name
from poimen_tasks.policy import RetryPolicy, policy_of
from poimen_tasks.store.values import Part

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["AMQP", "PRIORITIES", "ROUTE_OPTIONS", "Router", "broker_priority", "check_limits", "speaks_amqp"]

PRIORITIES = ("high", "normal", "low")
"""The priority names of a batch, most urgent first."""

ROUTE_OPTIONS = ("queue", "exchange", "routing_key", "priority", "time_limit", "soft_time_limit")
AMQP = frozenset({"amqp", "amqps", "pyamqp", "py-amqp", "librabbitmq"})
"""The schemes of broker URLs that mean AMQP: RabbitMQ and its like."""
_MAX_LOST = RetryPolicy().max_lost


def speaks_amqp(app: Celery) -> bool:
    """True when the app's broker is RabbitMQ or its like; opens no connection."""
    return str(app.connection_for_write().transport_cls) in AMQP


def broker_priority(app: Celery, priority: str | int | None) -> int | None:
    """Turn a priority name into the broker's number; a number is passed on as it is.

    `normal` is the app's `task_default_priority`, which may be None: the broker's own default. With Redis that is the
    first-served level, so an app that uses `high` sets `task_default_priority`. AMQP serves higher numbers first, in
    queues that are declared with `x-max-priority`; in others every message waits its turn.

    Raises:
        InvalidArgument: neither a known name nor an integer from 0 to 255.
    """
    if priority is None or priority == "normal":
        default: int | None = app.conf.task_default_priority
        return default
    if priority in ("high", "low"):
        # Redis and the other virtual transports serve lower numbers first, AMQP higher ones.
        return 9 if (priority == "high") == speaks_amqp(app) else 0
    if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= 255:
        return priority
    raise InvalidArgument(f"priority {priority!r:.60} is not allowed; use one of {', '.join(PRIORITIES)} or a number")


def _seconds(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InvalidArgument(f"{what} {value!r:.60} is not allowed; use seconds above 0")
    return float(value)


def check_limits(soft: Any, hard: Any) -> tuple[float | None, float | None]:
    """Check a soft and a hard time limit, in seconds.

    Raises:
        InvalidArgument: one is not a number above 0, or the soft limit is above the hard one.
    """
    soft, hard = _seconds(soft, "soft_time_limit"), _seconds(hard, "time_limit")
    if soft is not None and hard is not None and soft > hard:
        raise InvalidArgument(f"soft_time_limit {soft} is above time_limit {hard}; make it less or equal")
    return soft, hard


class Router:
    """Gives each item the number of its partition, and makes partitions in order of first appearance.

    Attributes:
        parts: the partitions so far; a partition's number is its place.
    """

    def __init__(
        self,
        app: Celery,
        *,
        queue: str | None = None,
        priority: str | int | None = "normal",
        known: Sequence[Part] = (),
    ) -> None:
        """Prepare for one batch; opens no connection.

        Args:
            app: the Celery app that routes.
            queue: the queue for items that name none themselves; None leaves it to the app's routes.
            priority: a name of `PRIORITIES` for items that have none themselves.
            known: the partitions of a batch that is continued.

        Raises:
            InvalidId: the queue's name breaks the rule.
            InvalidArgument: there is no such priority.
        """
        self._app = app
        self._queue = None if queue is None else check_name(queue, "queue")
        # "normal" gives way to a task's own priority; another name was asked for and does not.
        self._priority = None if priority in (None, "normal") else broker_priority(app, priority)
        self.parts: list[Part] = list(known)
        self._numbers: dict[Part, int] = {part: number for number, part in enumerate(self.parts)}
        self._seen: dict[tuple[Any, ...], int] = {}
        self._router = app.amqp.router
        routes = self._router.routes  # type: ignore[attr-defined]  # missing in the stubs
        self.by_arguments = not all(isinstance(route, MapRoute) for route in routes)
        """True when the app has a router that may look at arguments."""

    def number(self, task: Any, options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """The partition number of a call.

        Raises:
            InvalidArgument: the route, a limit or the priority is not possible.
        """
        if self.by_arguments:
            return self._number(task, options, args, kwargs)
        key = (task.name, *[_hashable(options.get(name)) for name in ROUTE_OPTIONS]) if options else (task.name,)
        number = self._seen.get(key)
        if number is None:
            number = self._seen[key] = self._number(task, options, args, kwargs)
        return number

    def _number(self, task: Any, options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        part = self._part(task, options, args, kwargs)
        number = self._numbers.setdefault(part, len(self.parts))
        if number == len(self.parts):
            self.parts.append(part)
        return number

    def _merged(self, task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """Task attributes, then what the dispatch said, then the signature's options; the later one counts."""
        own = {name: getattr(task, name, None) for name in ROUTE_OPTIONS}
        batch = {"queue": self._queue, "priority": self._priority}
        said = {name: options.get(name) for name in ROUTE_OPTIONS}
        layers = (own, batch, said)
        return {name: value for layer in layers for name, value in layer.items() if value is not None}

    def _part(self, task: Any, options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Part:
        merged = self._merged(task, options)
        soft, hard = check_limits(merged.get("soft_time_limit"), merged.get("time_limit"))
        route = self._route(task, merged, args, kwargs)
        queue, exchange, routing_key = self._destination(task.name, route)
        policy = policy_of(task)
        return Part(
            queue=check_name(queue, "queue"),
            exchange=exchange,
            routing_key=routing_key,
            priority=broker_priority(self._app, route.get("priority")),
            activity=task.name,
            soft_time_limit=soft,
            time_limit=hard,
            prefetch=policy.prefetch,
            max_lost=_MAX_LOST if policy.retry is None else policy.retry.max_lost,
            cached=policy.cache is not None,
        )

    def _route(
        self, task: Any, merged: dict[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            route: dict[str, Any] = self._router.route(dict(merged), task.name, tuple(args), dict(kwargs), task)
        except QueueNotFound as error:
            raise InvalidArgument(f"task {task.name}: {error.args[0]}; add it there or name another queue") from error
        if merged.get("exchange") is not None and "queue" not in merged:
            route.pop("queue", None)
        return route

    def _destination(self, name: str, route: Mapping[str, Any]) -> tuple[str, str, str]:
        """Queue, exchange and routing key, as Celery publishes to them."""
        exchange = getattr(route.get("exchange"), "name", route.get("exchange"))
        routing_key = route.get("routing_key")
        queue = route.get("queue") or self._bound(name, exchange, routing_key)
        if not isinstance(queue, Queue):
            queue = self._app.amqp.queues[queue]
        if (not exchange or not routing_key) and queue.exchange.type == "direct":
            return queue.name, "", queue.name
        exchange = queue.exchange.name if exchange is None else exchange
        return queue.name, exchange, routing_key or queue.routing_key or self._app.conf.task_default_routing_key

    def _bound(self, name: str, exchange: str | None, routing_key: str | None) -> Queue:
        """The queue behind a bare exchange: a runner serves a queue, so there must be one that this app knows."""
        for queue in self._app.amqp.queues.values():
            for bound, key in _bindings(queue):
                if bound.name == exchange and (routing_key is None or _leads(bound.type, key or "", routing_key)):
                    return queue
        raise InvalidArgument(
            f"task {name}: exchange {exchange!r} with routing key {routing_key!r} leads to none of this app's queues; "
            "name the queue too"
        )


def _bindings(queue: Queue) -> list[tuple[Any, str | None]]:
    """Exchange and routing key of each binding of a queue."""
    several = getattr(queue, "bindings", None) or ()
    return [(binding.exchange, binding.routing_key) for binding in several] or [(queue.exchange, queue.routing_key)]


def _leads(kind: str, bound: str, routing_key: str) -> bool:
    """Whether a message of this routing key goes to a queue that is bound with that one."""
    if kind == "topic":
        return _fits(bound.split("."), routing_key.split("."))
    return kind == "fanout" or bound == routing_key


def _fits(pattern: list[str], words: list[str]) -> bool:
    """`*` stands for one word, `#` for any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_fits(pattern[1:], words[taken:]) for taken in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _fits(pattern[1:], words[1:])


def _hashable(value: Any) -> Any:
    """Queues and exchanges stand for their names in a key."""
    return value if value is None or isinstance(value, str | int | float) else getattr(value, "name", repr(value))
