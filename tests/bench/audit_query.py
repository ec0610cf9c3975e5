"""Recording events beside raw XADD on the same server, and questions to a log of a million events."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from poimen_tasks import AuditEvent, Poimen, Settings
from poimen_tasks.audit.asking import Asking
from poimen_tasks.audit.collecting import rare_collections
from poimen_tasks.audit.expand import encode_event
from poimen_tasks.audit.index import AuditIndex
from poimen_tasks.audit.log import Line, SealedLog
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds

__all__ = ["audit_query", "audit_record"]

_EVENT: dict[str, Any] = {
    "actor": "planner", "action": "split the work", "workflow": "nightly-2025-11-29", "task": "T1.1",
    "reasoning": "the file is too long for one step", "metadata": {"files": ["a.py", "b/c.py"], "parts": 3},
}  # fmt: skip
_EPOCH = "ab" * 20
_BEGIN = datetime(2025, 11, 29, tzinfo=UTC)
_TYPES = ("item.finished",) * 8 + ("planner_decision", "judge_verdict", "implementer_change", "item.retried")
_ACTORS = tuple(f"agent-{at}" for at in range(20))


# ------------------------------------------------------------------------------------------- recording
def audit_record(bench: Bench) -> Iterator[Row]:
    """Events one by one and in bulk, beside XADD of the very same entry."""
    bench.stop()
    poimen = Poimen("bench-audit", redis_url=bench.ours.server.url, namespace="benchaudit")
    try:
        poimen.audit.record("planner_decision", **_EVENT)
        (entry,) = poimen.store.entries.after("0-0")
        yield _one_by_one(bench, poimen, entry.fields)
        yield _in_bulk(bench, poimen, entry.fields)
    finally:
        poimen.close()


def _one_by_one(bench: Bench, poimen: Poimen, fields: dict[bytes, bytes]) -> Row:
    count, redis = bench.size(2000, 200), bench.ours.redis
    taken = alternating(
        bench.size(9, 2),
        ours=lambda: count / seconds(lambda: [poimen.audit.record("planner_decision", **_EVENT) for _ in range(count)]),
        bare=lambda: count / seconds(lambda: [redis.xadd("bare", fields) for _ in range(count)]),
    )
    return Row(
        name="audit: events recorded one by one",
        unit="1/s",
        ours=middle(taken["ours"]),
        reference=middle(taken["bare"]),
        against="XADD of the same entry",
        target=Target(of="ratio", at_least=0.8),
        samples=taken,
    )


def _in_bulk(bench: Bench, poimen: Poimen, fields: dict[bytes, bytes]) -> Row:
    count, redis = bench.size(5000, 500), bench.ours.redis
    events = [AuditEvent(event_type="planner_decision", **_EVENT) for _ in range(count)]

    def pipelined() -> None:
        for _ in range(0, count, 500):
            pipeline = redis.pipeline(transaction=False)
            for _ in range(500):
                pipeline.xadd("bare", fields)
            pipeline.execute()

    taken = alternating(
        bench.size(9, 2),
        ours=lambda: count / seconds(lambda: poimen.audit.record_many(events)),
        bare=lambda: count / seconds(pipelined),
    )
    return Row(
        name="audit: events recorded 500 a round trip",
        unit="1/s",
        ours=middle(taken["ours"]),
        reference=middle(taken["bare"]),
        against="pipelined XADD of the same entry",
        target=Target(of="ratio", at_least=0.7),
        samples=taken,
    )


# ------------------------------------------------------------------------------------------- questions
def audit_query(bench: Bench) -> Iterator[Row]:
    """A log of a million events: the index catches up, questions by one and two filters, and the index made again."""
    count, directory = bench.size(1_000_000, 20_000), Path(tempfile.mkdtemp(prefix="bench-audit-"))
    try:
        _write(directory, count)
        yield _catching_up(directory, count)
        yield from _asking(bench, directory, count)
        yield _rebuilt(directory, count)
    finally:
        shutil.rmtree(directory)


def _write(directory: Path, count: int) -> None:
    """A log as a fleet leaves it: a few workflows at a time, each of a thousand tasks, each task told a few times."""
    chance = random.Random(7)
    with SealedLog.open(directory, origin="bench") as log:
        for start in range(0, count, 10_000):
            lines = []
            for at in range(start, min(start + 10_000, count)):
                stream_id = f"{1_764_374_400_000 + at}-0"
                lines.append(Line(_EPOCH, stream_id, 0, True, encode_event(_event(at, stream_id, chance))))
            log.append(lines)
            log.seal()


def _event(at: int, stream_id: str, chance: random.Random) -> dict[str, Any]:
    kind = chance.choice(_TYPES)
    return {
        "event_id": f"{_EPOCH[:12]}-{stream_id}-0", "event_type": kind, "workflow_id": f"nightly-{at // 5000}",
        "task_id": f"T{chance.randrange(200_000)}", "actor": chance.choice(_ACTORS),
        "timestamp": (_BEGIN + timedelta(milliseconds=at)).isoformat(timespec="microseconds"),
        "action": f"item {at} of batch b succeeded", "reasoning": "", "input": None, "output": None,
        "status": "failure" if chance.random() < 0.02 else "success", "error": None,
        "metadata": {"activity": "shop.add", "worker": "w1@host", "position": at, "attempts": 1, "duration": 0.25},
    }  # fmt: skip


def _catching_up(directory: Path, count: int) -> Row:
    index = AuditIndex.open(directory)
    with rare_collections():  # as in its own process
        taken = seconds(index.catch_up)
    assert index.lines() == count
    return Row(
        name=f"audit: the index takes in {count:,} lines",
        unit="1/s",
        ours=count / taken,
        target=Target(of="ours", at_least=25_000),
    )


def _asking(bench: Bench, directory: Path, count: int) -> Iterator[Row]:
    settings = Settings(audit_dir=directory)
    asked, chance = Asking(lambda: settings, None), random.Random(11)
    questions = bench.size(2000, 200)

    def task() -> dict[str, Any]:
        return {"task": f"T{chance.randrange(200_000)}"}

    def two() -> dict[str, Any]:
        pairs = (
            {"type": "judge_verdict", "actor": chance.choice(_ACTORS)},
            {"workflow": f"nightly-{chance.randrange(max(1, count // 5000))}", "status": "failure"},
            {"actor": chance.choice(_ACTORS), "since": _BEGIN + timedelta(milliseconds=chance.randrange(count))},
            {"task": f"T{chance.randrange(200_000)}", "type": ["item.finished", "item.retried"]},
        )
        return {**chance.choice(pairs), "limit": 100, "newest_first": chance.random() < 0.5}

    for name, make, most in (("by task", task, 5.0), ("by two filters, the first 100", two, 20.0)):
        asking = [make() for _ in range(questions)]
        samples = sorted(_milliseconds(asked, filters) for filters in asking)
        yield Row(
            name=f"audit: {count:,} events asked {name}, p99",
            unit="ms",
            ours=samples[int(len(samples) * 0.99)],
            target=Target(of="ours", at_most=most),
            samples={"p50": samples[len(samples) // 2], "max": samples[-1]},
        )


def _milliseconds(asked: Asking, filters: dict[str, Any]) -> float:
    return seconds(lambda: asked.query(**filters)) * 1e3


def _rebuilt(directory: Path, count: int) -> Row:
    """Rows by which an index made again differs from the one that grew."""
    index = AuditIndex.open(directory)
    live = _rows(index.path)
    began = time.perf_counter()
    assert index.rebuild() == count
    took = time.perf_counter() - began
    return Row(
        name="audit: rows by which a rebuilt index differs from the live one",
        unit="",
        ours=sum(one != other for one, other in zip(live, _rows(index.path), strict=True)),
        target=Target(of="ours", at_most=0),
        samples={"rebuilt in seconds": took},
    )


def _rows(path: Path) -> list[Any]:
    with sqlite3.connect(path) as db:
        found: list[Any] = []
        for table, order in (("events", "seq"), ("postings", "key, facet, seq"), ("blocks", "block"), ("facets", "id")):
            found += db.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()  # noqa: S608 - ours
    db.close()
    return found
