"""Sealing end to end: real workers, the commands as a person runs them, the log that comes of it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poimen_tasks.audit.verify import verify
from poimen_tasks.errors import AuditBacklog
from poimen_tasks.store import Store
from poimen_tasks.store.directory_lock import running_url
from tests import nursery
from tests.acceptance.conftest import APP, imported
from tests.acceptance.sealing import SealProcess, events, kinds, numbers, record, seal_all
from tests.conftest import ROOT, Workers

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log"


@pytest.fixture
def env(worker_env: dict[str, str], log: Path) -> dict[str, str]:
    """The settings of every process of a test."""
    return {**worker_env, "POIMEN_AUDIT_DIR": str(log)}


@pytest.fixture
def command(env: dict[str, str]) -> Command:
    """Run a command to its end."""

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("POIMEN_")}
        every = {**kept, "PYTHONPATH": str(ROOT), **env, **more}
        return nursery.run(["poimen_tasks.cli", *words], env=every, timeout=120)

    return run


@pytest.fixture
def seal(env: dict[str, str], tmp_path: Path, log: Path) -> Iterator[Callable[..., SealProcess]]:
    """Starts a sealer; none is left behind."""
    started: list[SealProcess] = []

    def start(*words: str) -> SealProcess:
        started.append(SealProcess(env, log, tmp_path / f"sealer-{len(started)}.log", *words))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def fleet(workers: Workers) -> Workers:
    """One worker with two processes."""
    workers.start(APP, concurrency=2)
    return workers


@pytest.fixture
def store(settings) -> Iterator[Store]:
    """A store with the test's settings."""
    made = Store(settings, str(settings.redis_url))
    yield made
    made.client.close()


@pytest.mark.usefixtures("fleet")
def test_what_workers_did(own_shop, seal, log, store, eventually) -> None:
    """Each outcome of each item is sealed once, in the order of the stream, and leaves Redis (promise A8)."""
    process = seal()
    good = own_shop.poimen.dispatch(own_shop.poimen.starmap(own_shop.add, [(n, n) for n in range(300)]), concurrency=4)
    bad = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.odd_fails, range(20)))
    assert (good.wait(60).succeeded, bad.wait(60).failed) == (300, 10)
    eventually(lambda: store.audit.describe_audit().length == 0, timeout=90)
    assert process.stop() == 0
    sealed = events(log)
    ended = Counter((e["workflow_id"], e["status"]) for e in sealed if e["event_type"] == "item.finished")
    assert ended == {(good.id, "success"): 300, (bad.id, "success"): 10, (bad.id, "failure"): 10}
    tasks = [(e["workflow_id"], e["task_id"]) for e in sealed if e["event_type"] == "item.finished"]
    assert len(set(tasks)) == 320
    assert kinds(log)["batch.opened"] == 2
    assert len({event["event_id"] for event in sealed}) == len(sealed)
    report = verify(log)
    assert (report.ok, report.size, report.lines) == (True, len(sealed), len(sealed))


def test_a_log_of_ones_own(store, command, log) -> None:
    """The first start makes a key that only its owner reads, and prints the public one."""
    record(store, range(5))
    done = command("audit", "seal", "--once")
    assert done.returncode == 0, done.stderr
    (public,) = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("public key")]
    assert (log / "key.pub").read_text().strip() == public
    assert stat.S_IMODE((log / "key").stat().st_mode) == 0o600
    assert "sealed 5 lines" in done.stderr
    again = command("audit", "seal", "--once", "--json")
    told = json.loads(again.stdout)
    assert (told["public_key"], told["size"], told["recovered"]) == (public, 5, None)


@pytest.mark.parametrize("package", ["cryptography", "msgspec"])
def test_without_the_extra(command, tmp_path, store, package) -> None:
    """Without a package that the log needs, one line says what to install, and the stream is as it was."""
    broken = tmp_path / "broken" / package
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not here')")
    record(store, range(3))
    done = command("audit", "seal", "--once", PYTHONPATH=os.pathsep.join((str(broken.parent), str(ROOT))))
    assert (done.returncode, "pip install 'poimen-tasks[audit]'" in done.stderr) == (1, True), done.stderr
    assert len(done.stderr.splitlines()) == 1
    state = store.audit.describe_audit()
    assert (state.sealer, state.length) == ("", 3)


