"""Workers that leave as a container does, and go on in a new one; and everything killed at once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from poimen_tasks import BatchState
from tests.acceptance.conftest import APP
from tests.acceptance.places import QUICK, Places, places
from tests.acceptance.test_snapshots import lines, marked
from tests.conftest import ROOT, eventually, pid_exists


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Places]:
    """Places that can be lost."""
    with places(tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------------ a container
INIT = """
import os, signal, sys
child = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, lambda got, frame: os.kill(child, got))
while True:
    try:
        pid, status = os.waitpid(-1, 0)
    except ChildProcessError:
        sys.exit(255)
    if pid == child:
        sys.exit(os.waitstatus_to_exitcode(status) % 256)
"""


def _container(kind: str, env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A worker below a little init as tini is, or as process 1 of a namespace of its own."""
    celery = [sys.executable, "-m", "celery", "-A", APP, "worker", "-c", "2", "-l", "info", *QUICK, "-n", "box@test"]
    if kind == "init":
        command = [sys.executable, "-c", INIT, *celery]
    else:
        unshare = shutil.which("unshare")
        probe = [unshare, "--pid", "--fork", "--kill-child", "true"]
        if not unshare or subprocess.run(probe, check=False, capture_output=True).returncode:
            pytest.skip("no right to make a namespace of processes here; the little init shows the same")
        command = [unshare, "--pid", "--fork", "--kill-child", "--mount-proc", *celery]
    with log.open("wb") as out:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.mark.parametrize("kind", ["init", "pid 1"])
def test_in_a_container(
    own_shop: ModuleType, worker_env: dict[str, str], notes: Path, tmp_path: Path, kind: str
) -> None:
    """As a container stops: SIGTERM to its first process, a grace, all is kept before SIGKILL would come; exit 0."""
    log = tmp_path / "box.log"
    box = _container(kind, worker_env | {"POIMEN_SHUTDOWN_GRACE": "1"}, log)
    try:
        eventually(lambda: " ready." in log.read_text(), timeout=60)
        first = psutil.Process(box.pid) if kind == "init" else psutil.Process(box.pid).children()[0]
        family = [*psutil.Process(box.pid).children(recursive=True)]
        calls = [own_shop.stubborn.s(str(notes), "x"), *marked(own_shop, notes, range(20), 0.2)]
        batch = own_shop.poimen.dispatch(calls, workflow="wf-box", concurrency=2)
        eventually(lambda: len(lines(notes)) >= 4)
        first.send_signal(signal.SIGTERM)
        assert box.wait(20) == 0, log.read_text()[-2000:]
        assert [process.pid for process in family if pid_exists(process.pid)] == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(box.pid, signal.SIGKILL)
        box.wait()
    status = batch.status()
    assert (status.running, status.failed) == (0, 0)
    assert status.succeeded == len(set(lines(notes, "end")))
    snapshot = own_shop.poimen.snapshots.latest("wf-box")
    assert (snapshot.completed, snapshot.pending) == (status.succeeded, status.pending)


@pytest.mark.timeout(120)
def test_a_new_container_goes_on(moving: Places, notes: Path) -> None:
    """SIGTERM, a new host with an empty Redis, a worker that restores at its start: it goes on (promise P11)."""
    here = moving.open(POIMEN_RESTORE_ON_START="true")
    worker = here.start()
    batch = here.shop.poimen.dispatch(marked(here.shop, notes, range(30), 0.2), workflow="wf-host", concurrency=2)
    over = here.shop.poimen.dispatch(marked(here.shop, notes, ["over"]), workflow="wf-over")
    over.wait(timeout=20)
    eventually(lambda: len(lines(notes)) >= 4)
    worker.terminate()
    assert worker.wait(30) == 0
    done = set(lines(notes, "end"))
    here.lose()
    there = moving.open(POIMEN_RESTORE_ON_START="true")
    there.start()
    report = eventually(lambda: there.shop.poimen.batches() and there.shop.poimen.batch(batch.id)).wait(timeout=40)
    assert report.succeeded == 30
    assert {name: times for name, times in Counter(lines(notes)).items() if times > 1} == {}
    assert done < set(lines(notes))
    assert there.shop.poimen.snapshots.latest("wf-host").resume_attempts == 1
    there.start()
    assert [one.id for one in there.shop.poimen.batches()] == [batch.id]


