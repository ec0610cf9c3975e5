"""The worker processes of one side: started on an empty server, counted, weighed, and gone afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from poimen_tasks.store.tether import tethered
from tests.bench.measure import seconds, until
from tests.bench.peers import counting
from tests.bench.peers.contract import PROCESSES, Peer
from tests.conftest import ROOT, Worker

__all__ = ["Fleet", "started"]

_EVERY = 0.005


@dataclass(slots=True)
class Fleet:
    """One side's workers.

    Attributes:
        start: seconds from the start of the process until the first no-op was done, which had been queued before.
        sent: no-ops so far.
    """

    peer: Peer
    worker: Worker
    counts: Path
    start: float = 0.0
    sent: int = 0

    def run(self, items: int) -> dict[str, float]:
        """Enqueue, and wait until all ran and are settled; the seconds of both, and of enqueueing alone.

        Raises:
            RuntimeError: a no-op ran twice, or the workers ended.
        """
        began = time.perf_counter()
        queued = self.peer.enqueue(items)
        enqueued = time.perf_counter()
        self.await_all(items, queued)
        took = time.perf_counter() - began
        return {"items": items, "seconds": took, "enqueueing": enqueued - began, "rate": items / took}

    def drain(self, items: int) -> float:
        """Items per second of the workers alone: they stand still until all is queued."""
        self.worker.pause()
        queued = self.peer.enqueue(items)
        began = time.perf_counter()
        self.worker.resume()
        self.await_all(items, queued)
        return items / (time.perf_counter() - began)

    def await_all(self, items: int, queued: Any) -> None:
        """Wait for so many more no-ops; `queued` is what enqueueing them returned."""
        self.sent += items
        until(self._all_ran, timeout=600, every=_EVERY)
        self.peer.settle(queued)
        if (ran := counting.count(self.counts)) != self.sent:
            raise RuntimeError(f"{self.peer.name}: {ran} no-ops ran, {self.sent} were sent")

    def memory(self) -> dict[str, float]:
        """MB: the proportional memory of all its processes for each worker process, and the largest process alone.

        Where the system has no proportional figure (only Linux has), it is what each process has for itself.
        """
        proportional, resident = 0.0, []
        for process in (psutil.Process(self.worker.pid), *self.worker.children()):
            with contextlib.suppress(psutil.NoSuchProcess):
                full = process.memory_full_info()
                proportional += getattr(full, "pss", full.uss) / 1e6
                resident.append(full.rss / 1e6)
        return {"each": proportional / PROCESSES, "largest": max(resident), "processes": len(resident)}

    def _all_ran(self) -> bool:
        if not self.worker.alive:
            raise RuntimeError(f"{self.peer.name}'s workers ended:\n{self.worker.text()[-3000:]}")
        return counting.count(self.counts) >= self.sent


@contextmanager
def started(peer: Peer, directory: Path, *, level: str) -> Iterator[Fleet]:
    """Workers with one no-op waiting for them; its completion is their start."""
    counts = directory / "counts"
    counts.mkdir(parents=True)
    queued = peer.enqueue(1)
    log = directory / "log"
    with log.open("wb") as out:
        began = time.perf_counter()
        process = subprocess.Popen(
            tethered(peer.command(level)),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), counting.COUNTS: str(counts), **peer.env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    fleet = Fleet(peer, Worker(process, peer.name, log), counts)
    try:
        fleet.start = time.perf_counter() - began + seconds(lambda: fleet.await_all(1, queued))
        yield fleet
    finally:
        _end(fleet.worker)


def _end(worker: Worker) -> None:
    """Kill all its processes at once; the next side's workers need not wait until the system has buried them."""
    family = worker.children()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    for process in family:  # one may have made a group of its own
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    worker.process.wait()
