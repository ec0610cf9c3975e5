"""Other ways to run lanes: solo, threads, gevent, eventlet, eager; and queues, apps that were there before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import chord, group

from poimen_tasks import BatchState, ItemStatus
from tests.acceptance.conftest import APP, imported
from tests.conftest import ROOT, Worker, Workers, eventually

POOLS_APP = "tests.acceptance.pools_app"
MANY = ("threads", "gevent", "eventlet")
ALL = (*MANY, "solo")
QUICK = ("--without-mingle", "--without-gossip")  # nobody to greet: a second sooner
SLOTS = 20


# ------------------------------------------------------------------------------------- one worker of each
@pytest.fixture(scope="module")
def pools_env(module_env: dict[str, str]) -> dict[str, str]:
    """Settings with a lease that bodies outlast."""
    return {**module_env, "POIMEN_LEASE": "2.5"}


@pytest.fixture(scope="module")
def mill(pools_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app of bodies that meet and wait, in this process."""
    with imported(pools_env, POOLS_APP) as module:
        yield module


@pytest.fixture(scope="module")
def by_pool(pools_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """One worker of each pool, each with a queue of its pool's name."""
    group = Workers(tmp_path_factory.mktemp("pools"), pools_env)
    started = {
        pool: group.start(POOLS_APP, pool=pool, concurrency=SLOTS, queues=pool, args=QUICK, wait=False) for pool in ALL
    }
    for worker in started.values():
        group.wait_ready(worker)
    yield started
    group.destroy_all()


def lines(path: Path) -> list[list[str]]:
    """What bodies noted, in words."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("pool", ALL)
@pytest.mark.usefixtures("by_pool")
def test_every_pool_runs_batches(mill: ModuleType, notes: Path, pool: str) -> None:
    """Short items, failures, both kinds of retry and a chord's body end on every pool as they do on prefork."""
    work = [
        mill.third_time.s(str(notes)),
        mill.retries_itself.s(0),
        mill.boom.s("no"),
        *(mill.add.s(i, 1) for i in range(300)),
    ]
    report = mill.poimen.dispatch(work, queue=pool).wait(timeout=30)
    assert (report.succeeded, report.errors["2"].type) == (302, "ValueError")
    assert (report.results["0"], report.results["1"], report.results["302"]) == (3, [2, 2], 300)
    short = mill.poimen.dispatch(
        chord(group(mill.add.s(i, 1) for i in range(300)), mill.total.s().set(queue=pool)), queue=pool
    )
    assert short.callback_result(timeout=30) == sum(range(1, 301))


@pytest.mark.parametrize("pool", MANY)
@pytest.mark.usefixtures("by_pool")
def test_lanes_of_one_process_keep_their_items_apart(mill: ModuleType, notes: Path, pool: str) -> None:
    """Items that run at the same time in one process: each sees its own request, position and current task."""
    work = [mill.who.s(number, str(notes), SLOTS) for number in range(SLOTS)]
    report = mill.poimen.dispatch(work, queue=pool, concurrency=SLOTS).wait(timeout=40)
    assert dict(report.results) == {str(n): [str(n), n, n, 0] * 2 for n in range(SLOTS)}


@pytest.mark.parametrize("pool", MANY)
@pytest.mark.usefixtures("by_pool")
def test_fifty_waiting_items_share_twenty_slots(mill: ModuleType, notes: Path, pool: str) -> None:
    """Of fifty items that wait for something, twenty run at once and never more: starts and ends tell (promise D2)."""
    work = [mill.meet.s(str(notes), str(number), SLOTS, 0.2) for number in range(50)]
    assert mill.poimen.dispatch(work, queue=pool, concurrency=SLOTS).wait(timeout=40).succeeded == 50
    running, most = 0, 0
    for what, *_ in lines(notes):
        running += 1 if what == "start" else -1
        most = max(most, running)
    assert most == SLOTS


@pytest.mark.usefixtures("by_pool")
def test_the_keeper_renews_beside_waiting_bodies(mill: ModuleType, tmp_path: Path) -> None:
    """A body that waits for longer than a lease keeps its slot on every pool: it runs once (protocol 5)."""
    notes = {pool: tmp_path / f"{pool}.txt" for pool in ALL}
    batches = {pool: mill.poimen.dispatch([mill.marked.s(str(notes[pool]), "long", 4.0)], queue=pool) for pool in ALL}
    for pool, batch in batches.items():
        outcome = next(batch.outcomes(timeout=30))
        assert (outcome.status, outcome.attempts, len(lines(notes[pool]))) == (ItemStatus.SUCCEEDED, 1, 2), pool


@pytest.mark.parametrize("pool", ["gevent", "eventlet", "solo"])
@pytest.mark.usefixtures("by_pool")
def test_time_limits_where_a_body_can_be_interrupted(mill: ModuleType, pool: str) -> None:
    """Greenlets and solo keep soft and hard limits of items, whatever the body makes of the exception (fault B06)."""
    report = mill.poimen.dispatch([mill.soft_limited.s(9.0), mill.hard_limited.s(9.0)], queue=pool).wait(timeout=30)
    assert {item: error.type for item, error in report.errors.items()} == {
        "0": "SoftTimeLimitExceeded",
        "1": "TimeLimitExceeded",
    }


def test_threads_say_once_that_they_keep_no_time_limits(mill: ModuleType, by_pool: dict[str, Worker]) -> None:
    """Nothing interrupts a thread: the worker names each task with a limit once, and what to do (protocol 3)."""
    for _ in range(2):
        work = [mill.soft_limited.s(0.5), mill.hard_limited.s(0.6)]
        assert mill.poimen.dispatch(work, queue="threads").wait(timeout=30).succeeded == 2
    log = by_pool["threads"].text()
    for task in ("soft_limited", "hard_limited"):
        assert log.count(f"task {POOLS_APP}.{task} has a time limit, but nothing can interrupt a body") == 1
    assert "serve it with -P prefork" in log


@pytest.mark.parametrize("pool", ALL)
@pytest.mark.usefixtures("by_pool")
def test_cancel_on_every_pool(mill: ModuleType, notes: Path, pool: str) -> None:
    """After a cancel no item starts, and running bodies end at their next checkpoint (promise D8)."""
    batch = mill.poimen.dispatch([mill.until_cancelled.s(str(notes)) for _ in range(30)], queue=pool, concurrency=SLOTS)
    busy = 1 if pool == "solo" else SLOTS
    eventually(lambda: len(lines(notes)) == busy)
    batch.cancel("enough", "me")
    assert Counter(outcome.status for outcome in batch.outcomes(timeout=20)) == {ItemStatus.CANCELLED: 30}
    assert len(lines(notes)) == busy


def test_terminate_needs_processes(mill: ModuleType, by_pool: dict[str, Worker]) -> None:
    """Where a body has no process of its own, `terminate` lets it end, and the worker says so once a batch."""
    batches = {
        pool: mill.poimen.dispatch([mill.nap.s(1.5) for _ in range(2)], queue=pool, concurrency=2) for pool in ALL
    }
    for pool, batch in batches.items():
        eventually(lambda batch=batch, pool=pool: batch.status().running == (1 if pool == "solo" else 2))
        batch.cancel("enough", "me", terminate=True)
    for pool, batch in batches.items():
        said = f"batch {batch.id} was cancelled with terminate, but only prefork can end a body"
        eventually(lambda pool=pool, said=said: by_pool[pool].text().count(said) == 1)
        assert len(list(batch.outcomes(timeout=20))) == 2
        assert by_pool[pool].text().count(said) == 1


@pytest.mark.usefixtures("by_pool")
def test_a_body_that_holds_the_interpreter(mill: ModuleType, notes: Path) -> None:
    """A thread lets no other run for longer than a lease: in a fleet of one worker its item runs once (protocol 5)."""
    work = [mill.holds_gil.s(str(notes), "held", 4.0), *(mill.nap.s(0.05) for _ in range(20))]
    report = mill.poimen.dispatch(work, queue="threads", concurrency=4).wait(timeout=30)
    assert (report.succeeded, len(lines(notes))) == (21, 2)


# ------------------------------------------------------------------------------------------- how they end
def test_kill_and_warm_shutdown_on_every_pool(
    mill: ModuleType, workers: Workers, pools_env: dict[str, str], tmp_path: Path
) -> None:
    """`kill -9` costs each pool a lease and no item; SIGTERM lets running bodies end, and leaves the rest."""
    fleet = {
        pool: [
            workers.start(POOLS_APP, pool=pool, concurrency=2, queues=f"{pool}2", env=pools_env, args=QUICK, wait=False)
            for _ in range(2)
        ]
        for pool in ALL
    }
    for worker in workers.all:
        workers.wait_ready(worker)
    notes = {pool: tmp_path / f"{pool}.txt" for pool in ALL}
    batches = {
        pool: mill.poimen.dispatch(
            [mill.marked.s(str(notes[pool]), str(i), 0.5) for i in range(40)], queue=f"{pool}2", concurrency=4
        )
        for pool in ALL
    }

    def ran_by(pool: str, worker: Worker) -> list[list[str]]:
        return [line for line in lines(notes[pool]) if int(line[2]) == worker.pid]

    for pool, (killed, _) in fleet.items():
        eventually(lambda pool=pool, killed=killed: len(ran_by(pool, killed)) >= 2)
        killed.kill()
    torn = {pool: {name for _, name, _ in ran_by(pool, killed)} for pool, (killed, _) in fleet.items()}
    for pool, (_, stays) in fleet.items():
        # What the killed one had begun and not reported runs again.
        words = ran_by(pool, fleet[pool][0])
        cut = {name for what, name, _ in words if what == "start"} - {name for what, name, _ in words if what == "end"}
        eventually(lambda pool=pool, stays=stays, cut=cut: cut <= {name for _, name, _ in ran_by(pool, stays)})
        stays.terminate()
    for pool, (_, stays) in fleet.items():
        assert stays.wait(timeout=30) == 0, f"{pool}: {stays.text()[-3000:]}"
        words = ran_by(pool, stays)
        assert Counter(name for what, name, _ in words if what == "start") == Counter(
            name for what, name, _ in words if what == "end"
        ), pool
        status = batches[pool].status()
        assert (status.running, status.failed) == (0, 0), pool
        runs = Counter(name for what, name, _ in lines(notes[pool]) if what == "start")
        assert all(count == 1 for name, count in runs.items() if name not in torn[pool]), pool
        ended = {name for what, name, _ in lines(notes[pool]) if what == "end"}
        mine = {name for what, name, _ in words if what == "end"}
        assert len(mine) <= status.succeeded <= len(ended), pool
        batches[pool].cancel()


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_pool_that_came_too_late_to_patch_is_refused(worker_env: dict[str, str], tmp_path: Path, pool: str) -> None:
    """A green pool from the configuration has patched nothing: the worker ends at once, and says how to start it."""
    (tmp_path / "late.py").write_text(
        f"from poimen_tasks import Poimen\napp = Poimen('late').celery\napp.conf.worker_pool = {pool!r}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "late", "worker"],
        cwd=tmp_path,
        env={**os.environ, **worker_env, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"start the worker with `-P {pool}`" in done.stderr
    assert "prefork, threads and solo" in done.stderr
    assert "Traceback" not in done.stderr


# -------------------------------------------------------------------------------------------------- sharing


def test_solo_stays_responsive(own_shop: ModuleType, workers: Workers) -> None:
    """On solo a lane gives way after each quantum, so control commands and plain tasks get their turn."""
    workers.start(APP, pool="solo", concurrency=1)
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.nap, [0.05] * 200))
    assert own_shop.add.delay(2, 3).get(timeout=10) == 5
    assert batch.status().state is BatchState.RUNNING
    batch.cancel()


def test_plain_tasks_get_their_turn(own_shop: ModuleType, workers: Workers) -> None:
    """A long batch on every slot does not keep plain messages waiting: lanes give way after a quantum (fault E01)."""
    workers.start(APP, concurrency=2)
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.nap, [0.05] * 400), concurrency=None)
    results = [own_shop.add.delay(i, i) for i in range(5)]
    assert [result.get(timeout=10) for result in results] == [0, 2, 4, 6, 8]
    assert batch.status().state is BatchState.RUNNING
    batch.cancel()


