"""`poimen.each`: a batch as a step of a native canvas, with real worker processes."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from poimen_tasks import BatchFailed, BatchNotFound, BatchState, PayloadTooLarge, UnsupportedWork
from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.conftest import STEPS, imported
from tests.conftest import Workers, eventually

LIMIT = 20
Make = Callable[[ModuleType], Any]


def lines(path: Path) -> list[str]:
    """The lines that bodies left."""
    return path.read_text().splitlines() if path.exists() else []


def run(canvas: Any, **options: Any) -> Any:
    """Start a canvas natively and give its result."""
    return canvas.apply_async(**options).get(timeout=LIMIT)


def runs(batch: Any) -> bool:
    """True when the batch is there and one of its items runs."""
    try:
        return bool(batch.status().running == 1)
    except BatchNotFound:
        return False


FORMS: dict[str, tuple[Make, Any]] = {
    "in a chain": (lambda s: chain(s.upto.s(5), s.poimen.each(s.double), s.total.s()), 20),
    "last": (lambda s: chain(s.upto.s(3), s.poimen.each(s.double)), [0, 2, 4]),
    "alone": (lambda s: s.poimen.each(s.double, [1, 2]), [2, 4]),
    "first, with values": (lambda s: chain(s.poimen.each(s.double, range(3)), s.total.s()), 6),
    "first, as a partial": (lambda s: chain(s.poimen.each(s.double).clone(([1, 2],)), s.total.s()), 6),
    "its own values in the middle": (lambda s: chain(s.one.s(), s.poimen.each(s.double, [4]), s.total.s()), 8),
    "twice": (lambda s: chain(s.upto.s(3), s.poimen.each(s.double), s.poimen.each(s.double), s.total.s()), 12),
    "of an empty list": (lambda s: chain(s.upto.s(0), s.poimen.each(s.double), s.same.s()), []),
    "rows": (lambda s: s.poimen.each(s.add, [[1, 2], {"x": 3, "y": 4}], star=True), [3, 7]),
    "by name": (lambda s: s.poimen.each(s.double.name, [1]), [2]),
    "of another iterable": (lambda s: chain(s.same.s({"a": 1}), s.poimen.each(s.same)), ["a"]),
    "in a group": (lambda s: group(s.poimen.each(s.double, [1]), s.one.s()), [[2], 1]),
    "in a chord's header": (lambda s: chord([s.poimen.each(s.double, [1]), s.one.s()], s.same.s()), [[2], 1]),
    "only one in a header": (lambda s: chord([s.poimen.each(s.double, [1, 2])], s.same.s()), [[2, 4]]),
    "a chord's body": (lambda s: chord([s.one.s(), s.add.s(1, 1)], s.poimen.each(s.double)), [2, 4]),
    "a body in a chain": (lambda s: chain(group(s.one.s(), s.one.s()), s.poimen.each(s.double), s.total.s()), 4),
    "before a group": (
        lambda s: chain(s.upto.s(3), s.poimen.each(s.double), group(s.total.s(), s.same.s())),
        [6, [0, 2, 4]],
    ),
    "before a chord": (
        lambda s: chain(s.upto.s(3), s.poimen.each(s.double), group(s.total.s(), s.total.s()), s.total.s()),
        12,
    ),
    "in a chain in a header": (
        lambda s: chord([chain(s.upto.s(3), s.poimen.each(s.double), s.total.s()), s.one.s()], s.total.s()),
        7,
    ),
    "last in a chain in a header": (
        lambda s: chord([chain(s.upto.s(3), s.poimen.each(s.double)), s.one.s()], s.same.s()),
        [[0, 2, 4], 1],
    ),
    "in a nested chain": (
        lambda s: chain(chain(s.upto.s(2), s.poimen.each(s.double)), chain(s.total.s(), s.double.s())),
        4,
    ),
    "in place of a task": (lambda s: chain(s.becomes_each.s(3), s.total.s()), 6),
    "behind a replaced task": (lambda s: chain(s.becomes_group.s(1), s.poimen.each(s.double), s.total.s()), 12),
}


@pytest.mark.usefixtures("crew")
@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_a_step_of_any_canvas(steps: ModuleType, form: str) -> None:
    """Wherever a task may stand in a canvas, a batch may: the results go on as a list in item order (promise D1)."""
    make, expected = FORMS[form]
    assert run(make(steps)) == expected


@pytest.fixture
def eager(steps: ModuleType) -> Iterator[ModuleType]:
    """The app under `task_always_eager`."""
    steps.app.conf.task_always_eager = True
    yield steps
    steps.app.conf.task_always_eager = False


@pytest.mark.parametrize("form", ["in a chain", "of an empty list", "rows", "a chord's body"])
def test_an_eager_app_runs_it_in_place(eager: ModuleType, form: str) -> None:
    """Under `task_always_eager` the step runs its items and returns their results (promise D1)."""
    make, expected = FORMS[form]
    assert run(make(eager)) == expected


@pytest.mark.usefixtures("crew")
def test_a_direct_call_waits(steps: ModuleType) -> None:
    """Called in place, as with `apply()`, the step waits for its batch, which the workers run (promise D1)."""
    assert steps.poimen.each(steps.double, [1, 2]).apply().get() == [2, 4]
    assert steps.poimen.each(steps.double)([3]) == [6]


# --- how it fails --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("crew")
def test_a_failed_item_stops_the_chain(steps: ModuleType, notes: Path) -> None:
    """A batch with failures fails its step: the chain stops and each errback is called once (promise D3, fault A13)."""
    errbacks = [steps.alarm.s(str(notes)), steps.siren.s(path=str(notes))]
    failing = steps.poimen.each(steps.odd_fails)
    for errback in errbacks:
        failing.link_error(errback)
    started = chain(steps.upto.s(4), failing, steps.told.si(str(notes), "never")).apply_async()
    step = started.parent
    with pytest.raises(BatchFailed, match=rf"batch '{step.id}': 2 of 4 items failed.*'1': 'ValueError: 1 is odd'"):
        started.get(timeout=LIMIT)
    siren = next(line for line in eventually(lambda: len(lines(notes)) == 2 and lines(notes)) if "siren" in line)
    assert siren.startswith(f"siren BatchFailed: batch '{step.id}'")
    assert set(lines(notes)) == {siren, f"alarm {step.id}"}
    batch = steps.poimen.batch(step.id)
    assert (batch.status().failed, batch.result("2")) == (2, 2)


@pytest.mark.usefixtures("crew")
def test_a_failed_batch_fails_its_chord(steps: ModuleType, notes: Path) -> None:
    """As a header's member a failed batch fails the chord, and its body's errback is called once (fault A13)."""
    body = steps.total.s().on_error(steps.siren.s(path=str(notes)))
    started = chord([steps.one.s(), steps.poimen.each(steps.odd_fails, [1])], body).apply_async()
    eventually(lambda: started.state == "FAILURE")
    assert isinstance(started.result, ChordError)
    assert "BatchFailed" in str(started.result)
    assert "1 is odd" in str(started.result)
    assert [line.partition(":")[0] for line in lines(notes)] == ["siren ChordError"]


@pytest.mark.usefixtures("crew")
@pytest.mark.parametrize("value", [7, "text", None])
def test_what_has_no_values_is_one_clear_error(steps: ModuleType, value: Any) -> None:
    """A step before that returned no list fails this one, and the error says what came (promise D3)."""
    expected = rf"each of {steps.double.name}: expected a list of values, got {type(value).__name__} {value!r}"
    with pytest.raises(UnsupportedWork, match=expected):
        run(chain(steps.same.s(value), steps.poimen.each(steps.double), steps.total.s()))


@pytest.mark.usefixtures("crew")
def test_a_cancelled_batch_fails_its_step(steps: ModuleType, notes: Path, tmp_path: Path) -> None:
    """Cancelling the batch ends the chain, and the error gives the reason (promise D8)."""
    waiting = steps.poimen.each(
        steps.waits_for, [[i, str(tmp_path / "go")] for i in range(4)], star=True, concurrency=1
    )
    started = chain(waiting, steps.told.si(str(notes), "never")).apply_async()
    batch = steps.poimen.batch(started.parent.id)
    eventually(lambda: runs(batch))
    batch.cancel("too dear")
    (tmp_path / "go").touch()
    with pytest.raises(BatchFailed, match=r"3 cancelled.*too dear"):
        started.get(timeout=LIMIT)
    assert not lines(notes)


@pytest.mark.usefixtures("crew")
def test_a_step_that_failed_stays_failed(steps: ModuleType, notes: Path, tmp_path: Path) -> None:
    """Failed items may run again and succeed; the canvas behind them was told once, and is over (promise D3)."""
    there = tmp_path / "there"
    step = steps.poimen.each(steps.needs, [[1, str(there)]], star=True)
    started = chain(step, steps.tell.s(str(notes))).apply_async()
    with pytest.raises(BatchFailed, match="not yet"):
        started.get(timeout=LIMIT)
    batch = steps.poimen.batch(started.parent.id)
    eventually(lambda: batch.status().callbacks_pending == 0)
    there.touch()
    assert batch.retry_failed() == 1
    assert batch.wait(timeout=LIMIT).succeeded == 1
    eventually(lambda: batch.status().callbacks_pending == 0)
    run(group(steps.marked.s("last", str(notes), 0.3) for _ in range(2)))
    assert {line.split()[0] for line in lines(notes)} == {"start", "end"}
    assert started.parent.state == "FAILURE"


@pytest.mark.usefixtures("crew")
def test_a_bad_value_far_behind_fails_the_step_once(steps: ModuleType, notes: Path) -> None:
    """A value that cannot travel, found when the batch runs already, cancels it; one error says why (fault A15)."""
    step = steps.poimen.each(steps.double, [*range(600), 2**70]).set(link_error=steps.siren.s(path=str(notes)))
    with pytest.raises(BatchFailed, match='dispatch aborted: SerializationError: item "600"'):
        run(step, serializer="json")
    run(steps.poimen.each(steps.double, [1]))
    assert [line.partition(":")[0] for line in lines(notes)] == ["siren BatchFailed"]


def test_more_than_a_message_takes_is_refused(eager: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are together too long for a message fail the step by name, not the broker (fault F12)."""
    monkeypatch.setattr("poimen_tasks.dispatch.each._MOST_BYTES", 2_000)
    with pytest.raises(PayloadTooLarge, match=r"results of batch .* take 3,\d+ bytes, a message at most 2,000"):
        run(eager.poimen.each(eager.same, ["x" * 1_000] * 3))


