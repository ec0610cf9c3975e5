"""Pausing: what it costs whatever the size of the batch, how soon a resume starts something, and what slips through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import quantiles
from typing import Any

from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds, until
from tests.integration.claimers import Claimers

__all__ = ["pause", "pause_trials"]


def pause(bench: Bench) -> Iterator[Row]:
    """Pauses of small and large batches, the first start after a resume, and many workflows."""
    yield from _sizes(bench)
    yield _first_start(bench)
    yield _many_workflows(bench)
    yield _others_paused(bench)


def _sizes(bench: Bench) -> Iterator[Row]:
    from tests.bench import tasks_poimen as ours

    bench.stop()
    poimen = ours.poimen
    for size in (100, 10_000, bench.size(1_000_000, 100_000)):
        batch = poimen.dispatch(poimen.map(ours.noop, range(size)), workflow="paused")

        def once(batch: Any = batch) -> float:
            taken = seconds(lambda: poimen.pause(batch=batch.id))
            poimen.resume(batch=batch.id)
            return taken * 1000

        taken = alternating(bench.size(100, 10), ours=once, ping=lambda: seconds(poimen.store.client.redis.ping) * 1000)
        yield Row(
            name=f"pause() of a batch of {size:,}",
            unit="ms",
            ours=middle(taken["ours"]),
            reference=middle(taken["ping"]),
            against="PING",
            target=Target(of="ours", at_most=round(middle(taken["ping"]) + 10, 2)),
            samples={**taken, "p95": quantiles(taken["ours"], n=20)[-1]},
        )
        bench.stop()


def _first_start(bench: Bench) -> Row:
    from tests.bench import tasks_poimen as ours

    poimen = ours.poimen
    bench.workers()

    def measure(start: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> Callable[[], float]:
        def one() -> float:
            batch = prepare()
            time.sleep(0.05)
            began = time.time()
            found = start() or batch
            (started,) = found.wait(timeout=60).results.values()
            return float(started - began) * 1000

        return one

    def held() -> Any:
        poimen.pause(workflow="starts")
        return poimen.dispatch(poimen.map(ours.stamp, [0]), workflow="starts")

    def resume() -> None:
        poimen.resume(workflow="starts")

    taken = alternating(
        bench.size(50, 5),
        ours=measure(resume, held),
        dispatch=measure(lambda: poimen.dispatch(poimen.map(ours.stamp, [0]))),
    )
    return Row(
        name="resume → first start, idle worker",
        unit="ms",
        ours=middle(taken["ours"]),
        reference=middle(taken["dispatch"]),
        against="dispatch → first start",
        target=Target(of="ours", at_most=250),
        samples={**taken, "worst": max(taken["ours"])},
    )


def _many_workflows(bench: Bench) -> Row:
    """A pause and a resume of one workflow while all the others are paused, and while none is."""
    from tests.bench import tasks_poimen as ours

    bench.stop()
    poimen, count = ours.poimen, bench.size(1000, 100)
    names = [f"wf-{number}" for number in range(count)]
    for name in names:
        poimen.dispatch(poimen.map(ours.noop, range(2)), workflow=name)

    def cycle(name: str) -> float:
        taken = seconds(lambda: poimen.pause(workflow=name)) + seconds(lambda: poimen.resume(workflow=name))
        return taken * 1000

    alone = [cycle(name) for name in names]
    for name in names:
        poimen.pause(workflow=name)
    among = []
    for name in names:
        among.append(seconds(lambda name=name: poimen.resume(workflow=name)) * 1000)  # type: ignore[misc]
        paused = [poimen.pauses.is_paused(other) for other in (name, names[-1])]
        assert paused == [False, name != names[-1]], "workflows are independent"
        among[-1] += seconds(lambda name=name: poimen.pause(workflow=name)) * 1000  # type: ignore[misc]
    assert poimen.pauses.stats().paused == count
    return Row(
        name=f"pause and resume of one workflow, {count:,} others paused",
        unit="ms",
        ours=middle(among),
        reference=middle(alone),
        against="none paused",
        target=Target(of="ratio", at_most=1.5),
        samples={"ours": among, "alone": alone},
    )


def _others_paused(bench: Bench) -> Row:
    """Items a second while nothing is paused, and while a thousand other workflows are and have been kept on disk."""
    from tests.bench import tasks_poimen as ours

    poimen, count = ours.poimen, bench.size(50_000, 5_000)
    bench.workers()
    names = [f"other-{number}" for number in range(bench.size(1000, 100))]
    taken: dict[str, list[float]] = {"ours": [], "alone": [], "while they are kept": []}

    def run() -> float:
        return count / seconds(lambda: poimen.dispatch(poimen.map(ours.noop, range(count))).wait(timeout=120))

    for _ in range(bench.size(3, 1)):
        taken["alone"] += [run() for _ in range(3)]
        for name in names:
            poimen.pause(workflow=name)
        taken["while they are kept"].append(run())
        until(lambda: all(poimen.snapshots.has(name) for name in names), timeout=300.0)
        taken["ours"] += [run() for _ in range(3)]
        for name in names:
            poimen.resume(workflow=name)
            poimen.snapshots.delete(name)
    return Row(
        name=f"no-op items while {len(names):,} other workflows are paused",
        unit="items/s",
        ours=middle(taken["ours"]),
        reference=middle(taken["alone"]),
        against="nothing paused",
        target=Target(of="ratio", at_least=0.9),
        samples=taken,
    )


def pause_trials(bench: Bench) -> Iterator[Row]:
    """Pauses at seeded moments while four processes claim at full speed."""
    bench.stop()
    url, count = bench.ours.server.url, bench.size(1000, 20)
    store = Store(Settings(redis_url=url, namespace="trials"), url)
    with Claimers(4, url, "trials") as claimers:
        trials = [claimers.trial(store, seed) for seed in range(count)]
    store.client.close()
    explained = {
        "trials": count,
        "claimed": sum(one.claimed for one in trials),
        "in receipts": sum(one.running for one in trials),
        "pauses that met a lane at work": sum(one.running > 0 for one in trials),
    }
    for name, found in (
        ("claimed after pause()", sum(len(one.late) for one in trials)),
        ("claimed before, not in the receipt", sum(len(one.missing) for one in trials)),
        ("in the receipt, held by no lane", sum(len(one.surplus) for one in trials)),
    ):
        yield Row(
            name=f"{name}, {count:,} trials",
            unit="items",
            ours=float(found),
            target=Target(of="ours", at_most=0),
            samples=explained,
        )
