"""Snapshots of a large batch: how long, how large, how long others wait; and seeded cycles of losing everything."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.cycles import CycleReport, cycles
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds, until
from tests.conftest import ROOT

__all__ = ["snapshot_cycles", "snapshots", "snapshots_at_once"]

_MB = 1e6
_WORKFLOW = "bench-snapshots"
_SEED = 20251129


def snapshots(bench: Bench) -> Iterator[Row]:
    """A batch of no-op items, paused when a third of it is finished: on disk, and back into an empty server."""
    from tests.bench import tasks_poimen as ours

    items, poimen = bench.size(100_000, 5_000), ours.poimen
    bench.workers()
    batch = poimen.dispatch(poimen.map(ours.noop, range(items)), workflow=_WORKFLOW)
    until(lambda: batch.status().finished >= items // 3, timeout=120)
    poimen.pause(workflow=_WORKFLOW).wait_quiet(timeout=60)
    finished = batch.status().finished
    found: dict[str, list[float]] = {name: [] for name in ("take", "take_waits", "restore", "restore_waits", "idle")}
    with tempfile.TemporaryDirectory(prefix="snapshots-") as name:
        kept = poimen.settings.model_copy(update={"data_dir": Path(name)})
        with poimen.using(kept):
            for _ in range(bench.size(5, 1)):
                found["idle"].append(_waits(bench.ours.server.url, lambda: time.sleep(2.0))[1])
                took, waited = _waits(bench.ours.server.url, lambda: poimen.snapshots.create(_WORKFLOW))
                found["take"].append(took)
                found["take_waits"].append(waited)
            size = poimen.snapshots.latest(_WORKFLOW).size
        for _ in range(bench.size(5, 1)):
            took, waited = _elsewhere(ours, kept, Path(name))
            found["restore"].append(took)
            found["restore_waits"].append(waited)
    yield from _rows(items, finished, size, found)


def _rows(items: int, finished: int, size: int, found: dict[str, list[float]]) -> Iterator[Row]:
    said, samples = f"a batch of {items:,} no-op items", {"items": items, "finished": finished, **found}
    for name, unit, value, limit in (
        (f"snapshot of {said}", "s", middle(found["take"]), 2),
        ("its file", "MB", size / _MB, 20),
        ("restore of it into an empty server", "s", middle(found["restore"]), 5),
    ):
        yield Row(name=name, unit=unit, ours=value, target=Target(of="ours", at_most=limit), samples=samples)
    for name, waits in (("snapshot", "take_waits"), ("restore", "restore_waits")):
        yield Row(
            name=f"longest wait of another client during the {name}",
            unit="ms",
            ours=1000 * middle(found[waits]),
            reference=1000 * middle(found["idle"]),
            against="beside nothing",
            target=Target(of="ours", at_most=50),
            samples=samples,
        )


def _elsewhere(ours: Any, kept: Any, directory: Path) -> tuple[float, float]:
    """Seconds to restore into a new server, and how long another client waited there at most."""
    with EmbeddedServer(directory / "elsewhere", persistent=False) as server:
        there = kept.model_copy(update={"redis_url": server.url})
        with ours.poimen.using(there):
            return _waits(server.url, lambda: ours.poimen.snapshots.restore(_WORKFLOW))


def snapshots_at_once(bench: Bench) -> Iterator[Row]:
    """Many workflows taken by ten threads at once, and restored by ten, beside bare copies of the same keys."""
    from tests.bench import tasks_poimen as ours

    bench.stop()
    poimen, redis, count = ours.poimen, bench.ours.redis, bench.size(100, 20)
    names = [f"at-once-{number}" for number in range(count)]
    for name in names:
        poimen.dispatch(poimen.map(ours.noop, range(20)), workflow=name, batch_id=name)
    keys = {name: sorted(redis.scan_iter(match=f"*:b:{name}*", count=10_000)) for name in names}
    with tempfile.TemporaryDirectory(prefix="at-once-") as path:
        kept = poimen.settings.model_copy(update={"data_dir": Path(path)})

        def dump(name: str) -> None:
            pipeline = redis.pipeline(transaction=True)
            for key in keys[name]:
                pipeline.dump(key)
            with (Path(path) / f"{name}.bare").open("wb") as file:
                file.write(b"".join(pipeline.execute()))
                os.fsync(file.fileno())

        def load(name: str) -> None:
            pipeline = redis.pipeline(transaction=True)
            for key, value in zip(keys[name], dumped[name], strict=True):
                pipeline.restore(b"bare:" + key, 0, value, replace=True)
            pipeline.execute()

        with poimen.using(kept):
            rounds = bench.size(5, 1)
            taken = alternating(
                rounds,
                ours=lambda: count / seconds(lambda: _in_threads(poimen.snapshots.create, names)),
                bare=lambda: count / seconds(lambda: _in_threads(dump, names)),
            )
        dumped = {name: [redis.dump(key) for key in keys[name]] for name in names}
        restored = alternating(
            rounds,
            ours=lambda: count / _restored(ours, kept, Path(path), names),
            bare=lambda: count / seconds(lambda: _in_threads(load, names)),
        )
    for what, found, against in (
        ("taken", taken, "DUMP of their keys into a file each, with fsync"),
        ("restored", restored, "RESTORE of their keys"),
    ):
        yield Row(
            name=f"snapshots of {count} workflows {what} by ten threads",
            unit="1/s",
            ours=middle(found["ours"]),
            reference=middle(found["bare"]),
            against=against,
            target=Target(of="ours", at_least=20),
            samples=found,
        )


def _in_threads(verb: Callable[[str], Any], names: list[str], threads: int = 10) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(verb, names))


def _restored(ours: Any, kept: Any, directory: Path, names: list[str]) -> float:
    """Seconds to restore all of them into an empty namespace of the same server."""
    there = kept.model_copy(update={"namespace": f"{kept.namespace}-{secrets.token_hex(4)}"})
    shutil.copytree(directory / "snapshots" / kept.namespace, directory / "snapshots" / there.namespace)
    with ours.poimen.using(there):
        return seconds(lambda: _in_threads(ours.poimen.snapshots.restore, names))


# A process of its own: in this one it would wait for what the interpreter does.
_PROBE = """
import os, sys, time, redis
client = redis.Redis.from_url(sys.argv[1])
client.ping()
print("ready", flush=True)
longest, asked = 0.0, 0
stop = sys.stdin.fileno()
os.set_blocking(stop, False)
while True:
    began = time.perf_counter()
    client.ping()
    longest, asked = max(longest, time.perf_counter() - began), asked + 1
    time.sleep(0.0005)
    try:
        if os.read(stop, 1):
            break
    except BlockingIOError:
        pass
print(longest)
"""


def _waits(url: str, work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that work takes, and the longest that another client of the server waited for a reply meanwhile."""
    probe = subprocess.Popen(
        [sys.executable, "-c", _PROBE, url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert probe.stdout is not None
    probe.stdout.readline()
    took = seconds(work)
    said, _ = probe.communicate("x", timeout=30)
    return took, float(said)


def snapshot_cycles(bench: Bench) -> Iterator[Row]:
    """Pause, snapshot, kill everything, a new server, restore, resume: what differs from an undisturbed run."""
    bench.stop()
    count = bench.size(100, 2)
    with tempfile.TemporaryDirectory(prefix="cycles-") as name:
        report: CycleReport = cycles(Path(name), count=count, items=bench.size(4_000, 160), seed=_SEED)
    wrong = report.wrong()
    yield Row(
        name=f"{report.done} seeded cycles of losing everything: outcomes that differ, items that ran again",
        unit="",
        ours=float(sum(len(found) if hasattr(found, "__len__") else abs(found) for found in wrong.values())),
        target=Target(of="ours", at_most=0),
        samples={"seed": _SEED, "cycles": report.done, "wrong": wrong},
    )
