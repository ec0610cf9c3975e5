"""Fleets of every shape: processes that come and go, workers that join late, know less, or know nothing of batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgpack
import pytest

from tests.acceptance.conftest import imported
from tests.conftest import Workers, eventually

APP = "tests.acceptance.pools_app"
PLAIN = "tests.acceptance.plain_app"
QUICK = ("--without-mingle", "--without-gossip")  # nobody to greet: a second sooner


@pytest.fixture
def mill(worker_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app of bodies that meet and wait, in this process."""
    with imported(worker_env, APP) as module:
        yield module


def lines(path: Path) -> list[list[str]]:
    """What bodies noted, in words."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


# ------------------------------------------------------------------------------------------ processes
@pytest.fixture(scope="module")
def yard(module_env: dict[str, str]) -> Iterator[ModuleType]:
    """The same app for the tests that share workers."""
    with imported(module_env, APP) as module:
        yield module


@pytest.fixture(scope="module")
def shapes(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Workers whose processes come and go, each with a queue of its own."""
    group = Workers(tmp_path_factory.mktemp("shapes"), module_env)
    for queue, option in (
        ("autoscale", "--autoscale=4,1"),
        ("tasks", "--max-tasks-per-child=1"),
        ("memory", "--max-memory-per-child=150000"),
    ):
        group.start(APP, concurrency=2, queues=queue, args=(option, *QUICK), wait=False)
    for worker in group.all:
        group.wait_ready(worker)
    yield group
    group.destroy_all()


@pytest.mark.usefixtures("shapes")
def test_the_autoscaler_grows_to_what_a_batch_wants(yard: ModuleType, notes: Path) -> None:
    """With `--autoscale=4,1` a worker offers four slots, and four items meet in four processes."""
    work = [yard.meet.s(str(notes), str(number), 4) for number in range(4)]
    assert yard.poimen.dispatch(work, queue="autoscale", concurrency=4).wait(timeout=40).succeeded == 4
    assert len({pid for _, _, pid in lines(notes)}) == 4


@pytest.mark.usefixtures("shapes")
def test_a_recycled_process_loses_and_doubles_nothing(yard: ModuleType, notes: Path) -> None:
    """`--max-tasks-per-child` counts lanes; each item runs once, whichever process has its turn."""
    batches = [
        yard.poimen.dispatch(
            [yard.marked.s(str(notes), f"{batch}.{i}", 0.01) for i in range(20)], queue="tasks", concurrency=2
        )
        for batch in range(2)
    ]
    assert [batch.wait(timeout=60).succeeded for batch in batches] == [20] * 2
    runs = Counter(name for what, name, _ in lines(notes) if what == "start")
    assert (len(runs), set(runs.values())) == (40, {1})
    assert len({pid for *_, pid in lines(notes)}) > 2


@pytest.mark.usefixtures("shapes")
def test_a_process_that_grew_too_large_is_replaced_within_a_batch(yard: ModuleType) -> None:
    """`--max-memory-per-child` holds within a batch too: a lane leaves a process that holds more."""
    report = yard.poimen.dispatch([yard.grows.s(8) for _ in range(30)], queue="memory", concurrency=2).wait(timeout=60)
    assert report.succeeded == 30
    assert len(set(report.results.values())) > 2


# ------------------------------------------------------------------------------------------ joining
def test_a_worker_that_joins_has_its_share(mill: ModuleType, workers: Workers, notes: Path) -> None:
    """All processes of a worker that joins a running batch get lanes while items are pending (protocol 2)."""
    workers.start(APP, concurrency=2, args=QUICK)
    batch = mill.poimen.dispatch([mill.marked.s(str(notes), str(i), 0.5) for i in range(200)], concurrency=8)
    eventually(lambda: len(lines(notes)) >= 2)
    second = workers.start(APP, concurrency=6, args=QUICK)
    mine = {child.pid for child in second.children()}
    assert len(mine) == 6
    eventually(lambda: mine <= {int(pid) for *_, pid in lines(notes)})
    eventually(lambda: batch.status().running == 8)
    assert batch.status().pending > 0
    assert any(outcome.worker == second.name for outcome in batch.outcomes(timeout=20))
    batch.cancel()


# ------------------------------------------------------------------------------------------ strangers
def reissues(mill: ModuleType) -> list[tuple[float, int]]:
    """When tickets were issued again, and for which time."""
    store = mill.poimen.store
    found = []
    for entry, fields in store.client.redis.xrange(store.keys.build("audit")):
        if fields[b"t"] == b"ticket.reissued":
            found.append((int(entry.partition(b"-")[0]) / 1000, msgpack.unpackb(fields[b"h"])["tries"]))
    return found


def test_a_plain_worker_on_the_queue(
    mill: ModuleType, workers: Workers, worker_env: dict[str, str], notes: Path
) -> None:
    """A worker without the package throws tickets away: they come back ever more seldom until somebody serves them."""
    env = {"POIMEN_TICKET_OVERDUE": "0.2"}
    workers.start(APP, concurrency=1, queues="other", env=env, wait=False)
    plain = workers.start(PLAIN, concurrency=1, wait=False)
    for worker in workers.all:
        workers.wait_ready(worker)
    batch = mill.poimen.dispatch([mill.marked.s(str(notes), str(i)) for i in range(20)], concurrency=1)
    eventually(lambda: len(reissues(mill)) >= 3, timeout=30)
    assert batch.status().unserved_queues == ("celery",)
    # No hot loop: what was published is the first ticket and one for each of these entries, each waiting twice as long.
    eventually(lambda: plain.text().count("Received unregistered task") == 1 + len(reissues(mill)))
    assert [tries for _, tries in reissues(mill)] == list(range(1, len(reissues(mill)) + 1))
    eventually(lambda: _waits(mill, batch.id) == pytest.approx(0.2 * 2 ** reissues(mill)[-1][1], abs=0.05))
    plain.destroy()
    workers.start(APP, concurrency=1, env=env, args=QUICK)
    assert batch.wait(timeout=30).succeeded == 20
    assert batch.status().unserved_queues == ()


def _waits(mill: ModuleType, batch: str) -> float:
    """For how long the batch's only ticket was let alone when it was last issued, by the server's clock."""
    store = mill.poimen.store
    return float(store.client.redis.zscore(store.keys.build("tickets"), f"{batch}\t0")) - reissues(mill)[-1][0]


def test_an_older_deployment_leaves_a_task_to_those_who_know_it(
    mill: ModuleType, workers: Workers, notes: Path
) -> None:
    """One of two workers lacks the task: its items run on the other, and none of them fails (fault A16)."""
    old = workers.start(APP, concurrency=1, args=QUICK, env={"POOLS_OLD": "1"}, wait=False)
    new = workers.start(APP, concurrency=1, args=QUICK, wait=False)
    for worker in workers.all:
        workers.wait_ready(worker)
    eventually(lambda: len(mill.poimen.store.reads.workers()) == 2)
    work = [mill.newest.s(str(notes), str(i)) if i % 2 else mill.add.s(i, 0) for i in range(80)]
    report = mill.poimen.dispatch(work, concurrency=2).wait(timeout=40)
    assert (report.succeeded, report.failed) == (80, 0)
    assert {int(pid) for _, pid in lines(notes)} == {new.pid}
    assert old.text().count("its items are left to that one") == 1
