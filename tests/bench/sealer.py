"""The sealer: how fast it moves a stream to disk, beside a plain append, and how long an event waits for it.

`python -m tests.bench.sealer URL NAMESPACE DIRECTORY OUT` is a sealer that notes what was on disk when.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgpack

from poimen_tasks.audit.collecting import rare_collections
from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.event import AuditEvent, pack_event
from poimen_tasks.audit.follow_index import IndexProcess
from poimen_tasks.audit.index import AuditIndex
from poimen_tasks.audit.log import SealedLog
from poimen_tasks.audit.sealer import Sealer
from poimen_tasks.audit.segments import read_lines
from poimen_tasks.audit.source import Source
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.outcome_blob import encode_outcomes
from poimen_tasks.testing import eventually
from tests.bench.appending import EVERY, append
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, middle
from tests.conftest import ROOT

__all__ = ["seal_lag", "sealer"]

_RATE = 5_000
_CALL = 25
#: Items that a lane reports at a time.
_ITEMS = 25


def sealer(bench: Bench) -> Iterator[Row]:
    """Lines a second, from the stream to the published checkpoint, against a plain append of the same lines."""
    bench.stop()
    store = _store(bench.ours.server.url)
    count = bench.size(100_000, 10_000)
    fill = {"recorded events": partial(_record, store, count), "items of lanes": partial(_items, store, count)}
    # One directory to the end: ext4 looks for a new inode past all that were lately removed, however many.
    with tempfile.TemporaryDirectory(prefix="bench-seal-") as directory:
        for what, fills in fill.items():
            yield from _throughput(store, Path(directory) / what.replace(" ", "-"), what, fills, bench.size(3, 1))
        yield from _index(store, Path(directory) / "index", fill["recorded events"], bench.size(3, 1))
    store.client.close()


def _throughput(store: Store, place: Path, what: str, fill: Callable[[], None], rounds: int) -> Iterator[Row]:
    ours, raw, joined = list[float](), list[float](), list[float]()
    place.mkdir()
    for number in range(rounds):
        _begin_anew(store)
        fill()
        directory = place / str(number)
        seconds = _seal(store, directory)
        lines = [line for _, line in read_lines(directory)]
        ours.append(len(lines) / seconds)
        raw.append(len(lines) / append(place / f"raw-{number}", lines))
        joined.append(len(lines) / append(place / f"joined-{number}", lines, at_a_time=EVERY))
    name = f"audit: sealing {what}, lines with tiles and checkpoints"
    yield Row(
        name=name,
        unit="lines/s",
        ours=middle(ours),
        reference=middle(raw),
        against=f"append of the same lines, one by one, fdatasync every {EVERY:,}",
        target=Target(of="ratio", at_least=0.2),
        samples={"ours": ours, "raw": raw, "at_least": 40_000},
    )
    yield Row(
        name=name,
        unit="lines/s",
        ours=middle(ours),
        reference=middle(joined),
        against=f"append of the same lines, {EVERY:,} in one write, fdatasync after each",
        samples={"ours": ours, "joined": joined},
    )


def _index(store: Store, place: Path, fill: Callable[[], None], rounds: int) -> Iterator[Row]:
    """The same with the index's process beside it, and how fast that catches up."""
    alone, beside, index, late = list[float](), list[float](), list[float](), list[float]()
    place.mkdir()
    for number in range(rounds):
        for samples, follows in ((alone, None), (beside, late)):
            _begin_anew(store)
            fill()
            directory = place / f"{number}-{follows is not None}"
            samples.append(_seal(store, directory, late=follows))
        began = time.perf_counter()
        with rare_collections():
            lines = AuditIndex.open(place / f"{number}-False").catch_up()
        index.append(lines / (time.perf_counter() - began))
    yield Row(
        name="audit: seconds of sealing with the index following in its process",
        unit="s",
        ours=middle(beside),
        reference=middle(alone),
        against="without the index",
        target=Target(of="ratio", at_most=1.25),
        samples={"beside": beside, "alone": alone, "index whole after": late, "processors": os.cpu_count()},
    )
    yield Row(
        name="audit: the index catching up",
        unit="lines/s",
        ours=middle(index),
        target=Target(of="ours", at_least=25_000),
        samples={"index": index},
    )


def seal_lag(bench: Bench) -> Iterator[Row]:
    """How long an event waits until it is on disk, at a steady rate."""
    bench.stop()
    store = _store(bench.ours.server.url)
    with tempfile.TemporaryDirectory(prefix="bench-seal-") as directory:
        lags = _lags(store, Path(directory), seconds=bench.size(20, 3))
    store.client.close()
    for name, at, most in (("p50", 0.5, 50), ("p99", 0.99, 250)):
        yield Row(
            name=f"audit: from the stream to the disk at {_RATE:,} events/s, {name}",
            unit="ms",
            ours=lags[int(len(lags) * at)] * 1e3,
            target=Target(of="ours", at_most=most),
            samples={"events": len(lags), "most": lags[-1] * 1e3},
        )