def test_too_much_waits(store, env, command, log) -> None:
    """A dispatch is refused, with the way out, while too much waits; health tells how much, how long (promise A10).

    Whatever trims the stream or does not, its length is looked at (fault H02).
    """
    limits = {**env, "POIMEN_AUDIT_BACKLOG": "20"}
    record(store, range(5))
    assert command("audit", "seal", "--once").returncode == 0
    record(store, range(5, 40))
    with imported(limits) as shop:
        work = shop.poimen.starmap(shop.add, [(1, 1)])
        with pytest.raises(AuditBacklog, match=r"35 audit entries wait .* start the sealer \(`poimen audit seal`\)"):
            shop.poimen.dispatch(work, batch_id="first")
        told = command("health", "--json", **limits)
        found = json.loads(told.stdout)
        assert (told.returncode, found["ok"], found["audit"]["lag_entries"]) == (1, False, 35)
        assert 0 < found["audit"]["lag_seconds"] < 600
        (backlog,) = [one for one in found["findings"] if one["subject"] == "backlog"]
        assert "dispatch is refused" in backlog["message"]
        assert "poimen audit seal" in backlog["advice"]
        assert any(one.subject == "backlog" and one.is_failure for one in shop.poimen.health())
        assert command("audit", "seal", "--once").returncode == 0
        shown = command("health")
        assert (shown.returncode, "entries wait, the oldest for" in " ".join(shown.stdout.split())) == (0, True)
        assert shop.poimen.dispatch(work, batch_id="first").id == "first"
    assert numbers(log) == list(range(40))


def test_doing_without_a_sealer(store, command, seal, log, eventually) -> None:
    """`--unregister` ends the waiting for a sealer that will not come; a living one refuses it."""
    process = seal()
    record(store, range(3))
    eventually(lambda: (log / "checkpoint").exists() and len(numbers(log)) == 3, timeout=90)
    refused = command("audit", "seal", "--unregister")
    assert (refused.returncode, "has a living sealer" in refused.stderr) == (1, True)
    assert process.stop() == 0
    done = command("audit", "seal", "--unregister")
    assert (done.returncode, "no sealer is registered any more" in done.stdout) == (0, True)
    assert store.audit.describe_audit().sealer == ""


def test_health_of_a_server_that_is_away(command) -> None:
    """A probe gets an answer, exit code 1 and one error, also without a server."""
    done = command("health", "--json", POIMEN_REDIS_URL="redis://127.0.0.1:1/0", POIMEN_CONNECT_TIMEOUT="0.3")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"], found["audit"]) == (1, False, None)
    assert [one["subject"] for one in found["findings"] if one["level"] == "error"] == ["server"]


def test_up_seals(tmp_path, eventually) -> None:
    """`poimen up` starts a sealer beside its worker; after Ctrl-C all that happened is sealed (promise A8)."""
    (tmp_path / "shop.py").write_text(
        "from poimen_tasks import Poimen\n\npoimen = Poimen('shop', namespace='mine')\napp = poimen.celery\n\n\n"
        "@poimen.task\ndef double(n):\n    return 2 * n\n"
    )
    (tmp_path / "produce.py").write_text(
        "from shop import double, poimen\n\nprint(poimen.dispatch(poimen.map(double, range(30))).wait(60).succeeded)\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POIMEN_")}
    env = {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    said = tmp_path / "up.log"
    with said.open("wb") as out:
        words = ["poimen_tasks.cli", "up", "-A", "shop", "-c", "1", "-l", "warning"]
        up = nursery.start(words, env=env, cwd=tmp_path, stdout=out)
    try:
        eventually(lambda: "sealing    mine of" in said.read_text(), timeout=90)
        url = running_url(tmp_path / ".poimen")
        made = subprocess.run(
            [sys.executable, "produce.py"],
            env={**env, "POIMEN_REDIS_URL": str(url)}, cwd=tmp_path, capture_output=True, text=True, timeout=90,
            check=False,
        )  # fmt: skip
        assert made.stdout.strip() == "30", made.stderr
        up.send_signal(signal.SIGINT)
        assert up.wait(90) == 0, said.read_text()
    finally:
        up.kill()
        up.wait()
    log = tmp_path / ".poimen" / "audit"
    assert kinds(log)["item.finished"] == 30
    assert kinds(log)["batch.completed"] == 1
    assert verify(log).ok


def test_a_large_field_is_kept_beside_the_log(own_shop, store, log) -> None:
    """A field over the limit is sealed by digest, and its bytes are in the content store."""
    text = "why " * 5_000
    own_shop.poimen.audit.record("step", actor="ada", action="0", reasoning=text)
    seal_all(store, log)
    (event,) = events(log)
    assert text not in json.dumps(event)
    (kept,) = [path for path in (log / "content").rglob("*") if path.is_file()]
    assert kept.read_text() == text
    kept.chmod(0o644)
    kept.write_bytes(kept.read_bytes().replace(b"why", b"who", 1))
    assert not verify(log).ok


def test_a_sealer_that_does_nothing_rests(seal, store, log, eventually) -> None:
    """Without entries the log does not grow and nothing is signed again."""
    process = seal()
    record(store, range(2))
    eventually(lambda: (log / "checkpoint").exists() and len(numbers(log)) == 2, timeout=90)
    before = (log / "checkpoint").stat().st_ino
    deadline = time.monotonic() + 2.5
    eventually(lambda: time.monotonic() > deadline, timeout=10)
    assert (log / "checkpoint").stat().st_ino == before
    assert store.audit.describe_audit().alive
    assert process.stop() == 0
