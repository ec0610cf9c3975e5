"""`kill -9` of one of four workers: how long until its items run again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, middle, until
from tests.conftest import Worker

__all__ = ["recovery"]

_LEASE = 2.0
_ITEMS = 4


def recovery(bench: Bench) -> Iterator[Row]:
    """Seconds from the kill to the second start of the last item that the killed worker ran, less the lease."""
    samples = [_kill_one(bench) for _ in range(bench.size(5, 1))]
    yield Row(
        name="kill -9 of one of four workers: its items run again after the lease and",
        unit="s",
        ours=middle(samples),
        target=Target(of="ours", at_most=1),
        samples={"ours": samples, "lease": _LEASE},
    )


def _kill_one(bench: Bench) -> float:
    from tests.bench import tasks_poimen as ours

    # Room for all items on the three that stay, so that no second start waits for a slot.
    workers = bench.workers(count=4, concurrency=2, lease=_LEASE)
    calls = [(number, 6.0) for number in range(_ITEMS)]
    ours.poimen.dispatch(ours.poimen.starmap(ours.hold, calls), concurrency=_ITEMS)
    until(lambda: len(_starts(bench)) == _ITEMS, timeout=60)
    time.sleep(1)  # into the middle of the bodies, between two renewals of the leases
    lost, victim = _busiest(workers, _starts(bench))
    victim.kill()
    killed = time.time()
    until(lambda: len(_starts(bench)) == _ITEMS + len(lost), timeout=60)
    again = [at for number, _, at in _starts(bench)[_ITEMS:] if number in lost]
    bench.stop()
    return max(again) - killed - _LEASE


def _starts(bench: Bench) -> list[tuple[int, int, float]]:
    """Item, main process of its worker, time of start; in order."""
    from tests.bench import tasks_poimen as ours

    rows: list[Any] = bench.ours.redis.lrange(ours.STARTS, 0, -1)
    return [(int(number), int(worker), float(at)) for number, worker, at in (row.split() for row in rows)]


def _busiest(workers: list[Worker], starts: list[tuple[int, int, float]]) -> tuple[set[int], Worker]:
    """The items of the worker that runs most of them."""
    items = {worker.pid: {number for number, pid, _ in starts if pid == worker.pid} for worker in workers}
    victim = max(workers, key=lambda worker: len(items[worker.pid]))
    return items[victim.pid], victim
