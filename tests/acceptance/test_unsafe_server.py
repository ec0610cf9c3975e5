"""A worker on a server that deletes what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.conftest import APP
from tests.conftest import Workers


@pytest.fixture
def evicting(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that evicts."""
    with EmbeddedServer(tmp_path / "server", extra={"maxmemory-policy": "allkeys-lru"}) as server:
        yield server


def test_a_server_that_evicts_is_refused(evicting: EmbeddedServer, workers: Workers) -> None:
    """A worker ends at its start, naming the policy and what to set; or starts where that is allowed (fault D05)."""
    env = {"POIMEN_REDIS_URL": evicting.url, "POIMEN_BROKER_URL": evicting.url}
    refused = workers.start(APP, env=env, wait=False)
    assert refused.wait(60) != 0
    said = refused.text()
    assert "maxmemory-policy allkeys-lru" in said
    assert "POIMEN_ALLOW_EVICTION=true" in said
    assert "Traceback" not in said
    assert workers.start(APP, env={**env, "POIMEN_ALLOW_EVICTION": "true"}).alive
