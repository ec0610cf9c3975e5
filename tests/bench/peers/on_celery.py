"""Plain Celery, set as its page on optimizing says for many short tasks."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, group

from tests.bench.peers import counting
from tests.bench.peers.contract import PROCESSES, Peer, module

__all__ = ["PEERS", "app"]

app = Celery("peers", broker=os.environ["BENCH_PEERS_URL"], set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,  # no result is stored
    worker_prefetch_multiplier=128,  # the default of 4 is for long tasks
)
noop = app.task(name="peers.noop")(counting.noop)


def _batched(items: int) -> Any:
    # One pipeline for a thousand messages; without it each message is a round trip.
    with app.producer_or_acquire() as producer, producer.batch(max_size=1000):
        return group(noop.s(i) for i in range(items)).apply_async(producer=producer)


def _command(level: str) -> list[str]:
    # Neither gossip, mingle nor heartbeats: there is one worker, and it is the fastest without.
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    return module("celery", "-A", __name__, "worker", "-c", str(PROCESSES), "-l", level, *quiet)


PEERS = (
    Peer(
        name="Celery",
        packages=("celery", "kombu"),
        chosen="group in Producer.batch(1000), results ignored, prefetch 128, no gossip, mingle or heartbeat",
        command=_command,
        enqueue=_batched,
    ),
)
