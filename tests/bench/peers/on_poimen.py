"""Poimen with its own defaults; settings come from the environment."""

from __future__ import annotations

from typing import Any

from poimen_tasks import Poimen
from tests.bench.peers import counting
from tests.bench.peers.contract import OURS, PROCESSES, Peer, module

__all__ = ["PEERS", "app"]

poimen = Poimen("bench")
app = poimen.celery
noop = poimen.task(name="bench.noop")(counting.noop)


def _map(items: int) -> Any:
    return poimen.dispatch(poimen.map(noop, range(items)))


def _signatures(items: int) -> Any:
    return poimen.dispatch(noop.s(i) for i in range(items))


def _settle(batch: Any) -> None:
    report = batch.wait(timeout=600)
    if report.failed:
        raise RuntimeError(f"{report.failed} items failed")


def _command(level: str) -> list[str]:
    return module("celery", "-A", __name__, "worker", "-c", str(PROCESSES), "-l", level)


PEERS = (
    Peer(
        name=OURS,
        packages=("poimen-tasks", "celery"),
        chosen="its defaults: every outcome recorded once, audit on; the clock stops at the report of the whole batch",
        command=_command,
        enqueue=_map,
        settle=_settle,
    ),
    Peer(
        name=f"{OURS}, a signature each",
        packages=("poimen-tasks",),
        chosen="dispatch of an iterable of signatures",
        command=_command,
        enqueue=_signatures,
        parts=("enqueue",),
    ),
)
