"""A million no-op items with two pool processes, and what an item and a batch cost by themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.bench.apps import Bench, Side
from tests.bench.measure import Row, Target, middle
from tests.conftest import ROOT

__all__ = ["cost", "million"]


def million(bench: Bench) -> Iterator[Row]:
    """Seconds, Redis growth, the producer's memory, and reading the outcomes again."""
    items = bench.size(1_000_000, 20_000)
    bench.workers()
    with _memory_watch(bench.ours) as seen:
        said = _produce(items, reads=bench.size(5, 1))
    (batch,) = said["batches"]
    label = f"{items:,} no-op items"
    samples = {**batch, "baseline_mb": said["baseline_mb"], "used_memory_mb": seen}
    for name, unit, value, limit in (
        ("dispatch, wait and all results", "s", batch["with_results"], 30),
        ("growth of Redis", "MB", seen["after"] - seen["before"], 80),
        ("peak memory of the producer", "MB", batch["peak_mb"], 100),
    ):
        target = Target(of="ours", at_most=limit)
        yield Row(name=f"{label}: {name}", unit=unit, ours=value, target=target, samples=samples)
    rates = said["outcomes_per_second"]
    target = Target(of="ours", at_least=400_000)
    yield Row(name="reading outcomes", unit="/s", ours=middle(rates), target=target, samples={"ours": rates})


def cost(bench: Bench) -> Iterator[Row]:
    """The fixed cost of a batch, and the marginal cost of an item at three sizes."""
    plan = {10_000: 7, 100_000: 3, 1_000_000: 1}
    if bench.quick:
        plan = {2_000: 1, 5_000: 1, 10_000: 1}
    bench.workers()
    taken = {1: _end_to_end(1, bench.size(20, 5))}
    for items, runs in plan.items():
        taken[items] = _end_to_end(items, runs)
    fixed = middle(taken[1])
    each = {items: (middle(taken[items]) - fixed) / items * 1e6 for items in plan}
    samples = {"seconds": {str(items): runs for items, runs in taken.items()}, "microseconds_per_item": each}
    yield Row(
        name="fixed cost of a batch: dispatch → wait of one item",
        unit="ms",
        ours=fixed * 1000,
        target=Target(of="ours", at_most=60),
        samples=samples,
    )
    sizes = ", ".join(f"{items:,}" for items in plan)
    yield Row(
        name=f"marginal cost of an item at {sizes}: dearest",
        unit="µs",
        ours=max(each.values()),
        reference=min(each.values()),
        against="the cheapest of the three",
        target=Target(of="ratio", at_most=1.3),
        samples=samples,
    )


def _end_to_end(items: int, runs: int) -> list[float]:
    return [batch["end_to_end"] for batch in _produce(items, runs=runs)["batches"]]


def _produce(items: int, *, runs: int = 1, reads: int = 0) -> Any:
    command = [sys.executable, "-m", "tests.bench.producer", str(items), "--runs", str(runs), "--read", str(reads)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1800, check=True)
    return json.loads(done.stdout)


@contextmanager
def _memory_watch(side: Side) -> Iterator[dict[str, float]]:
    """used_memory in MB before, after, and the highest seen five times a second."""

    def used() -> float:
        return side.redis.info("memory")["used_memory"] / 1e6

    seen = {"before": used(), "highest": 0.0}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            seen["highest"] = max(seen["highest"], used())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen["after"] = used()
