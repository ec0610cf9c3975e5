"""What a worker process offers the lanes that run in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from poimen_tasks.store.values import Part, Ticket, WaitingCall
from poimen_tasks.worker.events import EventStream
from poimen_tasks.worker.pace import Paces
from poimen_tasks.worker.pools import Pool

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.store import Store

__all__ = ["LaneHost"]


@dataclass(slots=True, kw_only=True)
class LaneHost:
    """What a process offers its lanes.

    Attributes:
        publish: publishes tickets; never raises for an unreachable broker.
        publish_calls: publishes plain calls that waited for a result; never raises either.
        leaving: True when the worker shuts down.
        stopping: True when it does, and the grace of running items is over.
        known_elsewhere: whether another worker knows a task (and serves a queue) that this one does not know.
        others_wait: True when messages other than tickets wait for a slot of this worker.
        events: where task events go; None when nobody could be told.
        pool: what can interrupt a body here, and whether a lane blocks the worker's own loop.
        eager: True under `task_always_eager`: the lane never gives way.
    """

    app: Celery
    store: Store
    hostname: str
    paces: Paces
    tracers: dict[str, Any]
    publish: Callable[[Sequence[Ticket], dict[str, Sequence[Part]]], None]
    publish_calls: Callable[[Sequence[WaitingCall]], None]
    leaving: Callable[[], bool]
    others_wait: Callable[[], bool]
    known_elsewhere: Callable[[str, str], bool]
    stopping: Callable[[], bool] = lambda: False
    pool: Pool = field(default_factory=Pool)
    eager: bool = False
    events: EventStream | None = None
