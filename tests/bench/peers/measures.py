"""What is measured, and how: each function puts its samples where all sides can be compared."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.apps import Bench
from tests.bench.measure import alternating, seconds
from tests.bench.peers.contract import PROCESSES, Peer
from tests.bench.peers.fleet import Fleet, started

__all__ = [
    "AFTER",
    "AFTER_INFO",
    "BYTES",
    "DRAINED",
    "E2E",
    "E2E_INFO",
    "ENQUEUE",
    "IDLE",
    "LARGEST",
    "START",
    "START_INFO",
    "Measure",
    "Measuring",
]

_FEW = 200  # no-ops that come before anything is timed, and from which the first size is guessed
_WEIGHED = 10_000  # no-ops after which workers are weighed again


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the comparison; `best` picks the better of two figures."""

    name: str
    unit: str
    best: Callable[..., Any]


E2E = Measure(name=f"no-op items end to end, {PROCESSES} worker processes", unit="items/s", best=max)
E2E_INFO = Measure(name="no-op items end to end, log level info", unit="items/s", best=max)
DRAINED = Measure(name="no-op items queued beforehand, the workers alone", unit="items/s", best=max)
ENQUEUE = Measure(name="enqueueing, no worker", unit="items/s", best=max)
BYTES = Measure(name="Redis bytes per queued item", unit="B", best=min)
START = Measure(name="worker start, until its first item is done", unit="s", best=min)
START_INFO = Measure(name="worker start, log level info", unit="s", best=min)
IDLE = Measure(name="memory per worker process, idle", unit="MB", best=min)
AFTER = Measure(name=f"memory per worker process, after {_WEIGHED:,} items or more", unit="MB", best=min)
AFTER_INFO = Measure(name="memory per worker process, after a run at log level info", unit="MB", best=min)
LARGEST = Measure(name="resident memory of the largest process, after the same", unit="MB", best=min)


@dataclass(slots=True)
class Measuring:
    """The samples of all sides.

    Attributes:
        taken: measure → side → samples.
        rates: side → items per second of its latest run end to end, by which the next one is sized.
        runs: side → all runs end to end, as `Fleet.run` tells them.
    """

    bench: Bench
    directory: Path
    taken: dict[Measure, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    rates: dict[str, float] = field(default_factory=dict)
    runs: dict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))

    def enqueueing(self, sides: Sequence[Peer]) -> None:
        """Items per second with no worker, in turn; each side enqueues as many as take about 0.4 s."""

        def timed(peer: Peer, items: int) -> float:
            self.bench.ours.redis.flushall()
            return seconds(partial(peer.enqueue, items))

        def enough(peer: Peer) -> int:
            items = _FEW
            while (took := timed(peer, items)) < wanted / 4:  # so few take no time, or first had to connect
                items = int(items * wanted / took)
            return int(items * wanted / took)

        def rate(peer: Peer, items: int) -> float:
            return items / timed(peer, items)

        wanted = self.bench.size(400, 50) / 1000
        sizes = {peer.name: enough(peer) for peer in sides}
        work = {peer.name: partial(rate, peer, sizes[peer.name]) for peer in sides}
        self.taken[ENQUEUE] = alternating(self.bench.size(3, 1), **work)

    def queued_bytes(self, sides: Sequence[Peer]) -> None:
        """What all keys of the server take, element by element, for each of ten thousand items."""
        items = self.bench.size(_WEIGHED, 1_000)
        for peer in sides:
            self.bench.ours.redis.flushall()
            peer.enqueue(items)
            self.taken[BYTES][peer.name].append(self._all_bytes() / items)

    def first_round(self, sides: Sequence[Peer]) -> None:
        """Start, memory, end to end, and what the workers do alone, up to ten thousand items."""
        enough = self.bench.size(_WEIGHED, 1_000)
        for peer in sides:
            with self._visit(peer, "warning", START) as fleet:
                time.sleep(self.bench.size(10, 2) / 10)  # idle, not still starting
                self._add(IDLE, peer, fleet.memory()["each"])
                self._end_to_end(fleet, E2E)
                self._add(DRAINED, peer, fleet.drain(max(enough - fleet.sent, int(1.5 * self.rates[peer.name]))))
                memory = fleet.memory()
                self._add(AFTER, peer, memory["each"])
                self._add(LARGEST, peer, memory["largest"])

    def again(self, sides: Sequence[Peer]) -> None:
        """Start and end to end once more."""
        for peer in sides:
            with self._visit(peer, "warning", START) as fleet:
                self._end_to_end(fleet, E2E)

    def at_info(self, sides: Sequence[Peer]) -> None:
        """The same with a log line or two an item."""
        for peer in sides:
            with self._visit(peer, "info", START_INFO) as fleet:
                self._end_to_end(fleet, E2E_INFO)
                self._add(AFTER_INFO, peer, fleet.memory()["each"])

    @contextmanager
    def _visit(self, peer: Peer, level: str, start: Measure) -> Iterator[Fleet]:
        self.bench.ours.redis.flushall()
        directory = self.directory / f"{len(self.taken[start])}-{level}-{time.monotonic_ns()}"
        with started(peer, directory, level=level) as fleet:
            self._add(start, peer, fleet.start)
            yield fleet

    def _end_to_end(self, fleet: Fleet, measure: Measure) -> None:
        """Warm up, then one run that takes long enough; a run that was too short only tells the size."""
        # Three seconds; at log level info, where only the difference is of interest, two.
        wanted = self.bench.size(2_200 if measure is E2E_INFO else 3_300, 300) / 1000
        run = fleet.run(max(_FEW, int(0.3 * self.rates.get(fleet.peer.name, 0))))
        rate = self.rates.get(fleet.peer.name, run["rate"])
        while (run := fleet.run(int(rate * wanted)))["seconds"] < 0.9 * wanted:
            rate = run["rate"]
        self.rates[fleet.peer.name] = run["rate"]
        self.runs[fleet.peer.name].append(run)
        self._add(measure, fleet.peer, run["rate"])

    def _add(self, measure: Measure, peer: Peer, value: float) -> None:
        self.taken[measure][peer.name].append(value)

    def _all_bytes(self) -> int:
        server = self.bench.ours.redis
        pipeline = server.pipeline(transaction=False)
        for key in server.scan_iter(count=1000):
            pipeline.memory_usage(key, samples=0)
        return sum(size or 0 for size in pipeline.execute())
