"""Redis as the store and the broker, as Debian packages it; all other tests run on the Valkey of the wheel."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import redis
from celery import chord, group

from poimen_tasks import ItemStatus, Poimen
from poimen_tasks.errors import StoreRefused
from poimen_tasks.health import Level
from poimen_tasks.store.loader import script_names
from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.conftest import APP, imported
from tests.conftest import ROOT, Workers, eventually


@pytest.fixture(scope="module")
def redis_server() -> str:
    """The program of an installed Redis."""
    found = shutil.which("redis-server")
    assert found, "redis-server is not installed: run `make services`"
    return found


@pytest.fixture(scope="module")
def server(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One Redis for the module."""
    with EmbeddedServer(tmp_path_factory.mktemp("redis"), program=redis_server) as running:
        yield running


@pytest.fixture(scope="module")
def env(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings for it."""
    return {
        "POIMEN_REDIS_URL": server.url,
        "POIMEN_BROKER_URL": server.url,
        "POIMEN_NAMESPACE": f"r{secrets.token_hex(6)}",
        "POIMEN_DATA_DIR": str(tmp_path_factory.mktemp("data")),
        "POIMEN_LEASE": "3.0",
        "POIMEN_TICK": "0.2",
    }


@pytest.fixture(scope="module")
def shop(env: dict[str, str]) -> Iterator[ModuleType]:
    """The shop in this process."""
    with imported(env) as module:
        yield module


@pytest.fixture(scope="module")
def lanes(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One worker with two processes, shared by the module."""
    group = Workers(tmp_path_factory.mktemp("workers"), env)
    group.start(APP, concurrency=2)
    yield group
    group.destroy_all()


def test_every_verb_holds_on_redis(redis_server: str) -> None:
    """Each script changes, replies and audits on Redis as it does on Valkey.

    What is selected calls each of them; `TEST_SERVER_PROGRAM` runs all tests of scripts so, by hand.
    """
    files = [ROOT / "tests" / "integration" / f"test_{name}.py" for name in (*script_names(), "doctor")]
    selected = ["-k", "once or audit or sound_at_work", *(str(path) for path in files if path.exists())]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TEST_SERVER_PROGRAM": redis_server},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_it_is_redis(shop: ModuleType) -> None:
    """The server of this module is Redis, not Valkey; 7.0 is the oldest that works."""
    info = shop.poimen.store.client.redis.info("server")
    assert "valkey_version" not in info
    assert tuple(map(int, info["redis_version"].split(".")[:2])) >= (7, 0)


@pytest.mark.usefixtures("lanes")
def test_a_chord_of_many_slices(shop: ModuleType, notes: Path) -> None:
    """A batch of several slices ends, its callback gets all results in item order (promises D1 and D3)."""
    work = chord(group(shop.add.s(i, 0) for i in range(3000)), shop.tell.s(str(notes)))
    report = shop.poimen.dispatch(work, concurrency=4).wait(timeout=40)
    assert list(report.results.values()) == list(range(3000))
    assert eventually(lambda: notes.exists() and notes.read_text()) == f"{list(range(3000))!r}\n"


@pytest.mark.usefixtures("lanes")
def test_retries_and_a_new_round(shop: ModuleType, notes: Path, tmp_path: Path) -> None:
    """Retries wait out their delay; failed items run again in a new round."""
    key = tmp_path / "key"
    batch = shop.poimen.dispatch([shop.third_time.s(str(notes)), shop.fails_unless.s(str(key))])
    report = batch.wait(timeout=30)
    assert (report.results["0"], list(report.errors)) == (3, ["1"])
    key.touch()
    assert batch.retry_failed() == 1
    assert batch.wait(timeout=30).results == {"0": 3, "1": "there"}


@pytest.mark.usefixtures("lanes")
def test_cancel(shop: ModuleType, notes: Path) -> None:
    """A cancelled batch ends, running items included (promise D8)."""
    batch = shop.poimen.dispatch([shop.until_cancelled.s(str(notes)) for _ in range(20)], concurrency=2)
    eventually(lambda: batch.status().running == 2 and notes.exists())
    batch.set_concurrency(1)
    batch.cancel("enough", "me")
    assert {outcome.status for outcome in batch.outcomes(timeout=20)} == {ItemStatus.CANCELLED}


@pytest.mark.usefixtures("lanes")
def test_plain_tasks(shop: ModuleType) -> None:
    """A plain call and a native chord keep their results there."""
    assert shop.add.delay(2, 3).get(timeout=20) == 5
    assert chord([shop.add.s(i, i) for i in range(4)], shop.total.s()).apply_async().get(timeout=20) == 12


@pytest.mark.usefixtures("lanes")
def test_large_calls_and_results(shop: ModuleType) -> None:
    """Arguments and results of a megabyte travel."""
    text = "x" * 1_000_000
    report = shop.poimen.dispatch([shop.echo.s(text, number=i) for i in range(3)]).wait(timeout=30)
    assert [result[0] for result in report.results.values()] == [[text]] * 3


@pytest.mark.usefixtures("lanes")
def test_the_doctor_finds_nothing(shop: ModuleType) -> None:
    """A live system on Redis is sound, and the doctor names the server."""
    shop.poimen.dispatch([shop.add.s(1, 1)]).wait(timeout=20)
    found = shop.poimen.doctor(repair=True)
    assert [one for one in found if one.level is not Level.OK] == []
    assert any("Redis 7" in one.message or "Redis 8" in one.message for one in found)


@pytest.mark.usefixtures("lanes")
def test_a_killed_server_comes_back(shop: ModuleType, server: EmbeddedServer, notes: Path) -> None:
    """Killed and started again, it has everything it had answered, and the batch ends (fault A02)."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.1) for i in range(20)], concurrency=2)
    eventually(lambda: batch.status().succeeded >= 3)
    server.kill()
    server.restart()
    assert batch.wait(timeout=60).succeeded == 20


def test_rights_that_are_missing(server: EmbeddedServer) -> None:
    """Who has no right to what a script does is told by an error of ours; this Redis has its own words for it."""
    admin = redis.Redis.from_url(server.url)
    try:
        admin.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "%R~*", "~{reading}:layout", "+@all", "-@write")
        admin.execute_command("ACL", "SETUSER", "writer", "on", ">pw", "~{reading}:layout", "+@all")
        for user in ("reader", "writer"):
            url = server.url.replace("redis://", f"redis://{user}:pw@")
            poimen = Poimen("reading", redis_url=url, namespace="reading")
            for _ in range(2):
                with pytest.raises(StoreRefused, match="refuses the command"):
                    poimen.audit.record("note", action="x", actor="a")
            with pytest.raises(StoreRefused, match="refuses the command"):
                poimen.tracker("t").update("T1")
            poimen.close()
    finally:
        admin.execute_command("ACL", "DELUSER", "reader", "writer")
        admin.close()
