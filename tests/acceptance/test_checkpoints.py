"""Bodies that save where they are: they stop when they are asked to, and go on from there, wherever that is."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from poimen_tasks import Poimen
from tests.acceptance.conftest import APP
from tests.conftest import Workers, eventually


def rows(path: Path) -> list[list[str]]:
    """What bodies noted, in words."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def steps(path: Path, name: str = "a") -> list[int]:
    """The steps that were made, in order."""
    return [int(row[2]) for row in rows(path) if row[:2] == ["step", name]]


@pytest.mark.usefixtures("lanes")
def test_a_body_stops_and_goes_on(shop: ModuleType, notes: Path) -> None:
    """After the grace `checkpoint` raises `Paused`; the next run goes on from what was saved (promise P13)."""
    batch = shop.poimen.dispatch([shop.stepping.s(str(notes), "a", 40)], workflow="wf-steps")
    eventually(lambda: len(steps(notes)) >= 3)
    receipt = shop.poimen.pause(workflow="wf-steps", grace=0.0)
    assert [one.item_ids for one in receipt.running] == [("0",)]
    receipt.wait_quiet(timeout=20)
    stopped_at = steps(notes)[-1]
    status = batch.status()
    assert (status.pending, status.running) == (1, 0)
    assert stopped_at < 40
    shop.poimen.resume(workflow="wf-steps")
    (outcome,) = batch.outcomes(timeout=30)
    assert (outcome.result, outcome.attempts) == (40, 1)
    assert steps(notes) == list(range(1, 41)), "no step was made twice"
    assert [row[2] for row in rows(notes) if row[0] == "start"] == ["0", str(stopped_at)]
    assert not shop.poimen.store.client.redis.exists(shop.poimen.store.keys.build("checkpoints", batch.id))


@pytest.mark.usefixtures("lanes")
def test_the_grace_is_theirs(shop: ModuleType, notes: Path) -> None:
    """Within the grace a body is not asked to stop, and without one it never is."""
    batch = shop.poimen.dispatch([shop.stepping.s(str(notes), "a", 12)], workflow="wf-grace")
    eventually(lambda: steps(notes))
    shop.poimen.pause(workflow="wf-grace", grace=60.0).wait_quiet(timeout=20)
    assert batch.wait(timeout=5).succeeded == 1
    other = shop.poimen.dispatch([shop.stepping.s(str(notes), "b", 12)], workflow="wf-none")
    eventually(lambda: steps(notes, "b"))
    shop.poimen.pause(workflow="wf-none").wait_quiet(timeout=20)
    assert other.wait(timeout=5).succeeded == 1


@pytest.mark.usefixtures("lanes")
def test_wrappers_that_retry_let_it_pass(shop: ModuleType, notes: Path) -> None:
    """`autoretry_for=(Exception,)` and a retry policy take `Paused` for no error: no attempt is counted."""
    batch = shop.poimen.dispatch([shop.stepping_with_retries.s(str(notes), "a", 30)], workflow="wf-wrapped")
    eventually(lambda: rows(notes))
    shop.poimen.pause(workflow="wf-wrapped", grace=0.2).wait_quiet(timeout=20)
    shop.poimen.resume(workflow="wf-wrapped")
    (outcome,) = batch.outcomes(timeout=30)
    assert (outcome.result, outcome.attempts) == ([30, 0], 1)
    assert len(rows(notes)) == 2


def test_no_failure_is_logged(shop: ModuleType, lanes: Workers, notes: Path) -> None:
    """A body that stops has not failed: no hook, no error in the worker's log."""
    batch = shop.poimen.dispatch([shop.stepping.s(str(notes), "a", 20)], workflow="wf-quiet")
    eventually(lambda: steps(notes))
    shop.poimen.pause(workflow="wf-quiet", grace=0.0).wait_quiet(timeout=20)
    shop.poimen.resume(workflow="wf-quiet")
    assert batch.wait(timeout=30).succeeded == 1
    (worker,) = lanes.all
    told = [line for line in worker.text().splitlines() if batch.id in line]
    assert not [line for line in told if "ERROR" in line or "raised" in line]