def test_eager(own_shop: ModuleType, notes: Path) -> None:
    """Under `task_always_eager` the batch runs in the caller, retries waited out, callbacks included."""
    own_shop.app.conf.task_always_eager = True
    batch = own_shop.poimen.dispatch(
        [own_shop.third_time.s(str(notes)), own_shop.add.s(1, 1).set(countdown=0.05), own_shop.boom.s("x")],
        on_failure=own_shop.tell.s(str(notes), tag="failure "),
    )
    report = batch.wait(timeout=5)
    assert dict(report.results) == {"0": 3, "1": 2}
    assert report.errors["2"].type == "ValueError"
    assert notes.read_text().splitlines()[-1] == f"failure {batch.id!r}"


def test_queues(own_shop: ModuleType, workers: Workers) -> None:
    """Items of one batch may go to several queues, each with its own workers; status names an unserved one."""
    workers.start(APP, concurrency=1, queues="celery")
    batch = own_shop.poimen.dispatch(
        [own_shop.add.s(i, 0).set(queue="other" if i % 2 else "celery") for i in range(20)], concurrency=2
    )

    eventually(lambda: batch.status().succeeded == 10)
    eventually(lambda: batch.status().unserved_queues == ("other",))
    workers.start(APP, concurrency=1, queues="other")
    assert batch.wait(timeout=30).succeeded == 20


def test_an_unknown_task_fails_only_its_item(own_shop: ModuleType, workers: Workers) -> None:
    """A task that the worker does not know fails its item as NotRegistered; the batch goes on (fault A16)."""

    @own_shop.task(name="only.here")
    def only_here() -> None:
        """Registered with the producer only."""

    workers.start(APP, concurrency=1)
    report = own_shop.poimen.dispatch([only_here.s(), own_shop.add.s(1, 1)]).wait(timeout=30)
    assert report.errors["0"].type == "NotRegistered"
    assert report.results["1"] == 2
