"""Other ways to run lanes: solo, threads, eager; and queues, priorities, apps that were there before."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from celery import chord, group

from poimen_tasks import BatchState
from tests.acceptance.conftest import APP
from tests.conftest import Workers


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_other_pools_run_batches(own_shop: ModuleType, workers: Workers, notes: Path, pool: str) -> None:
    """A batch runs on the solo and threads pools too, with retries and callbacks."""
    workers.start(APP, pool=pool, concurrency=2)
    batch = own_shop.poimen.dispatch(chord(group(own_shop.add.s(i, 1) for i in range(300)), own_shop.total.s()))
    assert batch.callback_result(timeout=40) == sum(range(1, 301))
    outcome = next(own_shop.poimen.dispatch([own_shop.third_time.s(str(notes))]).outcomes(timeout=30))
    assert outcome.result == 3


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
    from tests.conftest import eventually

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
