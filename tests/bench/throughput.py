"""No-op items end to end: from the first signature until every result is there, two pool processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery import group

from tests.bench.apps import Bench
from tests.bench.enqueue import forget
from tests.bench.measure import Row, Target, alternating, middle, seconds, until

__all__ = ["loglevel", "throughput"]

_POLLED = 100


def throughput(bench: Bench) -> Iterator[Row]:
    """Ours beside the fastest of four ways to run and await a plain group."""
    items, few = bench.size(100_000, 5_000), bench.size(4_000, 100)
    bench.workers(beside=True)
    taken = alternating(
        bench.size(3, 1),
        ours=lambda: items / seconds(lambda: run_ours(items)),
        results=lambda: _plain(few, batched=False, silent=False),
        silent=lambda: _plain(few, batched=False, silent=True),
        results_batched=lambda: _plain(few, batched=True, silent=False),
        silent_batched=lambda: _plain(few, batched=True, silent=True),
    )
    ours = taken.pop("ours")
    best = max(taken, key=lambda way: middle(taken[way]))
    yield Row(
        name="no-op items end to end, 2 processes",
        unit="items/s",
        ours=middle(ours),
        reference=middle(taken[best]),
        against=f"plain group, its fastest way ({best})",
        target=Target(of="ratio", at_least=60),
        samples={"ours": ours, "reference": taken[best], "items": items, "reference_items": few, **taken},
    )


def loglevel(bench: Bench) -> Iterator[Row]:
    """Ours with `-l info` beside ours with `-l warning`."""
    items, runs = bench.size(100_000, 5_000), bench.size(3, 1)

    def measure(level: str) -> float:
        bench.workers(loglevel=level)
        return middle([items / seconds(lambda: run_ours(items)) for _ in range(runs)])

    taken = alternating(bench.size(3, 1), info=lambda: measure("info"), warning=lambda: measure("warning"))
    yield Row(
        name="no-op items end to end, -l info",
        unit="items/s",
        ours=middle(taken["info"]),
        reference=middle(taken["warning"]),
        against="Poimen, -l warning",
        target=Target(of="ratio", at_least=0.95),
        samples={"ours": taken["info"], "reference": taken["warning"], "items": items},
    )


def run_ours(items: int) -> None:
    """Dispatch and wait for the report."""
    from tests.bench import tasks_poimen as ours

    report = ours.poimen.dispatch(ours.poimen.map(ours.noop, range(items))).wait(timeout=600)
    if report.succeeded != items:
        raise RuntimeError(f"{report.succeeded} of {items} items succeeded")


def _plain(items: int, *, batched: bool, silent: bool) -> float:
    """Items per second of plain Celery, awaited without a subscription."""
    from tests.bench import tasks_plain as plain

    client = plain.app.backend.client
    client.delete(plain.COUNTER)
    work = group((plain.noop_silent if silent else plain.noop).s(i) for i in range(items))

    def run() -> None:
        result = _apply(plain.app, work, batched=batched)
        if silent:
            until(lambda: int(client.get(plain.COUNTER) or 0) >= items)
        else:
            _await_keys(client, [plain.app.backend.get_key_for_task(one.id) for one in result.results])

    took = seconds(run)
    forget(plain.app)
    return items / took


def _apply(app: Any, work: Any, *, batched: bool) -> Any:
    if not batched:
        return work.apply_async()
    with app.producer_or_acquire() as producer, producer.batch(max_size=1000):
        return work.apply_async(producer=producer)


def _await_keys(client: Any, keys: list[Any]) -> None:
    """Wait until all exist, looking at each only a few times: they come about in order."""
    for at in range(0, len(keys), _POLLED):
        some = keys[at : at + _POLLED]
        until(_all_exist(client, some))


def _all_exist(client: Any, keys: list[Any]) -> Callable[[], bool]:
    return lambda: client.exists(*keys) == len(keys)
