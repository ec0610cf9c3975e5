"""RQ: a worker pool of `SimpleWorker`, which runs jobs in its own process instead of forking for each."""

from __future__ import annotations

import os

import redis
from rq import Queue

from tests.bench.peers import counting
from tests.bench.peers.contract import PROCESSES, Peer, module

__all__ = ["PEERS"]

_URL = os.environ["BENCH_PEERS_URL"]
# `enqueue_many` sends one pipeline; larger ones were not faster.
_CHUNK = 1_000

queue = Queue("peers", connection=redis.Redis.from_url(_URL))


def _many(items: int) -> None:
    for start in range(0, items, _CHUNK):
        # result_ttl=0: no result is stored, and a job that succeeded is deleted.
        queue.enqueue_many(
            [
                Queue.prepare_data(counting.noop, args=(i,), result_ttl=0)
                for i in range(start, min(start + _CHUNK, items))
            ]
        )


def _command(level: str) -> list[str]:
    pool = ("worker-pool", queue.name, "-n", str(PROCESSES), "-w", "rq.worker.SimpleWorker", "-u", _URL)
    return module("rq.cli", *pool, "-l", level.upper())


PEERS = (
    Peer(
        name="RQ",
        packages=("rq",),
        chosen="enqueue_many by 1,000, worker-pool of SimpleWorker, result_ttl=0",
        command=_command,
        enqueue=_many,
    ),
)
