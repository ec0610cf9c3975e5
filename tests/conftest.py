"""Fixtures and helpers of all tests: one real server per run, a namespace and a database per test, real workers."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psutil
import pytest

from poimen_tasks.testing import eventually
from tests import nursery

if TYPE_CHECKING:
    import redis

    from poimen_tasks.settings import Settings
    from poimen_tasks.store.server import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent
DATABASES = 1_024

# The fixtures that users of the package have: `poimen`, `poimen_worker`, `poimen_eager` and what they are made of.
pytest_plugins = ["poimen_tasks.testing"]


def pytest_configure() -> None:
    """Give every run the same surroundings."""
    # Whoever runs tests in parallel may say how wide the terminal is; what a command prints into a pipe is not cut.
    os.environ.pop("COLUMNS", None)
    _take_interrupts()
    _choose_server()


def _take_interrupts() -> None:
    """Take SIGINT as usual, also where the run was started in the background: programs started from here inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _choose_server() -> None:
    """TEST_SERVER_PROGRAM: every server of this run is that program."""
    if program := os.environ.get("TEST_SERVER_PROGRAM"):
        from poimen_tasks.store import server

        server.find_binary = lambda: program  # every server of this run is that program


# -------------------------------------------------------------------------------------------- processes
def pid_exists(pid: int) -> bool:
    """True while the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -------------------------------------------------------------------------------------------- workers
class Worker:
    """One `celery worker` process with its pool children."""

    def __init__(self, process: nursery.Child | subprocess.Popen[bytes], name: str, log: Path) -> None:
        self.process = process
        self.name = name
        self.log = log
        self._family: dict[int, psutil.Process] = {}

    @property
    def pid(self) -> int:
        """The main process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the main process runs."""
        return self.process.poll() is None

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """The pool processes that run now; remembered, so that they can be killed when their parent is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._family.update({p.pid: p for p in psutil.Process(self.pid).children(recursive=True)})
        return [p for p in self._family.values() if p.is_running() and pid_exists(p.pid)]

    def kill(self) -> None:
        """`kill -9` of the main process only, as the out-of-memory killer does."""
        self.children()
        self.process.kill()
        self.process.wait()

    def kill_child(self) -> int:
        """`kill -9` of one pool process; returns its pid."""
        child = self.children()[0]
        child.kill()
        return child.pid

    def terminate(self) -> None:
        """Ask for a warm shutdown (SIGTERM) and return at once."""
        self.children()
        if self.alive:
            self.process.terminate()

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the end of the main process and return its exit code."""
        return self.process.wait(timeout)

    def pause(self) -> None:
        """Freeze the main process and its children (SIGSTOP), as a suspended machine does."""
        for process in (psutil.Process(self.pid), *self.children()):
            process.suspend()

    def resume(self) -> None:
        """Let a frozen worker go on (SIGCONT)."""
        for process in (psutil.Process(self.pid), *self.children()):
            process.resume()

    def destroy(self) -> None:
        """Kill the whole family; harmless when it is gone."""
        children = self.children()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in children:  # a pool process may have made a group of its own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        # Not until the first process of the machine has buried them, which looks for its dead now and then only.
        eventually(lambda: not any(pid_exists(process.pid) for process in children), 5.0, 0.01)


class Workers:
    """Starts real `celery -A <module> worker` processes and leaves none behind.

    Args:
        directory: logs go here.
        env: environment on top of this process's own.
        ready: called with a `Worker` until it returns true; default: its log says "ready.".
    """

    def __init__(self, directory: Path, env: Mapping[str, str], ready: Callable[[Worker], bool] | None = None) -> None:
        self.directory = directory
        self.env = dict(env)
        self.ready = ready or (lambda worker: " ready." in worker.text())
        self.all: list[Worker] = []

    def start(
        self,
        module: str,
        *,
        concurrency: int = 2,
        pool: str = "prefork",
        loglevel: str = "info",
        queues: str | None = None,
        mingle: bool = False,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        timeout: float = 60.0,
    ) -> Worker:
        """Start one worker for the app in `module` and, with `wait`, return when it is ready.

        Without `mingle` it does not greet its neighbours first, for whose answers Celery waits a second.

        Raises:
            AssertionError: it ended or was not ready in time; carries the end of its log.
        """
        name = f"w{len(self.all) + 1}-{secrets.token_hex(3)}@test"
        log = self.directory / f"{name}.log"
        command = ["celery", "-A", module, "worker", "-n", name, "-P", pool, "-c", str(concurrency)]
        command += [
            "-l",
            loglevel,
            *(["-Q", queues] if queues else []),
            *([] if mingle else ["--without-mingle"]),
            *args,
        ]
        with log.open("wb") as out:
            process = nursery.start(
                command,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.env, **(env or {})},
                stdout=out,
                new_session=True,
            )
        worker = Worker(process, name, log)
        self.all.append(worker)
        if wait:
            self.wait_ready(worker, timeout)
        return worker

    def start_many(self, count: int, module: str, **options: Any) -> list[Worker]:
        """Start several alike at the same time and wait for all."""
        started = [self.start(module, **{**options, "wait": False}) for _ in range(count)]
        for worker in started:
            self.wait_ready(worker)
        return started

    def wait_ready(self, worker: Worker, timeout: float = 60.0) -> None:
        """Wait until the worker is ready; fails at once when it ended."""

        def probe() -> bool:
            if not worker.alive:
                raise RuntimeError(f"worker {worker.name} ended with {worker.process.returncode}")
            return self.ready(worker)

        try:
            eventually(probe, timeout, 0.05)
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"{error}; end of its log:\n{worker.text()[-3000:]}") from error

    def stop_all(self, timeout: float = 10.0) -> None:
        """Warm shutdown of all at the same time, then kill what is left."""
        for worker in self.all:
            worker.terminate()
        deadline = time.monotonic() + timeout
        for worker in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
        self.destroy_all()

    def destroy_all(self) -> None:
        """Kill all at once."""
        for worker in self.all:
            worker.destroy()
        self.all.clear()


# ------------------------------------------------------------------------------------------- fixtures
@pytest.fixture(name="eventually", scope="session")
def _eventually() -> Callable[..., Any]:
    """The polling helper as a fixture."""
    return eventually


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One real server for the whole run; a test that kills or fills a server starts its own."""
    from poimen_tasks.store.server import EmbeddedServer

    directory = tmp_path_factory.mktemp("server")
    with EmbeddedServer(directory, extra={"databases": str(DATABASES)}) as running:
        yield running