@pytest.mark.usefixtures("lanes")
def test_a_body_that_stops_by_itself(shop: ModuleType, notes: Path) -> None:
    """`Paused` raised while nothing is paused gives the item back; it runs again a moment later, not in a busy loop."""
    batch = shop.poimen.dispatch([shop.stops_itself.s(str(notes))])
    (outcome,) = batch.outcomes(timeout=20)
    assert (outcome.result, outcome.attempts) == ("done", 1)
    assert len(rows(notes)) == 2


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("state", [None, 0, "", [1, {"a": b"\x00"}], "x" * 100_000])
def test_any_value_that_travels(shop: ModuleType, state: object) -> None:
    """A state is any value that travels, None too."""
    assert shop.poimen.dispatch([shop.saves.s(state)]).wait(timeout=20).results == {"0": state}


@pytest.mark.usefixtures("lanes")
def test_states_are_of_one_item(shop: ModuleType) -> None:
    """An item without a state gets None, whatever its neighbours in the same lane saved."""
    work = [shop.saves.s(number) if number % 2 else shop.looks.s() for number in range(20)]
    report = shop.poimen.dispatch(work, concurrency=1).wait(timeout=20)
    assert list(report.results.values()) == [number if number % 2 else None for number in range(20)]


@pytest.mark.usefixtures("lanes")
def test_a_state_that_does_not_travel(shop: ModuleType) -> None:
    """A state that cannot be saved fails its item, and the error names item and value."""
    report = shop.poimen.dispatch([shop.saves_a_set.s()]).wait(timeout=20)
    assert report.errors["0"].type == "SerializationError"
    assert "checkpoint of item 0" in report.errors["0"].message


def test_outside_of_an_item(own_shop: ModuleType) -> None:
    """Outside of an item `checkpoint` does nothing and returns None."""
    assert Poimen.checkpoint({"a": 1}) is None
    assert own_shop.poimen.checkpoint() is None
    assert own_shop.saves(1) is None


def test_a_killed_worker_loses_no_checkpoint(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """What was saved survives `kill -9` of the worker: another one goes on from there (fault B01, promise P13)."""
    first = workers.start(APP, concurrency=1)
    batch = own_shop.poimen.dispatch([own_shop.stepping.s(str(notes), "a", 40)])
    eventually(lambda: len(steps(notes)) >= 5)
    first.destroy()
    made = steps(notes)
    workers.start(APP, concurrency=1)
    assert batch.wait(timeout=40).results == {"0": 40}
    began = [int(row[2]) for row in rows(notes) if row[0] == "start"]
    assert began[0] == 0
    assert made[-1] - 1 <= began[1] <= made[-1]


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools(own_shop: ModuleType, workers: Workers, notes: Path, pool: str) -> None:
    """Threads and a solo worker stop at a checkpoint too, though no process can be ended there."""
    worker = workers.start(APP, concurrency=2, pool=pool)
    batch = own_shop.poimen.dispatch([own_shop.stepping.s(str(notes), "a", 60)], workflow="wf-pool")
    eventually(lambda: len(steps(notes)) >= 3)
    own_shop.poimen.pause(workflow="wf-pool", grace=0.0, terminate=True).wait_quiet(timeout=20)
    own_shop.poimen.resume(workflow="wf-pool")
    assert batch.wait(timeout=40).results == {"0": 60}
    assert steps(notes) == list(range(1, 61))
    assert worker.alive


def test_terminate(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """With `terminate` a body that does not stop is ended and pending again, its attempt not counted (promise P3)."""
    workers.start(APP, concurrency=2)
    batch = own_shop.poimen.dispatch(
        [own_shop.stubborn.s(str(notes), "a"), own_shop.stepping.s(str(notes), "b", 200)], workflow="wf-end"
    )
    eventually(lambda: {"a", "b"} <= {row[1] for row in rows(notes)})
    pid = next(int(row[2]) for row in rows(notes) if row[1] == "a")
    receipt = own_shop.poimen.pause(workflow="wf-end", grace=0.2, terminate=True)
    receipt.wait_quiet(timeout=20)
    status = batch.status()
    assert (status.pending, status.running, status.failed) == (2, 0, 0)
    Path(f"{notes}.go").touch()
    own_shop.poimen.resume(workflow="wf-end")
    outcomes = {outcome.item_id: outcome for outcome in batch.outcomes(timeout=40)}
    assert [(one.result, one.attempts) for _, one in sorted(outcomes.items())] == [("a", 1), (200, 1)]
    pids = [int(row[2]) for row in rows(notes) if row[:2] == ["start", "a"]]
    assert len(pids) == 2
    assert pids[1] != pid
    assert steps(notes, "b") == list(range(1, 201))
