"""taskiq: `ListQueueBroker` without a result backend, uvloop for its workers and orjson for its messages.

Its broker with acknowledgements, on a stream, does more work for each task; this one is the fastest.
"""

from __future__ import annotations

import asyncio
import os

from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListQueueBroker

from tests.bench.peers import counting
from tests.bench.peers.contract import PROCESSES, Peer, module

__all__ = ["PEERS", "broker"]

broker = ListQueueBroker(os.environ["BENCH_PEERS_URL"]).with_serializer(ORJSONSerializer())
_AT_ONCE = 100
_runner = asyncio.Runner()


@broker.task(task_name="peers.noop")
async def noop(value: int) -> None:
    """A coroutine: a plain function would go through a thread pool."""
    counting.noop(value)


async def _kick(items: int) -> None:
    for start in range(0, items, _AT_ONCE):
        await asyncio.gather(*(noop.kiq(i) for i in range(start, min(start + _AT_ONCE, items))))


def _gathered(items: int) -> None:
    _runner.run(_kick(items))


def _command(level: str) -> list[str]:
    # --no-parse: arguments are not validated against the annotations a second time.
    options = ("--workers", str(PROCESSES), "--max-async-tasks", "100", "--no-parse", "--log-level", level.upper())
    return module("taskiq", "worker", f"{__name__}:broker", *options)


PEERS = (
    Peer(
        name="taskiq",
        packages=("taskiq", "taskiq-redis"),
        chosen="ListQueueBroker, no results, kiq by 100 at once, coroutine task, --no-parse, uvloop, orjson",
        command=_command,
        enqueue=_gathered,
    ),
)
