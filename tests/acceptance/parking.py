"""What the tests of paused plain calls share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from poimen_tasks.errors import NotPaused
from tests.conftest import eventually

APP = "tests.acceptance.holding"


def lines(path: Path) -> list[str]:
    """What bodies have noted."""
    return path.read_text().splitlines() if path.exists() else []


def parked(app: ModuleType) -> list[str]:
    """The keys of the parked calls: their message ids."""
    store = app.poimen.store
    return sorted(key.decode() for key in store.client.redis.hkeys(store.keys.build("paused_calls")))


def waits(app: ModuleType, called: Any) -> None:
    """Wait until a call is parked; its result says so."""
    eventually(lambda: called.id in parked(app))
    assert called.state == "PAUSED"


def held_calls(app: ModuleType, scope: str) -> list[str]:
    """The plain calls that a scope holds back."""
    return [name for name in app.poimen.store.pause_reads.held(scope) if name.startswith("c\t")]


def settled(app: ModuleType) -> None:
    """Wait until nothing is parked and nothing runs: whatever was to run has."""
    store = app.poimen.store
    names = ("paused_calls", "paused_due", "paused_tries", "paused_keep", "running_calls")
    keys = [store.keys.build(name) for name in names]
    eventually(lambda: store.client.redis.exists(*keys) == 0, timeout=60)


@contextmanager
def resumed_after(app: ModuleType, **scope: Any) -> Iterator[Any]:
    """Pause; resume behind the block, whatever happens in it."""
    receipt = app.poimen.pause(reason="test", actor="test", **scope)
    try:
        yield receipt
    finally:
        with suppress(NotPaused):  # the test did that itself
            app.poimen.resume(reason="test", actor="test", **scope)
