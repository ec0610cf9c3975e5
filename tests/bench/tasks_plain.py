"""Plain Celery with its own defaults; broker and results on one Redis. `celery -A tests.bench.tasks_plain worker`."""

from __future__ import annotations

import os
from functools import cache

import redis
from celery import Celery

from tests.bench import bodies

__all__ = ["COUNTER", "app", "nap", "noop", "noop_silent", "stamp"]

COUNTER = "bench-done"
_URL = os.environ["BENCH_PLAIN_URL"]

app = Celery("plain", broker=_URL, backend=_URL, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True

noop = app.task(name="bench.noop")(bodies.noop)
stamp = app.task(name="bench.stamp")(bodies.stamp)
nap = app.task(name="bench.nap")(bodies.nap)


@cache
def _counter(_pid: int) -> redis.Redis:
    return redis.Redis.from_url(_URL)


@app.task(name="bench.noop_silent", ignore_result=True)
def noop_silent(_value: int) -> None:
    """Count instead of storing a result, the cheapest way to know that all ran."""
    _counter(os.getpid()).incr(COUNTER)