@pytest.fixture(scope="session")
def poimen_server(server: EmbeddedServer) -> EmbeddedServer:
    """One server is enough."""
    return server


@pytest.fixture(scope="session")
def _numbers(poimen_databases: Iterator[int]) -> Iterator[int]:
    return poimen_databases


@pytest.fixture
def redis_url(poimen_redis_url: str) -> str:
    """The server's URL with a database of its own: Celery's queues have fixed names and must not leak between tests."""
    return poimen_redis_url


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test has; not from `random`, which is seeded alike before every test."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client as the store uses it: bytes, protocol 2; emptied afterwards."""
    import redis

    client = redis.Redis.from_url(redis_url, protocol=2)
    yield client
    with contextlib.suppress(redis.RedisError):
        client.flushdb()
    client.close()


@pytest.fixture
def settings(redis_url: str, namespace: str, tmp_path: Path) -> Settings:
    """Settings for this test: its database and namespace, data in its temporary directory, short leases."""
    from poimen_tasks.settings import Settings

    return Settings(
        redis_url=redis_url,
        broker_url=redis_url,
        namespace=namespace,
        data_dir=str(tmp_path / "data"),
        lease=3.0,
        tick=0.2,
    )


@pytest.fixture
def worker_env(settings: Settings) -> dict[str, str]:
    """The environment that gives a process the same settings."""
    names = ("redis_url", "broker_url", "namespace", "data_dir", "lease", "tick")
    return {f"POIMEN_{name.upper()}": str(getattr(settings, name)) for name in names}


@pytest.fixture
def workers(tmp_path: Path, worker_env: dict[str, str]) -> Iterator[Workers]:
    """Starts workers with this test's settings; all are gone when the test ends, passed or not."""
    directory = tmp_path / "workers"
    directory.mkdir()
    group = Workers(directory, worker_env)
    yield group
    group.destroy_all()


# ------------------------------------------------------------------------------- nothing is left behind
@pytest.fixture(autouse=True, scope="session")
def _own_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test keeps without saying where (snapshots, a server's data) does not land in the current directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POIMEN_DATA_DIR", str(tmp_path_factory.mktemp("undirected")))
        yield


@pytest.fixture(autouse=True)
def _leaves_nothing_here() -> Iterator[None]:
    """A test writes into temporary directories: what it leaves in the directory of the run is named."""
    before = set(os.listdir(ROOT))  # noqa: PTH208 - names are enough
    yield
    left = {name for name in set(os.listdir(ROOT)) - before if not name.startswith(".") or name == ".poimen"}  # noqa: PTH208
    assert not left, f"left behind in {ROOT}: {', '.join(sorted(left))}"


# ------------------------------------------------------------------------------------------------ order
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders with long tests come first, each in its random order: at the end no file keeps all others waiting."""
    folders = ("acceptance", "integration", "unit")
    items.sort(key=lambda item: next((at for at, name in enumerate(folders) if name in item.path.parts), 0))


# --------------------------------------------------------------------------------------- unit is unit
@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Tests in `tests/unit` open no connection: what needs one belongs elsewhere."""
    if (ROOT / "tests" / "unit") not in item.path.parents:
        return (yield)

    def refuse(_self: socket.socket, address: object) -> None:
        raise AssertionError(f"a unit test tried to connect to {address!r}")

    with mock.patch.object(socket.socket, "connect", refuse):
        return (yield)
