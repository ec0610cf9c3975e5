"""A plain Celery app with its own defaults; BENCH_CHECK=on or off gives it a Poimen, with or without the check."""

from __future__ import annotations

import os
from functools import cache

import redis
from celery import Celery

from poimen_tasks import Poimen

__all__ = ["COUNTER", "app", "counted", "stored"]

COUNTER = "bench-checked"
_URL = os.environ["BENCH_PLAIN_URL"]

app = Celery("checked", broker=_URL, backend=_URL, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
app.conf.result_expires = 600
if (check := os.environ.get("BENCH_CHECK", "none")) != "none":
    Poimen(app, redis_url=_URL, pause_plain_calls=check == "on")


@cache
def _counter(_pid: int) -> redis.Redis:
    return redis.Redis.from_url(_URL)


@app.task(name="bench.counted", ignore_result=True)
def counted(_value: int) -> None:
    """Count, instead of storing a result."""
    _counter(os.getpid()).incr(COUNTER)


@app.task(name="bench.stored")
def stored(_value: int) -> None:
    """Count, and store a result."""
    _counter(os.getpid()).incr(COUNTER)
