"""The shop, in a worker whose parent is nearly always within Celery in another thread, and holds a lock of it there."""

from __future__ import annotations

import time

from celery import Celery

from poimen_tasks.worker.queue_watch import QueueWatch
from tests.acceptance.shop import app, poimen

__all__ = ["app", "poimen"]

_look = QueueWatch.look


def _slowly(self: QueueWatch) -> None:
    with vars(Celery)["amqp"].lock:
        time.sleep(0.5)
    _look(self)


QueueWatch.look = _slowly  # type: ignore[method-assign]
