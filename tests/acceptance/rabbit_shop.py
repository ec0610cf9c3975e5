"""The app of the RabbitMQ tests: queues that Redis does not have, settings from `POIMEN_*` variables."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from celery.worker.control import control_command
from kombu import Exchange, Queue

from poimen_tasks import Poimen, RetryPolicy
from poimen_tasks.worker import known_lanes
from tests.acceptance.noting import note

poimen = Poimen("rabbit_shop")
app = poimen.celery
app.conf.task_queues = [
    Queue("celery"),
    Queue("ranked", max_priority=9),
    Queue("orders", Exchange("events", type="topic"), routing_key="order.#"),
    Queue("bills", Exchange("books", type="direct"), routing_key="bill"),
]


@control_command(args=[("seconds", float)])
def acknowledge_after(_state: Any, seconds: float) -> dict[str, float]:
    """Change for a moment when the message of a lane is acknowledged: a test has no quarter of an hour."""
    known_lanes.ACK_AFTER = seconds
    return {"ok": seconds}


# Not shared with other apps: the module is imported anew for each test module.
task = partial(poimen.task, shared=False)


@task
def add(x: int, y: int) -> int:
    """A sum."""
    return x + y


@task
def total(values: list[int]) -> int:
    """The sum of a list: a chord's body."""
    return sum(values)


@task
def tell(values: list[int], path: str) -> None:
    """Note a sum: a chord's body that leaves something to see."""
    note(path, f"told {sum(values)}")


@task
def marked(path: str, name: str, seconds: float = 0.0) -> str:
    """Note that it started, sleep, note that it ended."""
    note(path, f"start {name} {os.getpid()}")
    time.sleep(seconds)
    note(path, f"end {name} {os.getpid()}")
    return name


@task
def until(path: str, name: str, file: str) -> str:
    """Note that it started, wait for a file or for being cancelled, note that it ended."""
    note(path, f"start {name} {os.getpid()}")
    deadline = time.monotonic() + 60
    while not Path(file).exists() and time.monotonic() < deadline:
        poimen.checkpoint()
        time.sleep(0.02)
    note(path, f"end {name} {os.getpid()}")
    return name


@task(retry=RetryPolicy(max_attempts=3, initial=0.05, maximum=0.2))
def third_time(path: str) -> int:
    """Fail twice, then succeed."""
    note(path, "run")
    runs = len(Path(path).read_text().splitlines())
    if runs < 3:
        raise ConnectionError(f"run {runs}")
    return runs
