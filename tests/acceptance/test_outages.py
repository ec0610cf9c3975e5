"""The server goes away, freezes, or runs out of memory while a batch runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poimen_tasks import BatchState, DispatchAborted, StoreUnavailable
from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.conftest import APP, imported
from tests.conftest import Workers, eventually


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that this test may kill."""
    with EmbeddedServer(tmp_path / "own") as server:
        yield server


@pytest.fixture
def env(worker_env: dict[str, str], own_server: EmbeddedServer) -> dict[str, str]:
    """Settings for it."""
    return {
        **worker_env,
        "POIMEN_REDIS_URL": own_server.url,
        "POIMEN_BROKER_URL": own_server.url,
        "POIMEN_LEASE": "2.0",
        "POIMEN_CONNECT_TIMEOUT": "2.0",
        "POIMEN_TICKET_OVERDUE": "1.0",
    }


@pytest.fixture
def shop(env: dict[str, str]) -> Iterator[ModuleType]:
    """The shop on this server."""
    with imported(env) as module:
        yield module


@pytest.fixture
def fleet(workers: Workers, env: dict[str, str]) -> Workers:
    """One worker on this server."""
    workers.env.update(env)
    workers.start(APP, concurrency=2)
    return workers


def ends(path: Path) -> list[str]:
    """The names of the bodies that ended, in order."""
    return [line.split()[1] for line in path.read_text().splitlines() if line.startswith("end")]


@pytest.mark.usefixtures("fleet")
def test_a_killed_server_comes_back(shop: ModuleType, own_server: EmbeddedServer, notes: Path) -> None:
    """The server is killed and started again: results that finished meanwhile are recorded (faults A02, D01, D07)."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.15) for i in range(24)], concurrency=2)
    eventually(lambda: batch.status().succeeded >= 3)
    own_server.kill()
    own_server.restart()
    report = batch.wait(timeout=60)
    assert report.succeeded == 24
    assert len(ends(notes)) <= 24 + 4


@pytest.mark.usefixtures("fleet")
def test_an_outage_longer_than_a_lease_kills_nobody(shop: ModuleType, own_server: EmbeddedServer, notes: Path) -> None:
    """A server that is frozen for longer than a lease: no live lane is reaped, no body runs twice (fault D02)."""
    import time

    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 5.0) for i in range(2)], concurrency=2)
    eventually(lambda: batch.status().running == 2 and notes.exists() and len(notes.read_text().splitlines()) == 2)
    own_server.pause()
    time.sleep(3.5)  # the outage itself: longer than a lease of 3 s
    own_server.resume()
    assert batch.wait(timeout=60).succeeded == 2
    assert sorted(ends(notes)) == ["0", "1"]
    kinds = [fields[b"t"] for _, fields in shop.poimen.store.client.redis.xrange(shop.poimen.store.keys.build("audit"))]
    assert b"lane.lost" not in kinds
    assert b"keeper.gap" in kinds


def test_a_worker_leaves_without_its_server(
    shop: ModuleType, own_server: EmbeddedServer, workers: Workers, env: dict[str, str], notes: Path
) -> None:
    """Told to leave while its server is gone, a worker ends: what it cannot report runs again elsewhere (fault D02)."""
    worker = workers.start(APP, env={**env, "POIMEN_CONNECT_TIMEOUT": "0.2"})
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.5) for i in range(2)], concurrency=2)
    eventually(lambda: notes.exists() and len(notes.read_text().splitlines()) == 2)
    own_server.kill()
    eventually(lambda: len(ends(notes)) == 2)
    worker.terminate()
    assert worker.wait(60) == 0
    assert "the store is away: 2 lanes give up what they cannot report" in worker.text()
    own_server.restart()
    assert batch.status().succeeded == 0


def test_an_unreachable_server_is_one_clear_error(shop: ModuleType, own_server: EmbeddedServer) -> None:
    """Dispatch to a server that is gone, or frozen, ends in one error that names it (fault D02)."""
    own_server.kill()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        shop.poimen.dispatch([shop.add.s(1, 1)])


def test_an_aborted_dispatch_says_what_it_could_not_do(shop: ModuleType, own_server: EmbeddedServer) -> None:
    """Work that raises while the server is gone: what was written cannot be cancelled, and is not said to be."""

    def work() -> Iterator[Any]:
        for number in range(600):
            yield shop.add.s(number, 0)
        own_server.kill()
        raise LookupError("the source is gone")

    with pytest.raises(
        DispatchAborted, match="after 256 items: the source is gone; they are in it, and may run"
    ) as caught:
        shop.poimen.dispatch(work(), batch_id="half")
    (note,) = caught.value.__cause__.__notes__  # type: ignore[union-attr]
    assert note.startswith("batch 'half' could not be cancelled: Redis at redis://")
    own_server.restart()
    assert shop.poimen.batch("half").status().state is not BatchState.CANCELLED
    assert shop.poimen.batch("half").status().pending == 256


@pytest.mark.usefixtures("fleet")
def test_without_memory_outcomes_are_recorded_all_the_same(
    shop: ModuleType, own_server: EmbeddedServer, notes: Path
) -> None:
    """At maxmemory a running item's outcome is still recorded; work goes on when there is memory again."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.5) for i in range(8)], concurrency=2)
    eventually(lambda: batch.status().running == 2 and notes.exists())
    redis = shop.poimen.store.client.redis
    before = batch.status().succeeded
    redis.config_set("maxmemory", "1mb")
    eventually(lambda: batch.status().succeeded > before)
    eventually(lambda: batch.status().running == 0)
    assert batch.status().succeeded < 8
    redis.config_set("maxmemory", "0")
    assert batch.wait(timeout=60).succeeded == 8
    assert len(ends(notes)) == 8
