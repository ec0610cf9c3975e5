"""Enqueueing without a worker: items per second, from the first signature built to the last one written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery import group

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds

__all__ = ["enqueue"]


def enqueue(bench: Bench) -> Iterator[Row]:
    """`map`, and a signature per item, beside a plain group with and without batched publishing."""
    from tests.bench import tasks_plain as plain
    from tests.bench import tasks_poimen as ours

    bench.stop()
    items, few = bench.size(100_000, 20_000), bench.size(2_000, 200)

    def rate(side: Any, count: int, work: Callable[[], Any]) -> Callable[[], float]:
        def measure() -> float:
            side.redis.flushall()
            took = seconds(work)
            if side is bench.plain:
                forget(plain.app)
            return count / took

        return measure

    def plain_batched() -> None:
        with plain.app.producer_or_acquire() as producer, producer.batch(max_size=1000):
            group(plain.noop.s(i) for i in range(few)).apply_async(producer=producer)

    def dispatch(work: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: ours.poimen.dispatch(work())

    sides = {
        "map": rate(bench.ours, items, dispatch(lambda: ours.poimen.map(ours.noop, range(items)))),
        "plain": rate(bench.plain, few, lambda: group(plain.noop.s(i) for i in range(few)).apply_async()),
        "signatures": rate(bench.ours, items, dispatch(lambda: (ours.noop.s(i) for i in range(items)))),
        "group": rate(bench.ours, items, dispatch(lambda: group(ours.noop.s(i) for i in range(items)))),
        "plain_batched": rate(bench.plain, few, plain_batched),
    }
    for warm in sides.values():
        warm()
    taken = alternating(bench.size(5, 1), **sides)
    bench.stop()
    taken_of = {name: middle(samples) for name, samples in taken.items()}
    for name, key, against, target in (
        ("enqueue: map", "map", "plain", 500),
        ("enqueue: a signature per item (iterable)", "signatures", "plain", 100),
        ("enqueue: a signature per item (group)", "group", "plain", 100),
        ("enqueue: map, beside Producer.batch()", "map", "plain_batched", None),
        ("enqueue: a signature per item (iterable), beside Producer.batch()", "signatures", "plain_batched", None),
    ):
        yield Row(
            name=name,
            unit="items/s",
            ours=taken_of[key],
            reference=taken_of[against],
            against="group.apply_async" + (" in Producer.batch()" if against == "plain_batched" else ""),
            target=Target(of="ratio", at_least=target) if target else None,
            samples={"ours": taken[key], "reference": taken[against], "items": items, "reference_items": few},
        )


def forget(app: Any) -> None:
    """Drop a plain producer's subscriptions, one a task: they would slow down what is measured next."""
    consumer = app.backend.result_consumer
    if consumer._pubsub is not None:
        consumer.stop()
        consumer._pubsub = None
        consumer.subscribed_to = set()
