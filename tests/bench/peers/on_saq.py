"""SAQ: two asyncio worker processes; a finished job is deleted at once."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import orjson
from saq import Queue

from tests.bench.peers import counting
from tests.bench.peers.contract import PROCESSES, Peer, module

__all__ = ["PEERS", "settings"]

_AT_ONCE = 100
queue = Queue.from_url(os.environ["BENCH_PEERS_URL"], dump=orjson.dumps, load=orjson.loads)
_runner = asyncio.Runner()


async def noop(_context: dict[str, Any], *, value: int) -> None:
    """A coroutine: a plain function would go through a thread pool."""
    counting.noop(value)


# Ten jobs at a time is its default; fifty or a hundred were not faster.
settings = {"queue": queue, "functions": [noop], "concurrency": 10}


async def _enqueue(items: int) -> None:
    for start in range(0, items, _AT_ONCE):
        # ttl=-1: nothing of a finished job is kept.
        await asyncio.gather(
            *(queue.enqueue("noop", value=i, ttl=-1) for i in range(start, min(start + _AT_ONCE, items)))
        )


def _gathered(items: int) -> None:
    _runner.run(_enqueue(items))


def _command(level: str) -> list[str]:
    options = ("--workers", str(PROCESSES), *(["-v"] if level == "info" else []))
    return module("saq", f"{__name__}.settings", *options)


PEERS = (
    Peer(
        name="SAQ",
        packages=("saq",),
        chosen="enqueue by 100 at once, ttl=-1, coroutine task, concurrency 10, orjson",
        command=_command,
        enqueue=_gathered,
    ),
)
