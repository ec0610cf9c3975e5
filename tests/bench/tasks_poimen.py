"""Poimen with its own defaults; settings come from the environment. `celery -A tests.bench.tasks_poimen worker`."""

from __future__ import annotations

import os
import time
from functools import cache

import redis

from poimen_tasks import Poimen
from tests.bench import bodies

__all__ = ["STARTS", "app", "hold", "nap", "noop", "noop_single", "poimen", "stamp"]

STARTS = "bench-starts"

poimen = Poimen("bench")
app = poimen.celery
app.conf.worker_send_task_events = os.environ.get("BENCH_EVENTS", "1") == "1"

noop = poimen.task(name="bench.noop")(bodies.noop)
stamp = poimen.task(name="bench.stamp")(bodies.stamp)
nap = poimen.task(name="bench.nap")(bodies.nap)


@poimen.task(name="bench.noop_single", prefetch=1)
def noop_single(_value: int) -> None:
    """A no-op claimed one by one; a function of its own, because the policy is kept on the function."""


@cache
def _starts(_pid: int) -> redis.Redis:
    return redis.Redis.from_url(poimen.redis_url)


@poimen.task(name="bench.hold", prefetch=1)
def hold(number: int, duration: float) -> None:
    """Note who starts when, then sleep."""
    _starts(os.getpid()).rpush(STARTS, f"{number} {os.getppid()} {time.time()}")
    time.sleep(duration)
