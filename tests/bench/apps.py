"""The two sides: Poimen and plain Celery, each on an embedded server of its own, with real worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from poimen_tasks.store.server import EmbeddedServer
from tests.conftest import Worker, Workers

__all__ = ["Bench", "Side", "open_bench"]


class Side:
    """One server and the workers on it."""

    def __init__(self, name: str, directory: Path, server: EmbeddedServer) -> None:
        self.name = name
        self.module = f"tests.bench.tasks_{name}"
        self.server = server
        self.redis = redis.Redis.from_url(server.url, protocol=2)
        self._directory = directory

    def empty(self) -> None:
        """Forget everything on this side's private server; call it while no worker runs."""
        self.redis.flushall()

    @contextmanager
    def workers(
        self,
        *,
        count: int = 1,
        concurrency: int = 2,
        loglevel: str = "warning",
        names: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Iterator[list[Worker]]:
        """Worker processes on an emptied server; they are killed and the server is emptied afterwards."""
        self.empty()
        directory = self._directory / "ready"
        directory.mkdir(exist_ok=True)
        workers = Workers(
            self._directory,
            {"BENCH_READY": str(directory), **(env or {})},
            ready=lambda worker: (directory / str(worker.pid)).exists(),
        )
        try:
            options = [("-n", name) for name in names] or [()] * count
            started = [
                workers.start(self.module, concurrency=concurrency, loglevel=loglevel, args=one, wait=False)
                for one in options
            ]
            for worker in started:
                workers.wait_ready(worker)
            yield started
        finally:
            workers.destroy_all()
            self.empty()


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

    @contextmanager
    def both(self, **options: object) -> Iterator[None]:
        """Workers on both sides, alike; returns when each pool process has run something."""
        with ExitStack() as stack:
            for side in (self.ours, self.plain):
                stack.enter_context(side.workers(**options))  # type: ignore[arg-type]
            warm_up_ours()
            warm_up_plain()
            yield


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
        yield Bench(ours=sides["poimen"], plain=sides["plain"], quick=quick)