# --- messages that come twice ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("crew")
def test_a_step_delivered_twice_runs_once(steps: ModuleType, notes: Path) -> None:
    """Copies of a step's message, early or late, neither dispatch again nor run the rest twice (faults A05, C01)."""
    name = str(uuid.uuid4())
    step = steps.poimen.each(steps.marked, [[i, str(notes)] for i in range(3)], star=True)
    step.set(task_id=name, link=steps.tell.s(str(notes), "then "))
    copies = [step.apply_async() for _ in range(3)]
    assert copies[0].get(timeout=LIMIT) == [0, 1, 2]
    eventually(lambda: "then [0, 1, 2]" in lines(notes))
    eventually(lambda: steps.app.backend.get_state(f"{name}@going-on") == "SUCCESS")
    collect = steps.app.tasks["poimen.each.collect"].si(name)
    late = [step.apply_async(), collect.apply_async(task_id=name, link=steps.tell.s(str(notes), "then "))]
    assert [copy.get(timeout=LIMIT) for copy in late] == [[0, 1, 2]] * 2
    # Both copies have been taken when tasks published behind them have run, one in each process.
    run(group(steps.marked.s("last", str(notes), 0.3) for _ in range(2)))
    assert lines(notes).count("then [0, 1, 2]") == 1
    assert sum(line.startswith("start") and "last" not in line for line in lines(notes)) == 3


