"""A worker on a server that deletes what it needs, or that strangers can reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.conftest import APP
from tests.conftest import Workers


def refuses(workers: Workers, url: str, words: str, *, allowed_by: str) -> None:
    """A worker ends at its start in so many words, and starts where the setting allows it."""
    env = {"POIMEN_REDIS_URL": url, "POIMEN_BROKER_URL": url}
    refused = workers.start(APP, env=env, wait=False)
    assert refused.wait(60) != 0
    said = refused.text()
    assert words in said
    assert f"{allowed_by}=true" in said
    assert "Traceback" not in said
    assert workers.start(APP, env={**env, allowed_by: "true"}).alive


@pytest.fixture
def evicting(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that evicts."""
    with EmbeddedServer(tmp_path / "server", extra={"maxmemory-policy": "allkeys-lru"}) as server:
        yield server


def test_a_server_that_evicts_is_refused(evicting: EmbeddedServer, workers: Workers) -> None:
    """A worker ends at its start, naming the policy and what to set; or starts where that is allowed (fault D05)."""
    refuses(workers, evicting.url, "maxmemory-policy is allkeys-lru", allowed_by="POIMEN_ALLOW_EVICTION")


@pytest.fixture
def open_to_all(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that listens on every address and asks for no password."""
    extra = {"bind": "0.0.0.0", "protected-mode": "no"}  # noqa: S104 - that is what is refused
    with EmbeddedServer(tmp_path / "server", extra=extra) as server:
        yield server


def test_a_server_open_to_strangers_is_refused(open_to_all: EmbeddedServer, workers: Workers) -> None:
    """A worker ends at its start and says what to set, or starts where that is allowed (fault K03)."""
    refuses(
        workers, open_to_all.url, "other machines reach it without a password", allowed_by="POIMEN_ALLOW_OPEN_SERVER"
    )