def test_restoring_at_start_is_for_the_same_namespace(moving: Places, notes: Path) -> None:
    """Others may share the directory: their workflows run where they are."""
    here = moving.open()
    here.shop.poimen.dispatch(marked(here.shop, notes, range(3)), workflow="wf-theirs")
    here.shop.poimen.snapshots.create("wf-theirs")
    there = moving.open(POIMEN_NAMESPACE="other", POIMEN_RESTORE_ON_START="true")
    there.start()
    batch = there.shop.poimen.dispatch(there.shop.poimen.map(there.shop.noop, range(3)))
    assert batch.wait(timeout=20).succeeded == 3
    assert [one.id for one in there.shop.poimen.batches()] == [batch.id]


def test_restoring_at_start_is_for_empty_stores(moving: Places) -> None:
    """A store that knows any batch is left as it is, and a file that cannot be read keeps no worker from serving."""
    here = moving.open()
    poimen = here.shop.poimen
    for name in ("wf-a", "wf-b"):
        poimen.dispatch(poimen.map(here.shop.noop, range(3)), workflow=name, batch_id=name)
        poimen.snapshots.create(name)
    torn = next(poimen.snapshots.directory.glob("wf-b*.snapshot"))
    torn.write_bytes(torn.read_bytes()[:-3])
    here.lose()
    there = moving.open(POIMEN_RESTORE_ON_START="true")
    worker = there.start()
    eventually(there.shop.poimen.batches)
    assert there.shop.poimen.batch("wf-a").wait(timeout=20).succeeded == 3
    assert [one.id for one in there.shop.poimen.batches()] == ["wf-a"]
    assert "left out" in worker.text()
    there.lose()
    other = moving.open(POIMEN_RESTORE_ON_START="true")
    first = other.shop.poimen.dispatch(other.shop.poimen.map(other.shop.noop, range(3)), batch_id="mine")
    other.start()
    assert first.wait(timeout=20).succeeded == 3
    assert [one.id for one in other.shop.poimen.batches()] == ["mine"]


# ------------------------------------------------------------------------------------------ everything killed
@pytest.mark.timeout(120)
def test_everything_is_killed(moving: Places, notes: Path) -> None:
    """After `kill -9` of all workers and of Redis the same batch goes on from the append-only file."""
    here = moving.open()
    here.start()
    options = {"concurrency": 2, "on_complete": here.shop.tell.s(f"{notes}.called")}
    batch = here.shop.poimen.dispatch(marked(here.shop, notes, range(40), 0.1), batch_id="same", **options)
    eventually(lambda: batch.status().succeeded >= 10)
    held = here.shop.poimen.dispatch(marked(here.shop, notes, ["held"]), workflow="wf-held", batch_id="held")
    here.shop.poimen.pause(workflow="wf-held")
    here.shop.poimen.store.client.redis.waitaof(1, 0, 2_000)
    here.server.kill()
    here.workers.destroy_all()
    here.server.restart()
    known = {str(at) for at in range(40) if batch.is_complete(str(at))}
    assert len(known) >= 10
    before = Counter(lines(notes))
    here.start()
    assert batch.wait(timeout=60).succeeded == 40
    again = Counter(lines(notes)) - before
    assert known & set(again) == set()
    assert max(Counter(lines(notes)).values()) <= 2
    assert "held" not in again
    assert held.status().state is BatchState.PAUSED
    here.shop.poimen.resume(workflow="wf-held")
    assert held.wait(timeout=30).succeeded == 1
    eventually(lambda: batch.status().callbacks_pending == 0)
    assert len(Path(f"{notes}.called").read_text().splitlines()) == 1
