"""Sleeping tasks on ten slots: speedup from the first start to the last finish, as the bodies themselves saw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery import group

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle

__all__ = ["hosts", "speedup"]


def speedup(bench: Bench) -> Iterator[Row]:
    """Nine 100 ms and 500 ms tasks, and three waves of 1 s tasks, on one worker with ten slots."""
    bench.workers(beside=True, concurrency=10)
    yield from _nine(bench, 0.1, "10 slots", 7.0, beside=True)
    yield from _nine(bench, 0.5, "10 slots", 8.4, beside=False)
    yield _waves(bench)


def hosts(bench: Bench) -> Iterator[Row]:
    """The same nine on two workers with five slots each."""
    bench.workers(beside=True, concurrency=5, names=("a@h1", "b@h2"))
    yield from _nine(bench, 0.1, "two hosts of 5 slots", 7.0, beside=True)


def _nine(bench: Bench, duration: float, where: str, target: float, *, beside: bool) -> Iterator[Row]:
    taken = _taken([duration] * 9, bench.size(7, 1), _speedup)
    name = f"nine {duration * 1000:g} ms tasks, {where}: speedup"
    targets = [Target(of="ours", at_least=target)] + ([Target(of="ratio", at_least=0.95)] if beside else [])
    for one in targets:
        yield Row(
            name=name + (", beside plain" if one.of == "ratio" else ""),
            unit="x",
            ours=middle(taken["ours"]),
            reference=middle(taken["plain"]),
            against="plain group",
            target=one,
            samples=taken,
        )


def _waves(bench: Bench) -> Row:
    # In a quick run the waves are shorter, and so their overhead looks larger.
    duration = 0.2 if bench.quick else 1.0
    taken = _taken([duration] * 30, bench.size(2, 1), lambda spans: (_wall(spans) / (3 * duration) - 1) * 100)
    return Row(
        name=f"30 tasks of {duration:g} s on 10 slots, 3 waves: overhead",
        unit="%",
        ours=middle(taken["ours"]),
        reference=middle(taken["plain"]),
        against="plain group",
        target=Target(of="ours", at_most=2),
        samples=taken,
    )


Spans = list[list[float]]


def _taken(naps: list[float], rounds: int, figure: Callable[[Spans], float]) -> dict[str, Any]:
    said: list[float] = []
    taken = alternating(rounds, ours=lambda: figure(_ours(naps, said)), plain=lambda: figure(_plain(naps)))
    return {**taken, "report_speedup": said}


def _ours(naps: list[float], said: list[float]) -> Spans:
    from tests.bench import tasks_poimen as ours

    report = ours.poimen.dispatch(ours.poimen.map(ours.nap, naps)).wait(timeout=120)
    said.append(report.speedup)
    return list(report.results.values())


def _plain(naps: list[float]) -> Spans:
    from tests.bench import tasks_plain as plain

    return group(plain.nap.s(duration) for duration in naps).apply_async().get(timeout=120)


def _wall(spans: Spans) -> float:
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _speedup(spans: Spans) -> float:
    return sum(end - start for start, end in spans) / _wall(spans)
