"""A network that cuts, delays, tears and half-closes connections between everybody and Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import chord, group

from tests.acceptance.conftest import APP, imported
from tests.acceptance.flaky_proxy import FlakyProxy
from tests.conftest import Workers, eventually


@pytest.fixture
def proxy(redis_url: str) -> Iterator[FlakyProxy]:
    """What producers and workers take for Redis."""
    with FlakyProxy(redis_url, seed=8, rate=0.01) as running:
        yield running


@pytest.fixture
def env(worker_env: dict[str, str], proxy: FlakyProxy) -> dict[str, str]:
    """Settings that lead through it, store and broker alike."""
    return {
        **worker_env,
        "POIMEN_REDIS_URL": proxy.url,
        "POIMEN_BROKER_URL": proxy.url,
        "POIMEN_TICKET_OVERDUE": "1.0",
    }


@pytest.fixture
def shop(env: dict[str, str], proxy: FlakyProxy) -> Iterator[ModuleType]:
    """The shop in this process, on that network."""
    with imported(env) as module:
        yield module
        proxy.quiet.set()


def test_every_item_ends_once_on_a_flaky_network(
    shop: ModuleType, workers: Workers, env: dict[str, str], proxy: FlakyProxy, notes: Path
) -> None:
    """Whatever replies are lost, each item has one outcome, and the callback runs (promise I8, fault D02)."""
    workers.env.update(env)
    workers.start_many(2, APP, concurrency=2)
    bodies = notes.with_name("bodies.txt")
    work = chord(group(shop.marked.s(str(bodies), str(i), 0.01) for i in range(300)), shop.tell.s(str(notes)))
    batch = shop.poimen.dispatch(work, concurrency=4)
    report = batch.wait(timeout=90)
    assert report.succeeded == 300
    assert list(report.results.values()) == [str(i) for i in range(300)]
    assert eventually(lambda: notes.exists() and notes.read_text())
    ended = Counter(line.split()[1] for line in bodies.read_text().splitlines() if line.startswith("end"))
    assert len(ended) == 300
    assert all(proxy.done.values()), proxy.done
    # Once recorded: the stream of outcomes holds each position once.
    assert sorted(outcome.item_id for outcome in batch.outcomes()) == sorted(str(i) for i in range(300))