def test_two_copies_at_once_go_on_one_after_the_other(steps: ModuleType, crew: Workers, notes: Path) -> None:
    """A copy of the message behind the batch waits while another is at it; when that died it goes on (fault A05)."""
    name = str(uuid.uuid4())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Celery's own way to write to Redis
        steps.app.backend.store_result(f"{name}@going-on", None, "STARTED")
    step = steps.poimen.each(steps.double, [1]).set(link=steps.tell.s(str(notes), "then "))
    started = step.apply_async(task_id=name)
    told = f"poimen.each.collect of message {name} is put off for 2 s"
    eventually(lambda: told in crew.all[0].text())
    store = steps.poimen.store
    assert store.calls.claim_collect(
        name, patience=0
    )  # the same is known of it in the store, which copies cannot share
    steps.app.backend.forget(f"{name}@going-on")
    eventually(lambda: crew.all[0].text().count(told) == 2)
    assert not lines(notes)
    store.client.redis.hdel(store.keys.record(name), "going")
    assert started.get(timeout=LIMIT) == [2]
    eventually(lambda: lines(notes) == ["then [2]"])


@pytest.mark.usefixtures("crew")
def test_the_step_keeps_off_a_batch_that_is_not_its_own(steps: ModuleType) -> None:
    """A message id that is another batch's id gives a batch of another id (fault A08)."""
    other = steps.poimen.dispatch([steps.one.s()], batch_id="taken")
    other.wait(timeout=LIMIT)
    assert run(steps.poimen.each(steps.double, [1, 2]), task_id="taken") == [2, 4]
    assert other.status().total == 1


