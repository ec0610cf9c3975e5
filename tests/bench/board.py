"""Tracked states of tasks: updates one by one, and by many processes at once, beside the same writes, bare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from poimen_tasks import Poimen
from tests.bench.apps import Bench
from tests.bench.board_writers import Bare, Ours
from tests.bench.measure import Row, Target, alternating, middle, seconds
from tests.conftest import ROOT

__all__ = ["board"]

_PROCESSES = 8


def board(bench: Bench) -> Iterator[Row]:
    """Updates of states, and what they take in the store."""
    bench.stop()
    yield _one_by_one(bench)
    yield _at_once(bench)
    yield _bytes(bench)


def _one_by_one(bench: Bench) -> Row:
    count, url = bench.size(2000, 200), bench.ours.server.url
    with Ours(url) as ours, Bare(url) as bare:
        taken = alternating(
            bench.size(7, 2),
            ours=lambda: count / seconds(lambda: [ours.update(at) for at in range(count)]),
            bare=lambda: count / seconds(lambda: [bare.update(at) for at in range(count)]),
        )
    return _updates("tracker: updates one by one", taken)


def _at_once(bench: Bench) -> Row:
    """Updates a second of eight processes that write the same tasks."""
    count = bench.size(1000, 100)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_BOARD_URL": bench.ours.server.url}

    def run(side: str) -> float:
        command = [sys.executable, "-m", "tests.bench.board_writers", side, str(_PROCESSES), str(count)]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, timeout=300)
        return float(json.loads(done.stdout))

    taken = alternating(bench.size(5, 1), ours=lambda: run("ours"), bare=lambda: run("bare"))
    return _updates(f"tracker: updates of the same tasks by {_PROCESSES} processes at once", taken)


def _updates(name: str, taken: dict[str, list[float]]) -> Row:
    return Row(
        name=name,
        unit="1/s",
        ours=middle(taken["ours"]),
        reference=middle(taken["bare"]),
        against="the same writes in MULTI and EXEC",
        target=Target(of="ratio", at_least=0.5),
        samples=taken,
    )


def _bytes(bench: Bench) -> Row:
    """Bytes a task takes in the store, its audit entry aside."""
    from poimen_tasks import BoardTask

    count = bench.size(10_000, 1_000)
    poimen = Poimen("bench-board", redis_url=bench.ours.server.url, namespace="boardbytes")
    rows = [
        BoardTask(id=f"T{at}", scope="as long as it is", status="completed", branch=f"w/{at}") for at in range(count)
    ]
    poimen.tracker("b").update_many(rows)
    keys = [poimen.store.keys.build(name, "b") for name in ("tracker", "tracker_order", "tracker_states")]
    size = sum(bench.ours.redis.memory_usage(key, samples=0) for key in keys)
    poimen.close()
    return Row(name="tracker: a task in the store", unit="B", ours=size / count, target=Target(of="ours", at_most=500))
