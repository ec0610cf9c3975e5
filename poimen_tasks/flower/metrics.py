"""`/metrics`: what Flower counts from events, and what the store knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tornado.web
from flower.views import BaseHandler
from prometheus_client import CollectorRegistry, generate_latest

from poimen_tasks.metrics import PoimenCollector

if TYPE_CHECKING:
    from poimen_tasks.flower.system import System

__all__ = ["MetricsHandler", "own_registry"]

_KIND = "text/plain; version=0.0.4; charset=utf-8"


def own_registry(system: System) -> CollectorRegistry:
    """Ours apart from Flower's, so that its numbers are there while the store is away."""
    registry = CollectorRegistry()
    registry.register(PoimenCollector(system))
    return registry


class MetricsHandler(BaseHandler):  # type: ignore[misc]  # Flower ships no types
    """Behind the same login as the pages, unless it was opened: it tells the names of workers and tasks."""

    async def get(self) -> None:
        """Both in one text."""
        application: Any = self.application
        if not application.poimen_options.public_metrics:
            self.check_login()
        application.forget_the_gone()
        # One read for all who ask at once: while the store hangs each takes a thread from the pages.
        text = await application.readings.get(
            "metrics", lambda: generate_latest() + generate_latest(application.registry)
        )
        self.set_header("Content-Type", _KIND)
        self.write(text)

    def check_login(self) -> None:
        """A scraper gets no page to log in at."""
        if not self.current_user:
            raise tornado.web.HTTPError(401)
