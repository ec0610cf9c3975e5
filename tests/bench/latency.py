"""One task on an idle worker, and the two small benchmarks of promise D12."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from celery import group

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds

__all__ = ["latency", "parity"]

_IDLE = 0.05


def latency(bench: Bench) -> Iterator[Row]:
    """From the call in the producer to the first line of the body."""
    from tests.bench import tasks_plain as plain
    from tests.bench import tasks_poimen as ours

    def measure(start: Callable[[], float]) -> Callable[[], float]:
        def one() -> float:
            time.sleep(_IDLE)
            began = time.time()
            return (start() - began) * 1000

        return one

    def start_ours() -> float:
        (started,) = ours.poimen.dispatch(ours.poimen.map(ours.stamp, [0])).wait(timeout=60).results.values()
        return started

    bench.workers(beside=True)
    taken = alternating(
        bench.size(50, 10), ours=measure(start_ours), plain=measure(lambda: plain.stamp.delay(0).get(timeout=60))
    )
    yield Row(
        name="dispatch → first start, idle worker",
        unit="ms",
        ours=middle(taken["ours"]),
        reference=middle(taken["plain"]),
        against="delay → start",
        target=Target(of="ratio", at_most=1.3),
        samples=taken,
    )


def parity(bench: Bench) -> Iterator[Row]:
    """Ten 5 ms tasks in parallel, one task alone, and the dispatching call by itself."""
    from tests.bench import tasks_plain as plain
    from tests.bench import tasks_poimen as ours

    poimen = ours.poimen

    def ours_of(count: int) -> Callable[[], object]:
        return lambda: poimen.dispatch(poimen.map(ours.nap, [0.005] * count)).wait(timeout=60)

    def plain_of(count: int) -> Callable[[], object]:
        return lambda: group(plain.nap.s(0.005) for _ in range(count)).apply_async().get(timeout=60, interval=0.005)

    cases: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
        "parallel dispatch of 10 x 5 ms, to the last result": (ours_of(10), plain_of(10), "plain group"),
        "single dispatch of 5 ms, to its result": (
            ours_of(1),
            lambda: plain.nap.delay(0.005).get(timeout=60, interval=0.005),
            "delay",
        ),
        "single dispatch, the call alone": (
            lambda: poimen.dispatch(poimen.map(ours.nap, [0.005])),
            lambda: plain.nap.delay(0.005),
            "delay",
        ),
    }
    bench.workers(beside=True, concurrency=10)
    for name, (mine, theirs, against) in cases.items():
        taken = alternating(bench.size(30, 5), ours=_milliseconds(mine), plain=_milliseconds(theirs))
        yield Row(
            name=name,
            unit="ms",
            ours=middle(taken["ours"]),
            reference=middle(taken["plain"]),
            against=against,
            samples=taken,
        )


def _milliseconds(work: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        time.sleep(_IDLE)
        return seconds(work) * 1000

    return measure
