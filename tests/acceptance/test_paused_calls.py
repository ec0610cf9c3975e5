"""Plain Celery calls under a pause, with real workers: parked, kept, and going on with the resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.acceptance.conftest import imported
from tests.conftest import Workers, eventually

APP = "tests.acceptance.holding"


@pytest.fixture(scope="module")
def app(module_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app in this process, with the module's settings."""
    with imported(module_env, APP) as module:
        yield module


@pytest.fixture(scope="module")
def crew(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One worker with two processes, shared by the module."""
    group = Workers(tmp_path_factory.mktemp("crew"), module_env)
    group.start(APP, concurrency=2)
    yield group
    group.destroy_all()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def pause(app: ModuleType, scope: str = "*") -> Any:
    return app.poimen.store.pauses.pause_scope(scope, reason="test", actor="test")


def resume(app: ModuleType, scope: str = "*") -> None:
    released = app.poimen.store.pauses.resume_scope(scope, reason="test", actor="test")
    while True:
        app.poimen._room.publish_landed(type("L", (), {"tickets": released.tickets, "calls": released.calls})())
        if not released.left:
            return
        released = app.poimen.store.pauses.release_held(scope)


def parked(app: ModuleType) -> int:
    store = app.poimen.store
    return int(store.client.redis.hlen(store.keys.build("paused_calls")))


@pytest.mark.usefixtures("crew")
def test_parked_and_going_on(app: ModuleType, notes: Path) -> None:
    """A plain call that comes under a pause is parked, reads PAUSED, and runs once with the resume (promise P13)."""
    pause(app)
    called = app.tell.delay("x", str(notes))
    late = app.tell_late.delay("late", str(notes))
    eventually(lambda: parked(app) == 2)
    eventually(lambda: (called.state, late.state) == ("PAUSED", "PAUSED"))
    assert lines(notes) == []
    resume(app)
    assert called.get(timeout=20) == "x"
    assert late.get(timeout=20) == "late"
    assert sorted(lines(notes)) == ["late", "x"]
    assert parked(app) == 0
