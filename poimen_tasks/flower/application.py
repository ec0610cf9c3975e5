"""Flower with our pages in it, and with what its own defaults leave open closed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower.app import Flower
from tornado.ioloop import IOLoop, PeriodicCallback
from tornado.web import StaticFileHandler, url

from poimen_tasks._urls import mask_url
from poimen_tasks.flower.guard import Guard, OurHeaders, Refused
from poimen_tasks.flower.handlers import PageHandler, TwinHandler
from poimen_tasks.flower.inspecting import CalmInspector
from poimen_tasks.flower.listening import Listener
from poimen_tasks.flower.loader import TemplateLoader
from poimen_tasks.flower.metrics import MetricsHandler, own_registry
from poimen_tasks.flower.options import FlowerOptions
from poimen_tasks.flower.pages import PAGES
from poimen_tasks.flower.readings import Readings
from poimen_tasks.flower.system import System

if TYPE_CHECKING:
    from tornado.httputil import HTTPServerRequest

__all__ = ["PoimenFlower"]

_STATIC = Path(__file__).parent / "static"
_TIDY = 30_000  # milliseconds


class PoimenFlower(Flower):  # type: ignore[misc]  # Flower ships no types
    """The web application.

    Args:
        system: the app whose batches it shows.
        options: what it was started with.
        **settings: Tornado's, as Flower makes them.
    """

    def __init__(self, system: System, options: FlowerOptions, **settings: Any) -> None:
        settings["template_loader"] = TemplateLoader(settings["template_path"])
        io_loop, theirs = IOLoop.current(), options.flower
        events = Listener(
            system.celery,
            io_loop,
            enable_events=theirs.enable_events,
            max_workers_in_memory=theirs.max_workers,
            max_tasks_in_memory=theirs.max_tasks,
        )
        super().__init__(options=theirs, capp=system.celery, events=events, io_loop=io_loop, **settings)
        self.system, self.poimen_options = system, options
        self.readings, self.registry = Readings(), own_registry(system)
        self.inspector = CalmInspector(self.io_loop, self.capp, theirs.inspect_timeout / 1000.0)
        self._guard = Guard(options)
        self.add_handlers(r".*", self._ours(theirs.url_prefix))
        self.add_transform(OurHeaders)

    @property
    def broker_uri(self) -> str:
        """The broker's address, as the pages show it: Flower's own text has the passwords that stand in options."""
        with self.capp.connection() as connection:
            return mask_url(connection.as_uri())

    @staticmethod
    def _ours(url_prefix: str | None) -> list[Any]:
        prefix = f"/{url_prefix.strip('/')}" if url_prefix else ""
        routes: list[Any] = [url(f"{prefix}/metrics", MetricsHandler)]
        for page in PAGES:
            name = "poimen" if not page.path else f"poimen_{page.name}"
            routes.append(url(f"{prefix}/poimen{page.path}", PageHandler, {"page": page}, name=name))
            routes.append(url(f"{prefix}/poimen/api{page.twin or page.path}", TwinHandler, {"page": page}))
        routes.append(url(f"{prefix}/poimen/static/(.*)", StaticFileHandler, {"path": str(_STATIC)}))
        return routes

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Ask the guard first: what it refuses reaches no handler, of whatever route."""
        why = self._guard.why_not(request.method or "", request.path, request.host)
        if why:
            return self.get_handler_delegate(request, Refused, {"why": why})
        return super().find_handler(request, **kwargs)

    def forget_the_gone(self) -> None:
        """Forget workers that are gone for `purge_offline_workers` seconds.

        Each has its own labels in `/metrics`, and names change with every deployment.
        """
        state, now = self.events.state, time.time()
        for name in set(state.counter) | set(self.inspector.workers):
            worker = state.workers.get(name)
            if worker is not None and (worker.alive or now - _last_seen(worker) < self.options.purge_offline_workers):
                continue
            if worker is None and name in self.inspector.workers and self._answered_lately(name, now):
                continue
            state.counter.pop(name, None)
            state.workers.pop(name, None)
            self.inspector.forget(name)
        self._forget_labels(set(state.counter) | set(self.inspector.workers))

    def _answered_lately(self, name: str, now: float) -> bool:
        answered: float = self.inspector.workers[name].get("timestamp", 0.0)
        return bool(now - answered < self.options.purge_offline_workers)

    def _forget_labels(self, known: set[str]) -> None:
        metrics = self.events.state.metrics
        for metric in vars(metrics).values():
            for labels in list(getattr(metric, "_metrics", ())):
                if labels and labels[0] not in known:
                    metric.remove(*labels)

    def run(self) -> None:
        """Serve until `stop`."""
        self.events.start()
        self.started = True
        self.io_loop.add_callback(self.update_workers)
        PeriodicCallback(self.forget_the_gone, _TIDY).start()
        self.io_loop.start()
        self.events.leave()

    def stop(self) -> None:
        """End `run`."""
        self.readings.close()
        super().stop()


def _last_seen(worker: Any) -> float:
    return float(max(worker.heartbeats)) if worker.heartbeats else float(getattr(worker, "timestamp", None) or 0.0)
