"""Paused plain calls in every pool: parked, registered while they run, and going on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.acceptance.parking import APP, lines, parked, resumed_after, settled
from tests.conftest import Worker, Workers, eventually

POOLS = ("threads", "gevent", "eventlet", "solo")
QUICK = ("--without-mingle", "--without-gossip")


@pytest.fixture(scope="module")
def by_pool(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """One worker of each pool, each with a queue of its pool's name."""
    group = Workers(tmp_path_factory.mktemp("pools"), module_env)
    started = {pool: group.start(APP, pool=pool, concurrency=4, queues=pool, args=QUICK, wait=False) for pool in POOLS}
    for worker in started.values():
        group.wait_ready(worker)
    yield started
    group.destroy_all()


@pytest.mark.usefixtures("by_pool")
@pytest.mark.parametrize("pool", POOLS)
def test_parked_and_going_on(holding: ModuleType, notes: Path, pool: str) -> None:
    """A call of any pool is parked and runs once with the resume (promise P14)."""
    with resumed_after(holding, queue=pool):
        for number in range(12):
            holding.tell_late.apply_async((number, str(notes)), queue=pool)
        eventually(lambda: len(parked(holding)) == 12)
        assert lines(notes) == []
    eventually(lambda: len(lines(notes)) == 12)
    settled(holding)
    assert sorted(map(int, lines(notes))) == list(range(12))


@pytest.mark.usefixtures("by_pool")
@pytest.mark.parametrize("pool", POOLS)
def test_what_runs_is_in_the_receipt(holding: ModuleType, notes: Path, pool: str) -> None:
    """A call of any pool is in the receipt, longer than a lease too, until it ends (promise P14)."""
    gate = notes.with_name("gate")
    called = holding.waits_for.apply_async((str(notes), str(gate)), queue=pool)
    eventually(lambda: lines(notes))
    redis, key = holding.poimen.store.client.redis, holding.poimen.store.keys.build("running_calls")
    (first,) = redis.hvals(key)
    eventually(lambda: redis.time()[0] > float(first.split(b"\t")[0]) + 1)
    with resumed_after(holding, queue=pool) as receipt:
        assert receipt.calls == (called.id,)
        gate.touch()
        receipt.wait_quiet(timeout=20)
    assert called.get(timeout=20) == "done"
