"""The two sides: Poimen and plain Celery, each on an embedded server of its own, with real worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from poimen_tasks.store.server import EmbeddedServer
from tests.conftest import Worker, Workers

__all__ = ["Bench", "Side", "Wanted", "open_bench"]


class Side:
    """One server and the workers on it. Workers stay for the next measurement that asks for the same ones."""

    def __init__(self, name: str, directory: Path, server: EmbeddedServer) -> None:
        self.name = name
        self.module = f"tests.bench.tasks_{name}"
        self.server = server
        self.redis = redis.Redis.from_url(server.url, protocol=2)
        ready = directory / "ready"
        ready.mkdir()
        self._ready = ready
        self._workers = Workers(
            directory, {"BENCH_READY": str(ready)}, ready=lambda worker: (ready / str(worker.pid)).exists()
        )
        self._wanted: Wanted | None = None

    def stop(self) -> None:
        """Kill all workers and forget everything on this side's private server."""
        self._workers.destroy_all()
        self._wanted = None
        self.redis.flushall()

    def begin(self, wanted: Wanted) -> bool:
        """Start these workers, unless they run; `ready` waits for them. Returns whether they are new."""
        if self._wanted == wanted:
            return False
        self.stop()
        for name in wanted.names or ("",) * wanted.count:
            self._start(wanted, name)
        self._wanted = wanted
        return True

    def _start(self, wanted: Wanted, name: str = "") -> Worker:
        return self._workers.start(
            self.module,
            concurrency=wanted.concurrency,
            loglevel=wanted.loglevel,
            mingle=True,
            args=("-n", name) if name else (),
            env={"POIMEN_LEASE": str(wanted.lease), "BENCH_EVENTS": str(int(wanted.events))},
            wait=False,
        )

    def join(self, wanted: Wanted) -> Worker:
        """Start one more worker beside those that run, and return when it is ready; no later measurement shares it."""
        self._wanted = None
        worker = self._start(wanted)
        self._workers.wait_ready(worker)
        return worker

    def ready_at(self, worker: Worker) -> float:
        """When the worker was ready, seconds since 1970."""
        return (self._ready / str(worker.pid)).stat().st_mtime

    def ready(self) -> list[Worker]:
        """The workers, when all of them are ready."""
        for worker in self._workers.all:
            self._workers.wait_ready(worker)
        return list(self._workers.all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which workers: `count` alike, or one for each of `names`."""

    count: int = 1
    concurrency: int = 2
    loglevel: str = "warning"
    names: tuple[str, ...] = ()
    lease: float = 15.0
    events: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a measurement gets.

    Attributes:
        quick: small sizes, to see that everything runs; the figures mean little.
    """

    ours: Side
    plain: Side
    quick: bool

    def size(self, full: int, quick: int) -> int:
        """The size for this run."""
        return quick if self.quick else full

    def workers(self, *, beside: bool = False, **options: Any) -> list[Worker]:
        """Our workers, warm; with `beside`, plain Celery has the same ones, and else none."""
        wanted = Wanted(**options)
        new = {side: side.begin(wanted) for side in ((self.ours, self.plain) if beside else (self.ours,))}
        if not beside:
            self.plain.stop()
        for side in new:
            side.ready()
        if new.get(self.ours):
            warm_up_ours()
        if new.get(self.plain):
            warm_up_plain()
        return self.ours.ready()

    def stop(self) -> None:
        """No workers, two empty servers."""
        self.ours.stop()
        self.plain.stop()


def warm_up_ours(items: int = 200) -> None:
    """A little work, so that every pool process has its connections and its pace."""
    from tests.bench.tasks_poimen import nap, noop, poimen

    poimen.dispatch(poimen.map(nap, [0.05] * 20)).wait(timeout=60)
    poimen.dispatch(poimen.map(noop, range(items))).wait(timeout=60)


def warm_up_plain() -> None:
    """The same for plain Celery."""
    from celery import group

    from tests.bench.tasks_plain import nap

    group(nap.s(0.05) for _ in range(20)).apply_async().get(timeout=60)


@contextmanager
def open_bench(directory: Path, *, quick: bool) -> Iterator[Bench]:
    """Both servers, and the environment by which this process and the workers find them."""
    with ExitStack() as stack:
        sides = {}
        for name in ("poimen", "plain"):
            here = directory / name
            here.mkdir()
            sides[name] = Side(name, here, stack.enter_context(EmbeddedServer(here / "server")))
        os.environ["POIMEN_REDIS_URL"] = sides["poimen"].server.url
        os.environ["POIMEN_DATA_DIR"] = str(directory / "poimen" / "data")
        os.environ["BENCH_PLAIN_URL"] = sides["plain"].server.url
        bench = Bench(ours=sides["poimen"], plain=sides["plain"], quick=quick)
        stack.callback(bench.stop)
        yield bench
