"""More processes, and workers that join late: what each adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.bench.apps import Bench, Wanted
from tests.bench.measure import Row, Target, middle, until
from tests.conftest import Worker

__all__ = ["late", "scaling"]

_NAP = 0.1
_JOINING = 6


def scaling(bench: Bench) -> Iterator[Row]:
    """Sleeping items on two, four and eight processes of two workers, as many items a process each time."""
    each, rounds = bench.size(40, 5), bench.size(3, 1)
    taken = {}
    for processes in (2, 4, 8):
        bench.workers(count=2, concurrency=processes // 2)
        taken[processes] = [_throughput(each * processes, processes) for _ in range(rounds)]
    for processes in (4, 8):
        yield Row(
            name=f"items of 100 ms on {processes} processes of two workers",
            unit="items/s",
            ours=middle(taken[processes]),
            reference=middle(taken[2]) * processes / 2,
            against=f"{processes // 2} times what two processes do",
            target=Target(of="ratio", at_least=0.95),
            samples={str(count): samples for count, samples in taken.items()},
        )


def _throughput(items: int, processes: int) -> float:
    """Items a second, from the first start to the last end as the bodies saw them."""
    from tests.bench import tasks_poimen as ours

    report = ours.poimen.dispatch(ours.poimen.map(ours.nap, [_NAP] * items), concurrency=processes).wait(timeout=120)
    spans: list[Any] = list(report.results.values())
    return items / (max(end for _, end in spans) - min(start for start, _ in spans))


def late(bench: Bench) -> Iterator[Row]:
    """A worker joins while a batch of long items runs: from its "ready" until each of its six processes has an item."""
    samples = [_join(bench) for _ in range(bench.size(3, 1))]
    yield Row(
        name="a second worker joins a running batch: each of its six processes has an item after",
        unit="s",
        ours=middle(samples),
        target=Target(of="ours", at_most=2),
        samples={"ours": samples},
    )


def _join(bench: Bench) -> float:
    from tests.bench import tasks_poimen as ours

    bench.stop()
    bench.workers(concurrency=2)
    ours.poimen.dispatch(ours.poimen.starmap(ours.hold, [(n, 1.0) for n in range(200)]), concurrency=8)
    until(lambda: len(_starts(bench)) >= 2, timeout=60)
    second = bench.ours.join(Wanted(concurrency=_JOINING))
    until(lambda: len(_starts(bench, second)) >= _JOINING, timeout=60)
    begun = _starts(bench, second)[_JOINING - 1]
    ready = bench.ours.ready_at(second)
    bench.stop()
    return max(0.0, begun - ready)


def _starts(bench: Bench, worker: Worker | None = None) -> list[float]:
    """When items started, of all workers or of one."""
    from tests.bench import tasks_poimen as ours

    rows: list[Any] = [row.split() for row in bench.ours.redis.lrange(ours.STARTS, 0, -1)]
    return [float(at) for _, pid, at in rows if worker is None or int(pid) == worker.pid]
