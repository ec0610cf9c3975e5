"""Workers that leave: by SIGTERM, SIGQUIT and `poimen drain`."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from poimen_tasks import BatchState
from poimen_tasks.cli import main
from tests.acceptance.conftest import APP
from tests.acceptance.places import QUICK
from tests.acceptance.test_snapshots import lines, marked
from tests.conftest import Workers, eventually, pid_exists


def graceful(workers: Workers, grace: float | None, **options: Any) -> Any:
    """A worker with a grace."""
    env = {} if grace is None else {"POIMEN_SHUTDOWN_GRACE": str(grace)}
    return workers.start(APP, args=QUICK, env={**env, **options.pop("env", {})}, **{"concurrency": 2, **options})


# ------------------------------------------------------------------------------------------ SIGTERM
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_sigterm(own_shop: ModuleType, workers: Workers, notes: Path, pool: str) -> None:
    """SIGTERM: nothing begins any more, what runs finishes, the workflow is kept on disk, exit code 0 (promise P11).

    Nothing that waits in its hands runs first, on threads either (fault B10).
    """
    worker = graceful(workers, None, pool=pool)
    batch = own_shop.poimen.dispatch(marked(own_shop, notes, range(20), 0.5), workflow="wf-term", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 2)
    worker.terminate()
    assert worker.wait(30) == 0
    started = lines(notes)
    assert Counter(started) == Counter(lines(notes, "end"))
    assert len(started) <= 6
    snapshot = own_shop.poimen.snapshots.latest("wf-term")
    status = batch.status()
    assert (status.running, status.succeeded) == (0, len(started))
    assert (snapshot.completed, snapshot.pending) == (status.succeeded, status.pending)
    assert (snapshot.actor, snapshot.reason) == ("worker", "the worker leaves")
    assert "is kept in snapshot" in worker.text()
    assert own_shop.poimen.store.reads.workers() == []
    graceful(workers, None, pool=pool)
    assert batch.wait(timeout=40).succeeded == 20
    assert Counter(lines(notes)) == Counter(map(str, range(20)))


def test_a_lane_of_which_the_parent_has_not_heard(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """SIGTERM when a lane has begun and the parent has not heard: what it ran is in the snapshot (promise P11)."""
    worker = workers.start(
        "tests.acceptance.projects.slow_parent", args=QUICK, env={"SHOP_HEARS_AFTER": "1"}, concurrency=1
    )
    batch = own_shop.poimen.dispatch(marked(own_shop, notes, range(4), 1.5), workflow="wf-late", concurrency=1)
    eventually(lambda: len(lines(notes)) >= 1)
    worker.terminate()
    assert worker.wait(30) == 0
    assert (lines(notes), lines(notes, "end")) == (["0"], ["0"])
    snapshot, status = own_shop.poimen.snapshots.latest("wf-late"), batch.status()
    assert (status.running, status.succeeded) == (0, 1)
    assert (snapshot.completed, snapshot.pending) == (1, 3)


def test_nothing_to_keep(own_shop: ModuleType, workers: Workers) -> None:
    """A workflow that is over is not kept, and an idle worker leaves at once."""
    worker = graceful(workers, None)
    own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(3)), workflow="wf-over").wait(timeout=20)
    worker.terminate()
    assert worker.wait(30) == 0
    assert own_shop.poimen.snapshots.all() == []


def test_the_grace_is_over(own_shop: ModuleType, workers: Workers, notes: Path, tmp_path: Path) -> None:
    """After the grace bodies are asked to stop, and ended where they do not: pending again, not counted, exit 0."""
    worker = graceful(workers, 0.3)
    steps = tmp_path / "steps"
    calls = [own_shop.stubborn.s(str(notes), "x"), own_shop.stepping.s(str(steps), "long", 100)]
    batch = own_shop.poimen.dispatch(calls, workflow="wf-grace", concurrency=2)
    eventually(lambda: notes.exists() and len(lines(steps, "step")) >= 3)
    worker.terminate()
    assert worker.wait(30) == 0
    status = batch.status()
    assert (status.pending, status.running, status.failed) == (2, 0, 0)
    assert own_shop.poimen.snapshots.latest("wf-grace").pending == 2
    Path(f"{notes}.go").touch()
    graceful(workers, None)
    report = batch.wait(timeout=40)
    assert (report.succeeded, report.results["1"]) == (2, 100)
    assert {outcome.attempts for outcome in batch.outcomes(timeout=5)} == {1}
    begun = [int(line.split()[2]) for line in steps.read_text().splitlines() if line.startswith("start")]
    assert begun[0] == 0
    assert begun[1] >= 3, "it went on from where it had saved"
    rows = [int(line.split()[2]) for line in steps.read_text().splitlines() if line.startswith("step")]
    assert sum(times - 1 for times in Counter(rows).values()) <= 1


def test_sigterm_twice(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """A second SIGTERM changes nothing: what runs still finishes, and nothing is lost or runs twice."""
    worker = graceful(workers, None)
    batch = own_shop.poimen.dispatch(marked(own_shop, notes, range(8), 1.0), workflow="wf-term2", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 2)
    worker.terminate()
    eventually(lambda: "leaving" in worker.text())
    worker.terminate()
    assert worker.wait(30) == 0
    assert Counter(lines(notes)) == Counter(lines(notes, "end"))
    assert own_shop.poimen.snapshots.has("wf-term2")
    graceful(workers, None)
    assert batch.wait(timeout=40).succeeded == 8
    assert len(lines(notes)) == 8


def test_a_cold_shutdown_of_solo(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """A solo worker cannot end a body: with SIGQUIT it ends after it, and no item fails (promise P11)."""
    worker = graceful(workers, None, pool="solo", env={"SHOP_SOFT": "4"})
    batch = own_shop.poimen.dispatch(marked(own_shop, notes, range(4), 1.0), workflow="wf-solo", concurrency=1)
    eventually(lambda: len(lines(notes)) >= 1)
    os.kill(worker.pid, signal.SIGQUIT)
    worker.wait(30)
    assert Counter(lines(notes)) == Counter(lines(notes, "end"))
    graceful(workers, None)
    assert batch.wait(timeout=40).succeeded == 4
    assert len(lines(notes)) == 4


@pytest.mark.parametrize("how", ["SIGQUIT", "REMAP_SIGTERM", "second"])
def test_a_cold_shutdown(own_shop: ModuleType, workers: Workers, notes: Path, how: str) -> None:
    """SIGQUIT, a SIGTERM that is mapped to it, or SIGQUIT behind SIGTERM: bodies are ended in time, and run again.

    The workflow is kept, and no attempt is counted (faults B08, B09).
    """
    soft = {"SHOP_SOFT": "4", **({"REMAP_SIGTERM": "SIGQUIT"} if how == "REMAP_SIGTERM" else {})}
    worker = graceful(workers, None, env=soft)
    calls = [own_shop.stubborn.s(str(notes), "x"), *marked(own_shop, notes, range(4))]
    batch = own_shop.poimen.dispatch(calls, workflow="wf-quit", concurrency=1)
    eventually(notes.exists)
    if how != "SIGQUIT":
        worker.terminate()
    if how == "second":
        eventually(lambda: "leaving" in worker.text())
    if how != "REMAP_SIGTERM":
        os.kill(worker.pid, signal.SIGQUIT)
    code = worker.wait(40)
    # SIGQUIT ends with 1 while something runs, as Celery has it.
    assert code == 0 or how == "SIGQUIT", worker.text()[-3000:]
    eventually(lambda: batch.status().running == 0, timeout=20)
    assert batch.status().pending == 5
    assert own_shop.poimen.snapshots.latest("wf-quit").pending == 5
    assert not [child for child in worker.children() if pid_exists(child.pid)]
    Path(f"{notes}.go").touch()
    graceful(workers, None)
    assert batch.wait(timeout=40).succeeded == 5
    assert {outcome.attempts for outcome in batch.outcomes(timeout=5)} == {1}


@pytest.mark.parametrize("how", ["all at once", "Ctrl+C twice", "SIGQUIT twice"])
def test_a_told_pool_process_fails_no_item(own_shop: ModuleType, workers: Workers, notes: Path, how: str) -> None:
    """A supervisor sends SIGTERM to all processes, or Celery does at its hardest: items go back, not counted."""
    worker = graceful(workers, None, env={"SHOP_SOFT": "4"})
    calls = [own_shop.stubborn.s(str(notes), str(number)) for number in range(4)]
    batch = own_shop.poimen.dispatch(calls, workflow="wf-told", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 2)
    if how == "all at once":
        for process in (*worker.children(), psutil.Process(worker.pid)):
            process.terminate()
    else:
        # Said when Celery has its handler for the second one in place; before that it would be another first one.
        number, ready = {
            "Ctrl+C twice": (signal.SIGINT, "Warm shutdown (MainProcess)"),
            "SIGQUIT twice": (signal.SIGQUIT, "Initiating Soft Shutdown"),
        }[how]
        os.kill(worker.pid, number)
        eventually(lambda: ready in worker.text())
        os.kill(worker.pid, number)
    worker.wait(40)
    eventually(lambda: batch.status().running == 0, timeout=20)
    assert (batch.status().pending + batch.status().delayed, batch.status().failed) == (4, 0)
    assert own_shop.poimen.store.reads.workers() == []
    Path(f"{notes}.go").touch()
    graceful(workers, None)
    assert batch.wait(timeout=40).succeeded == 4
    assert {outcome.attempts for outcome in batch.outcomes(timeout=5)} == {1}


# ------------------------------------------------------------------------------------------ poimen drain
@pytest.fixture
def poimen_command(worker_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a `poimen` command on the test's store."""
    for name, value in worker_env.items():
        monkeypatch.setenv(name, value)

    def run(*words: str) -> Any:
        return CliRunner().invoke(main, [*words, "-A", APP], prog_name="poimen")

    return run


