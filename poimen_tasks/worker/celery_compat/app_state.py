"""What an app keeps of its connections and its queues, for whoever leads it elsewhere for a while, as tests do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu import pools

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["forget_connections", "own_queues"]


def forget_connections(app: Celery) -> None:
    """Close the app's connections to broker and result backend; the next use, in any thread, follows its settings."""
    inside = vars(app)
    broker = inside.get("_pool")
    if broker is not None:
        for group in (pools.producers, pools.connections):
            for key, pool in list(group.items()):
                if pool is broker or getattr(pool, "connections", None) is broker:
                    pool.force_close_all()
                    dict.__delitem__(group, key)
        inside["_pool"] = vars(app.amqp)["_producer_pool"] = None
        inside.pop("control", None)  # it keeps the producers that it took first
    backends = [inside.get("_backend_cache"), vars(inside["_local"]).get("backend")]
    # Backends of other threads go with them: what is kept for a thread is kept here.
    inside["_backend_cache"], inside["_local"] = None, threading.local()
    for backend in filter(None, backends):
        _close_backend(backend)


def _close_backend(backend: Any) -> None:
    consumer, client = getattr(backend, "result_consumer", None), vars(backend).get("client")
    if consumer is not None:
        consumer.stop()
    if hasattr(client, "connection_pool"):
        client.connection_pool.disconnect()


@contextmanager
def own_queues(app: Celery) -> Iterator[None]:
    """A worker that is started within chooses its queues; the app has its own choice again afterwards."""
    queues = vars(app.amqp.queues)
    chosen = queues.get("_consume_from")
    try:
        yield
    finally:
        queues["_consume_from"] = chosen
