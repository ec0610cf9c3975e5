"""Fixtures of the acceptance tests: the shop app in this process, and real workers for it.

Starting a worker takes seconds, so the tests of a module share one where they leave it as they found it (`shop`,
`lanes`); a test that kills, freezes or configures has its own (`own_shop`, `workers`).
"""

from __future__ import annotations

import contextlib
import importlib
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import Workers

APP = "tests.acceptance.shop"
STEPS = "tests.acceptance.steps"
HOLDING = "tests.acceptance.holding"


@contextlib.contextmanager
def imported(env: Mapping[str, str], name: str = APP) -> Iterator[ModuleType]:
    """A module with an app, the shop by default, imported anew, so that its `Poimen` has these settings."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in env.items():
            patch.setenv(variable, value)
        sys.modules.pop(name, None)
        module = importlib.import_module(name)
        try:
            yield module
        finally:
            module.poimen.store.client.close()
            module.app.close()
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def module_env(server: object, _numbers: Iterator[int], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings for the tests of a module."""
    url = f"{server.url.rpartition('/')[0]}/{next(_numbers)}"  # type: ignore[attr-defined]
    return {
        "POIMEN_REDIS_URL": url,
        "POIMEN_BROKER_URL": url,
        "POIMEN_NAMESPACE": f"m{secrets.token_hex(6)}",
        "POIMEN_DATA_DIR": str(tmp_path_factory.mktemp("data")),
        "POIMEN_LEASE": "3.0",
        "POIMEN_TICK": "0.2",
    }


@pytest.fixture(scope="module")
def shop(module_env: dict[str, str]) -> Iterator[ModuleType]:
    """The shop in this process, with the module's settings."""
    with imported(module_env) as module:
        yield module


@pytest.fixture(scope="module")
def lanes(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One worker with two processes, shared by the module."""
    group = Workers(tmp_path_factory.mktemp("workers"), module_env)
    group.start(APP, concurrency=2)
    yield group
    group.destroy_all()


@pytest.fixture(scope="module")
def steps(module_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app of the canvas tests in this process, with the module's settings."""
    with imported(module_env, STEPS) as module:
        yield module


@pytest.fixture(scope="module")
def crew(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One worker with two processes for the canvas tests, shared by the module."""
    group = Workers(tmp_path_factory.mktemp("crew"), module_env)
    group.start(STEPS, concurrency=2)
    yield group
    group.destroy_all()


@pytest.fixture(scope="module")
def holding(module_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app of paused plain calls in this process, with the module's settings."""
    with imported(module_env, HOLDING) as module:
        yield module


@pytest.fixture
def own_shop(worker_env: dict[str, str]) -> Iterator[ModuleType]:
    """The shop in this process, with the settings of this test alone."""
    with imported(worker_env) as module:
        yield module


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where bodies leave their lines."""
    return tmp_path / "notes.txt"