@pytest.mark.usefixtures("crew")
def test_a_canvas_applied_again_runs_again(steps: ModuleType, notes: Path) -> None:
    """Celery keeps the last message id of a canvas that is applied twice; its batch runs twice all the same (A08)."""
    step = steps.poimen.each(steps.marked, star=True).set(link=steps.tell.s(str(notes), "then "))
    canvas = chain(steps.same.s([[1, str(notes)]]), step)
    first, second = canvas.apply_async(), canvas.apply_async()
    assert first.id == second.id
    eventually(lambda: lines(notes).count("then [1]") == 2)
    assert lines(notes).count("end 1") == 2


@pytest.mark.usefixtures("crew")
def test_any_message_id_will_do(steps: ModuleType) -> None:
    """A message id that breaks the rule of batch ids gives a batch of another id (fault H10)."""
    started = steps.poimen.each(steps.double, [1]).apply_async(task_id="my task / 1")
    assert (started.id, started.get(timeout=LIMIT)) == ("my task / 1", [2])


# --- who it belongs to -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("crew")
def test_options_are_those_of_the_batch(steps: ModuleType) -> None:
    """Concurrency, workflow, stage and actor reach the batch, whose id is the step's message id (promise D2)."""
    step = steps.poimen.each(
        steps.double, concurrency=3, workflow="nightly", stage="double", actor="cron", priority="low", queue="celery"
    )
    started = chain(steps.upto.s(2), step).apply_async()
    assert started.get(timeout=LIMIT) == [0, 2]
    status = steps.poimen.batch(started.id).status()
    assert (status.workflow, status.stage, status.concurrency) == ("nightly", "double", 3)
    started = steps.poimen.each(steps.double, [1], concurrency=None).apply_async()
    started.get(timeout=LIMIT)
    assert steps.poimen.batch(started.id).status().concurrency is None


@pytest.mark.usefixtures("crew")
def test_the_batches_of_a_canvas_share_a_workflow(steps: ModuleType) -> None:
    """Steps of one canvas belong to the workflow of its root id, and later steps to its chain (promise D1)."""
    started = chain(
        steps.one.s(), steps.upto.s(), steps.poimen.each(steps.double), steps.poimen.each(steps.double), steps.place.s()
    ).apply_async()
    seen = started.get(timeout=LIMIT)
    root = started.parent.parent.parent.parent.id
    assert (seen["root_id"], seen["parent_id"]) == (root, started.parent.id)
    assert {batch.id for batch in steps.poimen.batches(workflow=root)} == {started.parent.id, started.parent.parent.id}


@pytest.mark.usefixtures("crew")
def test_a_canvas_started_by_a_batch_belongs_to_it(steps: ModuleType) -> None:
    """A step inherits workflow and actor when an item or a callback of a batch started its canvas (promise D1)."""
    batch = steps.poimen.dispatch(
        [steps.starts_each.s(2), steps.starts_each.s(3)],
        on_success=chain(steps.same.si([7]), steps.poimen.each(steps.double)),
        workflow="family",
        actor="cron",
    )
    batch.wait(timeout=LIMIT)
    found = eventually(lambda: len(made := steps.poimen.batches(workflow="family")) == 4 and made)
    actors = {steps.poimen.store.reads.field(each.id, "actor")[0] for each in found}
    assert actors == {b"cron"}
    assert sorted(each.wait(timeout=LIMIT).total for each in found) == [1, 2, 2, 3]


