"""Huey: `RedisHuey`, which waits for a task in Redis instead of polling, and worker processes."""

from __future__ import annotations

import os

from huey import RedisHuey

from tests.bench.peers import counting
from tests.bench.peers.contract import PROCESSES, Peer, module

__all__ = ["PEERS", "huey"]

huey = RedisHuey("peers", url=os.environ["BENCH_PEERS_URL"], results=False)
noop = huey.task()(counting.noop)


def _calls(items: int) -> None:
    # It has no way to send several tasks at once: `noop.map` makes one call a task, too.
    for i in range(items):
        noop(i)


def _command(level: str) -> list[str]:
    # Periodic tasks are off; info is its default level, and -q is warning.
    options = ("-k", "process", "-w", str(PROCESSES), "--no-periodic", *(["-q"] if level == "warning" else []))
    return module("huey.bin.huey_consumer", f"{__name__}.huey", *options)


PEERS = (
    Peer(
        name="Huey",
        packages=("huey",),
        chosen="RedisHuey, results off, -k process, one call a task",
        command=_command,
        enqueue=_calls,
    ),
)
