"""What a process keeps for the lanes that run in it: its connections, its events, and what it has learnt."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from poimen_tasks.store import Store
from poimen_tasks.worker.deployments import known_elsewhere
from poimen_tasks.worker.events import EventStream
from poimen_tasks.worker.host import LaneHost
from poimen_tasks.worker.lane import Lane
from poimen_tasks.worker.pace import Paces
from poimen_tasks.worker.pools import Pool
from poimen_tasks.worker.publisher import Publisher
from poimen_tasks.worker.shared import SharedState

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["LaneProcess"]

log = logging.getLogger(__name__)


class LaneProcess:
    """Of a worker's pool, or the process of whoever calls a batch's tasks eagerly.

    Attributes:
        hostname: the worker's name; empty where there is none.
        pool: the worker's.
        publisher: for whatever happens in this process.

    Args:
        app: whose lanes run here.
        make_store: opens a store.
        shared: what the worker's parent tells.
        leaving: True when the worker shuts down.
    """

    def __init__(
        self, app: Celery, make_store: Callable[[], Store], *, shared: SharedState, leaving: Callable[[], bool]
    ) -> None:
        self.hostname = ""
        self.pool = Pool()
        self.publisher = Publisher(app, lambda: self.store)
        self._app = app
        self._make_store = make_store
        self._shared = shared
        self._leaving = leaving
        self._store: Store | None = None
        self._paces = Paces()
        self._tracers: dict[str, Any] = {}
        self._streams: dict[int, EventStream] = {}
        self._left: set[str] = set()

    @property
    def store(self) -> Store:
        """This process's store."""
        if self._store is None:
            self._store = self._make_store()
        return self._store

    @property
    def events(self) -> EventStream:
        """This process's stream of task events."""
        pid = os.getpid()
        stream = self._streams.get(pid)
        if stream is None:
            rate = self.store.settings.item_events_rate
            stream = self._streams.setdefault(
                pid,
                EventStream(self._app, hostname=self.hostname, rate=rate, wanted=lambda: self._shared.events_wanted),
            )
        return stream

    def run_lane(self, batch: str, slot: int, generation: int, queue: str, *, eager: bool, message_id: str = "") -> str:
        """The body of the lane task."""
        host = LaneHost(
            app=self._app,
            store=self.store,
            hostname=self.hostname or "eager",
            paces=self._paces,
            tracers=self._tracers,
            publisher=self.publisher,
            leaving=self._leaving,
            others_wait=lambda: self._shared.others_wait,
            stopping=lambda: self._shared.stopping,
            known_elsewhere=self._known_elsewhere,
            pool=self.pool,
            eager=eager,
            events=None if eager else self.events,
        )
        return Lane(host, batch, slot, generation, queue, message_id=message_id).run()

    def _known_elsewhere(self, activity: str, queue: str) -> bool:
        """Asked about a task that is not registered here."""
        if not known_elsewhere(self.store, activity, queue):
            return False
        if activity not in self._left:
            self._left.add(activity)
            log.warning(
                "task %s is not registered with this worker, but with another of queue %r: its items are left to that "
                "one; deploy the same code here",
                activity,
                queue,
            )
        return True

    def forked(self) -> None:
        """This is a child now: it has connections of its own; those of the parent stay untouched."""
        self._store = None

    def close(self) -> None:
        """Close the connections, and forget what was learnt with the settings so far."""
        store, self._store = self._store, None
        if store is not None:
            store.calls.close()
            store.client.close()
        self._paces = Paces()
        self._tracers.clear()

    def end_events(self) -> None:
        """Send the last events: this process ends, or its worker does."""
        stream = self._streams.get(os.getpid())
        if stream is not None:
            stream.close()
