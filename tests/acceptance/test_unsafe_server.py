"""A worker on a server that deletes what it needs, or that strangers can reach."""

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
    assert "maxmemory-policy is allkeys-lru" in said
    assert "POIMEN_ALLOW_EVICTION=true" in said
    assert "Traceback" not in said
    assert workers.start(APP, env={**env, "POIMEN_ALLOW_EVICTION": "true"}).alive


@pytest.fixture
def open_to_all(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that listens on every address and asks for no password."""
    extra = {"bind": "0.0.0.0", "protected-mode": "no"}  # noqa: S104 - that is what is refused
    with EmbeddedServer(tmp_path / "server", extra=extra) as server:
        yield server


def test_a_server_open_to_strangers_is_refused(open_to_all: EmbeddedServer, workers: Workers) -> None:
    """A worker ends at its start and says what to set, or starts where that is allowed (fault K03)."""
    env = {"POIMEN_REDIS_URL": open_to_all.url, "POIMEN_BROKER_URL": open_to_all.url}
    refused = workers.start(APP, env=env, wait=False)
    assert refused.wait(60) != 0
    said = refused.text()
    assert "other machines reach it without a password" in said
    assert "POIMEN_ALLOW_OPEN_SERVER=true" in said
    assert "Traceback" not in said
    assert workers.start(APP, env={**env, "POIMEN_ALLOW_OPEN_SERVER": "true"}).alive
