"""What a worker process offers the lanes that run in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from poimen_tasks.worker.events import EventStream
from poimen_tasks.worker.pace import Paces
from poimen_tasks.worker.pools import Pool
from poimen_tasks.worker.publisher import Publisher

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.store import Store

__all__ = ["LaneHost"]


@dataclass(slots=True, kw_only=True)
class LaneHost:
    """What a process offers its lanes.

    Attributes:
        publisher: publishes tickets, and plain calls that waited for a result.
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
    publisher: Publisher
    leaving: Callable[[], bool]
    others_wait: Callable[[], bool]
    known_elsewhere: Callable[[str, str], bool]
    stopping: Callable[[], bool] = lambda: False
    pool: Pool = field(default_factory=Pool)
    eager: bool = False
    events: EventStream | None = None