def test_drain(own_shop: ModuleType, workers: Workers, notes: Path, poimen_command: Any) -> None:
    """`poimen drain` asks workers to leave as SIGTERM does, one or all, and waits for them when told to."""
    first, second = workers.start_many(2, APP, concurrency=1, args=QUICK)
    eventually(lambda: len(own_shop.poimen.store.reads.workers()) == 2)
    batch = own_shop.poimen.dispatch(marked(own_shop, notes, range(60), 0.3), workflow="wf-drain", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 2)
    refused = poimen_command("drain", "--worker", "nobody")
    assert (refused.exit_code, "no worker is called 'nobody'" in refused.stderr) == (1, True)
    assert poimen_command("drain", "--timeout", "3").exit_code == 2
    told = poimen_command("drain", "--worker", first.name, "--wait", "--json", "--actor", "ann", "--reason", "upgrade")
    assert told.exit_code == 0, told.output
    (asked,) = json.loads(told.stdout)["workers"]
    assert asked.startswith(first.name)
    assert first.wait(20) == 0
    assert second.alive
    assert batch.status().state is BatchState.RUNNING
    late = poimen_command("drain", "--wait", "--timeout", "0")
    assert (late.exit_code, "still there" in late.stderr) == (124, True)
    assert second.wait(20) == 0
    assert own_shop.poimen.snapshots.has("wf-drain")
    assert poimen_command("drain").stdout == "no worker is there\n"
    graceful(workers, None)
    assert batch.wait(timeout=60).succeeded == 60
    assert len(lines(notes)) == 60