@pytest.mark.usefixtures("crew")
def test_a_batch_may_go_on_with_a_batch(steps: ModuleType, notes: Path) -> None:
    """As a chord's body or a callback of a dispatched batch the step gets its results (promise D1)."""
    then = steps.poimen.each(steps.double).set(link=steps.tell.s(str(notes)))
    steps.poimen.dispatch(chord([steps.one.s(), steps.add.s(1, 1)], then))
    eventually(lambda: lines(notes) == ["[2, 4]"])


# --- deaths ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker_env(worker_env: dict[str, str]) -> dict[str, str]:
    """Short leases, because these tests wait for them to end."""
    return {**worker_env, "POIMEN_LEASE": "1.0", "POIMEN_TICK": "0.2", "POIMEN_TICKET_OVERDUE": "0.2"}


@pytest.fixture
def own_steps(worker_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app in this process, with the settings of this test alone."""
    with imported(worker_env, STEPS) as module:
        yield module


def test_a_chain_outlives_every_worker(own_steps: ModuleType, workers: Workers, notes: Path, tmp_path: Path) -> None:
    """All workers are killed while the batch runs, on a queue of its own; another one ends the chain (fault B01).

    It has one process, which the step does not hold while its batch runs.
    """
    go = tmp_path / "go"
    step = own_steps.poimen.each(own_steps.waits_for, [[i, str(go)] for i in range(3)], star=True, queue="far")
    told = own_steps.tell.s(str(notes), "then ").set(queue="far")
    first = workers.start(STEPS, concurrency=1, queues="far")
    started = chain(step.set(queue="far"), told).apply_async()
    batch = own_steps.poimen.batch(started.parent.id)
    eventually(lambda: runs(batch))
    first.destroy()
    go.touch()
    workers.start(STEPS, concurrency=1, queues="far")
    assert started.get(timeout=LIMIT) == [0, 1, 2]
    assert batch.status().state is BatchState.COMPLETED
    assert lines(notes) == ["then [0, 1, 2]"]


def test_a_kill_at_any_step_loses_and_doubles_nothing(
    own_steps: ModuleType, workers: Workers, notes: Path, tmp_path: Path
) -> None:
    """A process dies after dispatching, after publishing, after storing the result (faults A03, A04, A05, C08).

    And the message behind the batch is lost on its way: no timeout of the broker would bring it back.
    """
    after = ("poimen.each", "poimen.callback", "poimen.each.collect")
    lose = {"STEPS_LOSE": "poimen.each.collect", "STEPS_LOST": str(tmp_path / "lost")}
    worker = workers.start(STEPS, env={"STEPS_DIE": str(tmp_path), "STEPS_DIE_AFTER": " ".join(after), **lose})
    step = own_steps.poimen.each(own_steps.marked, [[i, str(notes)] for i in range(3)], star=True)
    started = chain(step, own_steps.tell.s(str(notes), "then ")).apply_async()
    assert started.get(timeout=LIMIT) == [0, 1, 2]
    eventually(lambda: all((tmp_path / name).exists() for name in after))
    batch = own_steps.poimen.batch(started.parent.id)
    eventually(lambda: batch.status().callbacks_pending == 0)
    assert worker.text().count(f"message {batch.id} is published again") == (tmp_path / "lost").exists() == 1
    run(group(own_steps.marked.s("last", str(notes), 0.3) for _ in range(2)))
    assert lines(notes).count("then [0, 1, 2]") == 1


def test_an_outage_of_the_store_delays_the_step(worker_env: dict[str, str], workers: Workers, tmp_path: Path) -> None:
    """A store that is away when the step begins makes it try again, not fail (fault D07)."""
    with EmbeddedServer(tmp_path / "store") as store:
        env = {
            **worker_env,
            "POIMEN_REDIS_URL": store.url,
            "POIMEN_CONNECT_TIMEOUT": "0.5",
            "STEPS_RESULTS": worker_env["POIMEN_BROKER_URL"],
        }
        with imported(env, STEPS) as steps:
            worker = workers.start(STEPS, env=env)
            store.kill()
            started = chain(steps.upto.s(3), steps.poimen.each(steps.double), steps.total.s()).apply_async()
            eventually(lambda: "does not answer" in worker.text())
            store.restart()
            assert started.get(timeout=LIMIT) == 6
