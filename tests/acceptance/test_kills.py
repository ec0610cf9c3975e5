"""Kills: of children, workers, producers and the server, at any moment."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.acceptance.chaos import Chaos
from tests.acceptance.conftest import APP
from tests.conftest import Workers, eventually

PATIENT = 240


@pytest.fixture
def worker_env(worker_env: dict[str, str]) -> dict[str, str]:
    """Short leases, because these tests wait for them to end."""
    return {**worker_env, "POIMEN_LEASE": "1.5", "POIMEN_TICK": "0.2", "POIMEN_TICKET_OVERDUE": "1.0"}


@pytest.fixture(autouse=True)
def _own_environment(workers: Workers, worker_env: dict[str, str]) -> None:
    workers.env.update(worker_env)


@pytest.mark.timeout(PATIENT)
def test_seeded_kills_lose_and_double_nothing(
    own_shop: ModuleType, workers: Workers, worker_env: dict[str, str], notes: Path
) -> None:
    """Over seeded kills of children, workers and producers nothing is lost or recorded twice.

    Each batch has one callback outcome (faults A01, A03, A04, A22, B01, B02).
    """
    chaos = Chaos(own_shop, workers, worker_env, notes, seed=20251129)
    chaos.run(kills=30, items=700)
    assert set(chaos.report().values()) == {0}, (chaos.report(), chaos.kills)


def test_a_killed_worker_costs_a_lease(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """The items of a killed worker run on another one, and every item ends once (fault B01).

    The broker holds no message for what runs: nothing waits for its visibility timeout, which is six hours here, and
    there is nothing for it to restore (faults C03, C05, C08).
    """
    first, _second = workers.start_many(2, APP, concurrency=2)
    batch = own_shop.poimen.dispatch([own_shop.marked.s(str(notes), str(i), 0.3) for i in range(16)], concurrency=4)
    assert own_shop.app.conf.broker_transport_options["visibility_timeout"] == 6 * 3600
    redis = own_shop.poimen.store.client.redis
    eventually(lambda: batch.status().running == 4 and not redis.exists("unacked"))
    first.destroy()
    report = batch.wait(timeout=60)
    assert report.succeeded == 16
    starts = [line.split()[1] for line in notes.read_text().splitlines() if line.startswith("start")]
    assert len(starts) > 16
    assert set(starts) == {str(i) for i in range(16)}


def test_everything_killed_goes_on(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """After all workers died the batch goes on with new ones; nothing was kept in a process (fault B01)."""
    old = workers.start(APP, concurrency=2)
    batch = own_shop.poimen.dispatch([own_shop.marked.s(str(notes), str(i), 0.2) for i in range(12)], concurrency=2)
    eventually(lambda: batch.status().succeeded >= 2)
    old.destroy()
    workers.start(APP, concurrency=2)
    assert batch.wait(timeout=60).succeeded == 12


def test_a_frozen_worker_does_not_double(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """A worker frozen past its lease cannot record a second outcome for what others did meanwhile (fault C01)."""
    frozen = workers.start(APP, concurrency=2)
    batch = own_shop.poimen.dispatch([own_shop.marked.s(str(notes), str(i), 0.4) for i in range(8)], concurrency=4)
    eventually(lambda: batch.status().running == 2)
    other = workers.start(APP, concurrency=2, wait=False)
    frozen.pause()
    workers.wait_ready(other)
    outcomes = list(batch.outcomes(timeout=60))
    frozen.resume()
    assert sorted(int(outcome.item_id) for outcome in outcomes) == list(range(8))
    eventually(lambda: sum(line.startswith("end") for line in notes.read_text().splitlines()) >= 9, timeout=20)
    assert len(list(batch.outcomes(timeout=5))) == 8


def test_warm_shutdown_hands_the_slot_on(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """SIGTERM: a running item ends, the lane gives up its slot at once, and another worker goes on (fault B06)."""
    first, second = workers.start_many(2, APP, concurrency=1)
    batch = own_shop.poimen.dispatch([own_shop.marked.s(str(notes), str(i), 0.2) for i in range(16)], concurrency=2)
    eventually(lambda: batch.status().running == 2)
    first.terminate()
    assert first.wait(20) == 0
    assert batch.wait(timeout=30).succeeded == 16
    starts = [line for line in notes.read_text().splitlines() if line.startswith("start")]
    assert len(starts) == 16
    assert second.alive


def test_a_batch_waits_for_its_first_worker(own_shop: ModuleType, workers: Workers) -> None:
    """Dispatched with no worker at all, a batch says that nobody serves its queue, and runs when one comes."""
    batch = own_shop.poimen.dispatch([own_shop.add.s(i, 0) for i in range(20)])
    assert batch.status().unserved_queues == ("celery",)
    workers.start(APP, concurrency=2)
    assert batch.wait(timeout=30).succeeded == 20
