"""A hundred batches of a hundred short items, dispatched at once on eight slots: none comes much later than another."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean
from typing import Any

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, middle

__all__ = ["fairness"]

_NAP = 0.005
_SLOTS = 8


def fairness(bench: Bench) -> Iterator[Row]:
    """When the last batch is over, beside when they are over on average; and what sharing costs beside one batch."""
    batches, items = bench.size(100, 10), bench.size(100, 40)
    bench.workers(count=2, concurrency=_SLOTS // 2)
    taken = [_run(batches, items) for _ in range(bench.size(3, 1))]
    ends = [[end for _, end in spans] for spans in taken]
    yield Row(
        name=f"{batches} batches of {items} x 5 ms at once, {_SLOTS} slots: the slowest",
        unit="s",
        ours=middle([max(some) for some in ends]),
        reference=middle([mean(some) for some in ends]),
        against="the mean of all",
        target=Target(of="ratio", at_most=1.3),
        samples={"ends": ends, "starts": [[start for start, _ in spans] for spans in taken]},
    )
    together = [batches * items / max(some) for some in ends]
    alone = [batches * items / max(end for _, end in _run(1, batches * items)) for _ in ends]
    yield Row(
        name=f"{batches} batches of {items} x 5 ms at once, {_SLOTS} slots: throughput",
        unit="items/s",
        ours=middle(together),
        reference=middle(alone),
        against="the same items in one batch",
        samples={"ours": together, "reference": alone, "ideal": _SLOTS / _NAP},
    )


def _run(batches: int, items: int) -> list[tuple[float, float]]:
    """Start and end of each batch by the server's clock, seconds after the first was dispatched."""
    from tests.bench import tasks_poimen as ours

    work: list[Any] = [
        ours.poimen.dispatch(ours.poimen.map(ours.nap, [_NAP] * items), concurrency=_SLOTS) for _ in range(batches)
    ]
    for batch in work:
        batch.wait(timeout=300)
    states = [batch.status() for batch in work]
    first = states[0].created_at
    return [((one.started_at - first).total_seconds(), (one.finished_at - first).total_seconds()) for one in states]