def _lags(store: Store, place: Path, *, seconds: float) -> list[float]:
    out = place / "sealed.txt"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.bench.sealer",
            store.client.url,
            store.settings.namespace,
            str(place / "log"),
            str(out),
        ],
        cwd=ROOT,
    )
    try:
        _record(store, 1)
        while not out.exists():
            time.sleep(0.01)
        _steadily(store, seconds)
        while store.audit.describe_audit().length:
            time.sleep(0.01)
    finally:
        process.terminate()
        process.wait()
    seals = [line.split() for line in out.read_text().splitlines()]
    lags, at = list[float](), 0
    for seq, line in read_lines(place / "log"):
        while int(seals[at][1]) <= seq:
            at += 1
        event = json.loads(line)
        lags.append(float(seals[at][0]) - int(event["id"].partition("-")[0]) / 1e3)
    return sorted(lags[1:])


def _steadily(store: Store, seconds: float) -> None:
    """Record at the rate, a few events a call."""
    began, sent = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        if sent < now * _RATE:
            _record(store, _CALL)
            sent += _CALL
        else:
            time.sleep(0.001)


# --- parts ---------------------------------------------------------------------------------------------------------


def _store(url: str, namespace: str = "sealbench") -> Store:
    return Store(Settings(redis_url=url, namespace=namespace, lease=5.0), url)


def _begin_anew(store: Store) -> None:
    """Another stream; registered at once, so that it is not bounded."""
    store.client.redis.delete(store.keys.build("audit"), store.keys.build("audit_meta"))
    store.audit.register_sealer("bench", who="bench", home="bench", lease=0.5)
    store.audit.leave_sealer("bench")


def _record(store: Store, count: int) -> None:
    event = AuditEvent(
        event_type="step",
        actor="bench",
        workflow="wf-1",
        task="task-1",
        action="looked at a file and found nothing that matters",
        reasoning="it is short",
        metadata={"files": 3},
    )
    payload = pack_event(event, most=1 << 20)
    for start in range(0, count, 500):
        some = min(500, count - start)
        store.entries.record_events([os.urandom(8).hex() for _ in range(some)], [payload] * some, [].extend)


def _items(store: Store, count: int) -> None:
    """Entries as lanes write them."""
    key = store.keys.build("audit")
    with store.client.redis.pipeline(transaction=False) as pipe:
        for start in range(0, count, _ITEMS):
            header = msgpack.packb({"b": "batch-1", "w": "wf-1", "s": "default", "a": "bench", "ok": _ITEMS})
            now = time.time()
            blob = encode_outcomes(
                positions=range(start, start + _ITEMS), started=[now] * _ITEMS, durations=[0.01] * _ITEMS,
                worker="worker-1", enqueued=now - 1,
            )  # fmt: skip
            pipe.xadd(key, {"t": "item.finished", "h": header, "d": blob})
        pipe.execute()


def _seal(store: Store, directory: Path, *, late: list[float] | None = None) -> float:
    """Seconds from the first reading to the last publishing; with `late` beside an index, whose lag goes there."""
    with SealedLog.open(directory, origin="poimen/bench") as log:
        source = Source(store.audit, directory, lease=5.0)
        made = Sealer(log, ContentStore(directory), source, inline_bytes=4096, stopping=lambda: False)
        made.join()
        if late is None:
            return _timed(made)
        index, process = AuditIndex.open(directory), IndexProcess(directory)
        process.start()
        eventually(index.path.exists)
        took, ended = _timed(made), time.perf_counter()
        eventually(lambda: index.lines() == log.size, timeout=60)
        late.append(time.perf_counter() - ended)
        process.stop()
    return took


def _timed(sealer: Sealer) -> float:
    began = time.perf_counter()
    sealer.run(once=True)
    return time.perf_counter() - began


def _main(url: str, namespace: str, directory: str, out: str) -> None:
    store = _store(url, namespace)
    with SealedLog.open(Path(directory), origin="poimen/bench") as log, Path(out).open("w", buffering=1) as file:
        seal = log.seal

        def noted() -> int:
            size = seal()
            file.write(f"{time.time():.6f} {size}\n")
            return size

        log.seal = noted  # type: ignore[method-assign]
        source = Source(store.audit, Path(directory), lease=5.0)
        made = Sealer(log, ContentStore(Path(directory)), source, inline_bytes=4096, stopping=lambda: False)
        made.join()
        made.run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
