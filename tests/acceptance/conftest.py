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


@contextlib.contextmanager
def imported(env: Mapping[str, str], app: str = APP) -> Iterator[ModuleType]:
    """The shop's module (or another), imported anew, so that its `Poimen` has these settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        sys.modules.pop(app, None)
        module = importlib.import_module(app)
        try:
            yield module
        finally:
            module.poimen.store.client.close()
            module.app.close()
            sys.modules.pop(app, None)


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


@pytest.fixture
def own_shop(worker_env: dict[str, str]) -> Iterator[ModuleType]:
    """The shop in this process, with the settings of this test alone."""
    with imported(worker_env) as module:
        yield module


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where bodies leave their lines."""
    return tmp_path / "notes.txt"
