"""Seeded kills of children, workers and producers while batches run, and what must be true afterwards."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from poimen_tasks.dispatch.hidden import hidden_id
from poimen_tasks.store.outcome_blob import decode_outcomes
from poimen_tasks.store.ranges import expand_ranges
from tests.acceptance.conftest import APP
from tests.conftest import ROOT, Workers, eventually

PRODUCER = """
import sys, time
from tests.acceptance.shop import poimen, marked, tell
name, notes, count, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def work():
    for number in range(count):
        if number % 256 == 0:
            time.sleep(pause)  # so that a kill can fall between two slices
        yield marked.s(notes, f"{name}-{number}", 0.002)
poimen.dispatch(work(), batch_id=name, concurrency=6, on_complete=tell.s(notes, tag=f"callback {name} "))
"""


@dataclass
class Chaos:
    """One run of kills. `report()` says what was found."""

    shop: ModuleType
    workers: Workers
    env: Mapping[str, str]
    notes: Path
    seed: int
    fleet: int = 3
    kills: Counter[str] = field(default_factory=Counter)
    batches: dict[str, int] = field(default_factory=dict)

    def run(self, kills: int, items: int) -> None:
        """Kill that many times, under load all the while, then let everything end."""
        dice = random.Random(self.seed)
        self.workers.start_many(self.fleet, APP, concurrency=2)
        producer = self._produce(items)
        while sum(self.kills.values()) < kills:
            if all(self._is_over(name) for name in self.batches) or producer.poll() is not None:
                self._finished(producer)
                producer = self._produce(items)
            time.sleep(dice.uniform(0.02, 0.4))  # the next kill falls into any moment of the work
            producer = self._kill(dice, producer, items)
            self._supervise()
        self._finished(producer)
        for name in self.batches:
            batch = self.shop.poimen.batch(name)
            eventually(lambda name=name: self._has_ended(name), timeout=90, interval=0.1)
            eventually(lambda batch=batch: batch.status().callbacks_pending == 0, timeout=60, interval=0.1)

    def _produce(self, items: int, name: str | None = None) -> subprocess.Popen[bytes]:
        name = name or f"chaos-{self.seed}-{len(self.batches)}"
        self.batches[name] = items
        with self._errors.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-c", PRODUCER, name, str(self.notes), str(items), "0.05"],
                cwd=ROOT,
                env={**os.environ, **self.env},
                stderr=errors,
            )

    def _finished(self, producer: subprocess.Popen[bytes]) -> None:
        """A producer that was not killed has ended well."""
        assert producer.wait(60) == 0, self._errors.read_text()[-3000:]

    @property
    def _errors(self) -> Path:
        return self.notes.with_name("producers.log")

    def _supervise(self) -> None:
        """Start a worker for each that ended: Celery's ends by itself when its children die before it is up."""
        for _ in range(self.fleet - sum(worker.alive for worker in self.workers.all)):
            self.workers.start(APP, concurrency=2, wait=False)

    def _has_ended(self, name: str) -> bool:
        """True, or an assertion with all that helps to see why not."""
        self._supervise()
        status = self.shop.poimen.batch(name).status()
        store = self.shop.poimen.store
        seen = {
            "status": status.to_dict(),
            "sealed": store.reads.field(name, "sealed"),
            "check": store.scripts.check_batch(name) if not status.is_over else None,
            "slots": store.client.redis.hgetall(store.keys.build("slots", name)),
            "queues": store.client.redis.hgetall(store.keys.build("queues")),
            "tickets": store.client.redis.zrange(store.keys.build("tickets"), 0, -1, withscores=True),
            "leases": store.reads.leases(),
            "clock": store.client.redis.hgetall(store.keys.build("clock")),
            "capacity": store.client.redis.hgetall(store.keys.build("capacity")),
            "workers": [(worker.name, worker.alive, len(worker.children())) for worker in self.workers.all],
            "kills": dict(self.kills),
        }
        assert status.is_over, seen
        return True

    def _is_over(self, name: str) -> bool:
        if name not in {batch.id for batch in self.shop.poimen.batches()}:
            return False
        return self.shop.poimen.batch(name).status().is_over

    def _kill(self, dice: random.Random, producer: subprocess.Popen[bytes], items: int) -> subprocess.Popen[bytes]:
        living = [worker for worker in self.workers.all if worker.alive]
        kind = dice.choices(("child", "worker", "producer"), (6, 2, 2))[0]
        if kind == "producer" and producer.poll() is None:
            name = list(self.batches)[-1]
            producer.kill()
            producer.wait()
            self.kills[kind] += 1
            return self._produce(items, name)
        if kind == "worker" and len(living) >= self.fleet:
            dice.choice(living).destroy()
            self.kills[kind] += 1
        elif kind == "child":
            children = [child for worker in living for child in worker.children()]
            if children:
                dice.choice(children).kill()
                self.kills[kind] += 1
        return producer

    def report(self) -> dict[str, int]:
        """Counts of what must not happen: lost items, second outcomes, second callbacks, items that never ran."""
        found: Counter[str] = Counter(lost=0, doubled=0, never_ran=0, callbacks_doubled=0, callbacks_lost=0, uneven=0)
        reads, scripts = self.shop.poimen.store.reads, self.shop.poimen.store.scripts
        ran = {line.split()[1] for line in self.notes.read_text().splitlines() if line.startswith("end ")}
        for name, items in self.batches.items():
            seen = self._outcomes(name)
            found["lost"] += items - len(seen)
            found["doubled"] += sum(count - 1 for count in seen.values())
            found["never_ran"] += sum(f"{name}-{number}" not in ran for number in range(items))
            callbacks = self._outcomes(hidden_id(name, "complete", 0))
            found["callbacks_lost"] += not callbacks
            found["callbacks_doubled"] += max(0, sum(callbacks.values()) - 1)
            found["uneven"] += not scripts.check_batch(name)[b"good"]
            found["not_succeeded"] += items - reads.status(name).succeeded
        return dict(found)

    def _outcomes(self, name: str) -> Counter[int]:
        seen: Counter[int] = Counter()
        for entries in self.shop.poimen.store.reads.entries(name):
            for entry in entries:
                columns = decode_outcomes(entry.blob)
                if columns is not None:
                    seen.update(expand_ranges(columns.ranges))
        return seen
