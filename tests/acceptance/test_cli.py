"""The command line as a person uses it: processes of its own, real workers, a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from poimen_tasks.store.directory_lock import running_url
from tests import nursery
from tests.acceptance.conftest import APP
from tests.conftest import ROOT, Workers, eventually, pid_exists

Poimen = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*words: str) -> list[str]:
    """The command line of `poimen`."""
    return [sys.executable, "-m", "poimen_tasks.cli", *words]


def clean_env(**changes: str) -> dict[str, str]:
    """This environment without settings of ours, and with a terminal of some width."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POIMEN_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "USER": "ada", **changes}


@pytest.fixture
def poimen(worker_env: dict[str, str]) -> Poimen:
    """Run a command to its end."""

    def run(*words: str, env: dict[str, str] = worker_env) -> subprocess.CompletedProcess[str]:
        return nursery.run(["poimen_tasks.cli", *words], env=clean_env(**env))

    return run


class Running:
    """A command that goes on; what it prints goes to a file."""

    def __init__(self, directory: Path, env: dict[str, str], *words: str, cwd: Path = ROOT) -> None:
        self.log = directory / f"{words[0]}.log"
        with self.log.open("wb") as out:
            self.process = nursery.start(["poimen_tasks.cli", *words], env=env, cwd=cwd, stdout=out)

    def text(self) -> str:
        """What it printed so far."""
        return self.log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """The processes below it."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, how: signal.Signals) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(how)
        return self.process.wait(40)


@pytest.fixture
def start(tmp_path: Path, worker_env: dict[str, str]) -> Iterator[Callable[..., Running]]:
    """Start commands that go on; none is left behind."""
    started: list[Running] = []

    def begin(*words: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> Running:
        started.append(Running(tmp_path, clean_env(**(worker_env if env is None else env)), *words, cwd=cwd))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            family = one.family()
            one.process.kill()
            one.process.wait()
            for process in family:
                if process.is_running():
                    process.kill()


@pytest.fixture
def fleet(workers: Workers) -> Workers:
    """One worker with two processes, for this test alone."""
    workers.start(APP, concurrency=2)
    return workers


# ------------------------------------------------------------------------------------------- looking
@pytest.mark.usefixtures("fleet")
def test_following_work(own_shop: ModuleType, poimen: Poimen) -> None:
    """Watch, status and doctor agree on a finished batch; exit codes tell how it ended (promise D5)."""
    good = own_shop.poimen.dispatch(
        own_shop.poimen.starmap(own_shop.add, [(n, n) for n in range(20)]), workflow="nightly"
    )
    watched = poimen("watch", "-A", APP, good.id)
    assert (watched.returncode, "20 of 20 items succeeded" in watched.stdout) == (0, True), watched.stderr
    bad = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.odd_fails, range(6)))
    watched = poimen("watch", "-A", APP, bad.id)
    assert (watched.returncode, "item 1: ValueError: 1 is odd" in watched.stdout) == (1, True), watched.stderr

    found = json.loads(poimen("status", "-A", APP, "--json").stdout)
    assert [(row["batch_id"], row["state"]) for row in found["batches"]] == [(bad.id, "failed"), (good.id, "completed")]
    ((worker),) = found["workers"]
    assert (worker["slots"], worker["pool"], worker["alive"]) == (2, "prefork", True)
    found = json.loads(poimen("status", "-A", APP, "--json", "--workflow", "nightly").stdout)
    assert [row["batch_id"] for row in found["batches"]] == [good.id]
    assert json.loads(poimen("status", "-A", APP, good.id, "--json").stdout)["stats"]["succeeded"] == 20

    checked = json.loads(poimen("doctor", "-A", APP, "--json").stdout)
    assert [row for row in checked["findings"] if row["level"] != "ok"] == []


@pytest.mark.usefixtures("fleet")
def test_stream_of_outcomes(own_shop: ModuleType, poimen: Poimen) -> None:
    """`watch --json` prints an object an outcome, and goes on behind a cursor without a gap (promise D1)."""
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.echo, range(300)))
    lines = [json.loads(line) for line in poimen("watch", "-A", APP, batch.id, "--json").stdout.splitlines()]
    assert sorted(int(row["item_id"]) for row in lines) == list(range(300))
    assert all(row["result"] == [[int(row["item_id"])], {}] for row in lines)
    rest = poimen("watch", "-A", APP, batch.id, "--json", "--after", str(lines[199]["cursor"])).stdout.splitlines()
    assert [json.loads(line) for line in rest] == lines[200:]


def test_work_that_nobody_serves(own_shop: ModuleType, poimen: Poimen) -> None:
    """A batch without a worker is told with what to start; the doctor calls it an error."""
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(3)), queue="gpu")
    assert f"poimen worker -A {APP} -Q gpu" in poimen("status", "-A", APP, batch.id).stdout
    doctor = poimen("doctor", "-A", APP)
    assert (doctor.returncode, "no worker is alive" in doctor.stdout) == (1, True)


# ------------------------------------------------------------------------------------------- steering
@pytest.mark.usefixtures("fleet")
def test_cancelling(own_shop: ModuleType, poimen: Poimen, notes: Path) -> None:
    """`cancel` stops a batch: what waits gets its outcome, running bodies are told, actor and reason are kept."""
    batch = own_shop.poimen.dispatch(
        own_shop.poimen.map(own_shop.until_cancelled, [str(notes)] * 10), concurrency=2
    )  # fmt: skip
    eventually(lambda: batch.status().running)
    done = poimen("cancel", "-A", APP, batch.id, "--reason", "wrong input")
    assert (done.returncode, f"cancelled {batch.id}" in done.stdout) == (0, True), done.stderr
    assert poimen("watch", "-A", APP, batch.id).returncode == 1
    assert batch.status().cancelled == 10
    entries = own_shop.poimen.store.client.redis.xrange(own_shop.poimen.store.keys.build("audit"))
    (header,) = [row[b"h"] for _, row in entries if row[b"t"] == b"batch.cancelling"]
    assert b"ada" in header
    assert b"wrong input" in header
    again = poimen("cancel", "-A", APP, batch.id)
    assert again.returncode == 0


@pytest.mark.usefixtures("fleet")
def test_killing(own_shop: ModuleType, poimen: Poimen) -> None:
    """`cancel --terminate` also ends bodies that ask nobody."""
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.nap, [60.0, 60.0]))
    eventually(lambda: batch.status().running == 2)
    assert poimen("cancel", "-A", APP, batch.id, "--terminate").returncode == 0
    eventually(lambda: batch.status().is_over)


def test_detaching(own_shop: ModuleType, start: Callable[..., Running]) -> None:
    """Ctrl-C ends the watching and not the batch, and says so."""
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(3)))
    watching = start("watch", "-A", APP, batch.id)
    eventually(lambda: "0/3" in watching.text())
    assert watching.stop(signal.SIGINT) == 130
    assert f"poimen watch -A {APP} {batch.id}" in watching.text()
    assert not batch.status().is_over


def test_repairing(own_shop: ModuleType, poimen: Poimen) -> None:
    """`doctor --repair` puts counters right; before, it fails, and afterwards that error is gone (invariant I3)."""
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(300)))
    store = own_shop.poimen.store
    store.client.redis.hset(store.keys.record(batch.id), "pending", 7)
    found = json.loads(poimen("doctor", "-A", APP, "--repair", "--json").stdout)["findings"]
    assert [(row["check"], row["repaired"]) for row in found if row["repairable"]] == [("counters", True)]
    assert batch.status().pending == 300
    found = json.loads(poimen("doctor", "-A", APP, "--json").stdout)["findings"]
    assert [row for row in found if row["repairable"]] == []


@pytest.mark.usefixtures("fleet")
def test_failed_items_run_again(own_shop: ModuleType, poimen: Poimen, notes: Path) -> None:
    """`retry` runs the failed items again, and the audit log knows who asked (promise D3)."""
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.fails_unless, [str(notes)] * 3))
    assert batch.wait(timeout=30).failed == 3
    shown = poimen("status", "-A", APP, batch.id).stdout
    assert "  item 0: RuntimeError: not yet" in shown
    notes.touch()
    done = poimen("retry", "-A", APP, batch.id)
    assert (done.returncode, "3 failed items run again" in done.stdout) == (0, True), done.stderr
    assert batch.wait(timeout=30).succeeded == 3
    assert b"ada" in header_of(own_shop, b"batch.retried")


def test_another_limit(own_shop: ModuleType, poimen: Poimen) -> None:
    """`concurrency` changes the limit of a batch, and the audit log knows who did (promise D2)."""
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(3)))
    done = poimen("concurrency", "-A", APP, batch.id, "3")
    assert (done.returncode, done.stdout) == (0, f"limit of {batch.id}: 10 -> 3\n"), done.stderr
    assert batch.status().concurrency == 3
    assert poimen("concurrency", "-A", APP, batch.id, "all").returncode == 0
    assert batch.status().concurrency is None
    assert b"ada" in header_of(own_shop, b"batch.concurrency_changed")


def header_of(shop: ModuleType, kind: bytes) -> bytes:
    """The header of the first audit entry of a type."""
    entries = shop.poimen.store.client.redis.xrange(shop.poimen.store.keys.build("audit"))
    return next(row[b"h"] for _, row in entries if row[b"t"] == kind)


# ------------------------------------------------------------------------------------------- processes
def test_worker(own_shop: ModuleType, start: Callable[..., Running]) -> None:
    """`poimen worker` becomes a Celery worker that serves batches, and a signal stops it in order."""
    working = start("worker", "-A", APP, "-c", "1", "-Q", "celery,gpu", "--max-tasks-per-child", "50")
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(50)), queue="gpu")
    assert batch.wait(timeout=40).ok
    assert f"poimen-{working.process.pid}@" in working.text()
    assert working.stop(signal.SIGTERM) == 0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with an app, as a newcomer has it."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "shop.py").write_text(
        "from poimen_tasks import Poimen\n\npoimen = Poimen('shop')\napp = poimen.celery\n\n\n"
        "@poimen.task\ndef double(n):\n    return 2 * n\n"
    )
    (place / "produce.py").write_text(
        "from shop import double, poimen\n\n"
        "print(poimen.dispatch(poimen.map(double, range(30)), batch_id='first').id)\n"
    )
    return place


def in_project(project: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program or, after "-m", a module in the project's directory, as in another terminal."""
    if words[0] == "-m":
        return nursery.run(words[1:], env=clean_env(**env), cwd=project)
    return subprocess.run(
        [sys.executable, *words],
        env=clean_env(**env),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_up(project: Path, start: Callable[..., Running]) -> None:
    """`poimen up` is all that a newcomer starts; other commands find its server; Ctrl-C stops everything."""
    up = start("up", "-A", "shop", "-c", "2", env={}, cwd=project)
    eventually(lambda: " ready." in up.text(), timeout=40)
    url = running_url(project / ".poimen")
    assert url is not None
    assert f"  export POIMEN_REDIS_URL={url}    # for" in up.text()  # the whole line can be pasted

    produced = in_project(project, "produce.py", POIMEN_REDIS_URL=url)
    assert produced.stdout.strip() == "first", produced.stderr
    watched = in_project(project, "-m", "poimen_tasks.cli", "watch", "-A", "shop", "first")
    assert (watched.returncode, "30 of 30" in watched.stdout) == (0, True), watched.stderr
    second = in_project(project, "-m", "poimen_tasks.cli", "up", "-A", "shop")
    assert (second.returncode, "in use" in second.stderr) == (1, True)

    family = up.family()
    assert len(family) >= 4
    assert up.stop(signal.SIGINT) == 0
    eventually(lambda: not any(pid_exists(process.pid) for process in family))
    assert running_url(project / ".poimen") is None


def test_up_comes_back_with_its_data(project: Path, start: Callable[..., Running]) -> None:
    """What was dispatched before the server stopped is there when it starts again, also in another directory."""
    up = start("up", "--dir", "state", "--json", env={}, cwd=project)
    eventually(lambda: up.text().startswith("{"))
    told = json.loads(up.text().splitlines()[0])
    assert (told["app"], told["data_dir"]) == (None, str(project / "state"))
    assert in_project(project, "produce.py", POIMEN_REDIS_URL=told["url"]).returncode == 0
    assert up.stop(signal.SIGTERM) == 0

    up = start("up", "--dir", "state", env={}, cwd=project)
    eventually(lambda: running_url(project / "state"), timeout=40)
    found = in_project(project, "-m", "poimen_tasks.cli", "status", "-A", "shop", "--dir", "state", "--json")
    assert [row["batch_id"] for row in json.loads(found.stdout)["batches"]] == ["first"], found.stderr
    assert up.stop(signal.SIGTERM) == 0


def test_up_keeps_its_port(project: Path, start: Callable[..., Running]) -> None:
    """With --port the server has that port at every start; one that cannot be had, or is of no use, is said at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        taken = in_project(project, "-m", "poimen_tasks.cli", "up", "--port", port)
    assert (taken.returncode, f"port {port} of 127.0.0.1 cannot be had" in taken.stderr) == (1, True), taken.stderr
    for _ in range(2):
        up = start("up", "--port", port, env={}, cwd=project)
        eventually(lambda: running_url(project / ".poimen"), timeout=40)
        assert running_url(project / ".poimen") == f"redis://127.0.0.1:{port}/0"
        assert up.stop(signal.SIGTERM) == 0
    useless = in_project(project, "-m", "poimen_tasks.cli", "up", "--port", port, POIMEN_REDIS_URL="redis://h/0")
    assert (useless.returncode, "--port" in useless.stderr) == (2, True)


def test_up_with_a_broken_app(project: Path, start: Callable[..., Running]) -> None:
    """An app that cannot be imported ends `up` with one line, and its server with it."""
    (project / "shop.py").write_text("import nothing_like_it\n")
    up = start("up", "-A", "shop", env={}, cwd=project)
    assert up.process.wait(30) == 1
    assert "nothing_like_it" in up.text().splitlines()[-1]
    assert running_url(project / ".poimen") is None


def test_up_when_its_worker_ends(project: Path, start: Callable[..., Running]) -> None:
    """A worker that ends by itself ends `up`, with exit code 1 and a line that says so."""
    up = start("up", "-A", "shop", "-c", "1", env={}, cwd=project)
    eventually(lambda: " ready." in up.text(), timeout=40)
    for process in up.family():
        if "celery" in process.cmdline() and process.ppid() == up.process.pid:
            process.kill()
    assert up.process.wait(30) == 1
    assert "worker ended by itself" in up.text()


def test_up_when_its_worker_is_drained(project: Path, start: Callable[..., Running]) -> None:
    """A drained worker is no end of `up`: the server and the sealer run on, and how to go on is said."""
    up = start("up", "-A", "shop", "-c", "1", "--seal", "--dir", "state", env={}, cwd=project)
    eventually(lambda: " ready." in up.text(), timeout=40)
    look = ("-m", "poimen_tasks.cli", "status", "-A", "shop", "--dir", "state", "--json")
    eventually(lambda: json.loads(in_project(project, *look).stdout)["workers"], timeout=40)  # it has registered itself
    drained = in_project(project, "-m", "poimen_tasks.cli", "drain", "--dir", "state", "--wait")
    assert drained.returncode == 0, drained.stderr
    eventually(lambda: "the worker was drained" in up.text(), timeout=40)
    assert "the server and the sealer run on. Ctrl-C stops them; `poimen worker -A shop --dir state`" in up.text()
    found = in_project(project, *look)
    assert json.loads(found.stdout)["workers"] == [], found.stderr
    assert any("seal" in process.cmdline() for process in up.family())
    assert up.stop(signal.SIGINT) == 0
    assert running_url(project / "state") is None


def test_up_dies_with_everything(project: Path, start: Callable[..., Running]) -> None:
    """When `up` is killed its server and worker end too: nothing is left running."""
    up = start("up", "-A", "shop", "-c", "1", env={}, cwd=project)
    eventually(lambda: " ready." in up.text(), timeout=40)
    family = up.family()
    up.process.kill()
    up.process.wait()
    eventually(lambda: not any(pid_exists(process.pid) for process in family))


def test_up_with_a_server_of_ones_own(project: Path, start: Callable[..., Running], redis_url: str) -> None:
    """With POIMEN_REDIS_URL set no server is started; SIGTERM stops the rest; a dead one is said at once."""
    up = start("up", "-A", "shop", "-c", "1", env={"POIMEN_REDIS_URL": redis_url}, cwd=project)
    eventually(lambda: " ready." in up.text(), timeout=40)
    assert running_url(project / ".poimen") is None
    family = up.family()
    assert len(family) >= 2
    assert up.stop(signal.SIGTERM) == 0
    eventually(lambda: not any(pid_exists(process.pid) for process in family))
    dead = {"POIMEN_REDIS_URL": "redis://127.0.0.1:1/0", "POIMEN_CONNECT_TIMEOUT": "0.3"}
    up = start("up", "-A", "shop", env=dead, cwd=project)
    assert up.process.wait(30) == 1
    assert "does not answer" in up.text()


# ------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("status", "-A", APP, "nobody"), 1, "batch 'nobody' is not known"),
        (("watch", "-A", APP, "nobody"), 1, "batch 'nobody' is not known"),
        (("cancel", "-A", APP, "a/b"), 1, "batch id"),
        (("status", "-A", "nothing.here"), 1, "no module named 'nothing.here'"),
        (("retry", "-A", APP, "nobody"), 1, "batch 'nobody' is not known"),
        (("concurrency", "-A", APP, "nobody", "3"), 1, "batch 'nobody' is not known"),
        (("cancel", "-A", APP), 2, "BATCH"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_errors(poimen: Poimen, words: tuple[str, ...], code: int, said: str) -> None:
    """An error is one line on stderr, without a traceback; the exit code tells misuse from failure."""
    done = poimen(*words)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
    assert done.stdout == ""


def test_server_that_does_not_answer(poimen: Poimen, worker_env: dict[str, str]) -> None:
    """A dead server is one line with the URL, its password hidden, and what to do."""
    env = {**worker_env, "POIMEN_REDIS_URL": "redis://:geheim@127.0.0.1:1/0", "POIMEN_CONNECT_TIMEOUT": "0.3"}
    done = poimen("status", "-A", APP, env=env)
    assert (done.returncode, "geheim" in done.stderr, "POIMEN_REDIS_URL" in done.stderr) == (1, False, True)


def test_installed_command() -> None:
    """The package brings the `poimen` command."""
    script = shutil.which("poimen", path=str(Path(sys.executable).parent))
    assert script is not None, "run the tests with make test, which installs the package"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("poimen, version ")
