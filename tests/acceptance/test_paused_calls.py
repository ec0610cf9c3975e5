"""Plain Celery calls under a pause, with real workers: parked, kept, and going on with the resume."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import chain, chord, group

from poimen_tasks.errors import PauseTimeout
from tests.acceptance.parking import APP, held_calls, lines, parked, resumed_after, settled, waits
from tests.conftest import Workers, eventually

SCOPES: dict[str, dict[str, Any]] = {
    "everything": {"everything": True},
    "queue": {"queue": "celery"},
    "activity": {"activity": "tests.acceptance.holding.tell"},
    "workflow": {"workflow": "nightly"},
    "batch": {"batch": "batch-1"},
}
HEADERS = {"poimen_workflow": "nightly", "poimen_batch": "batch-1"}


@pytest.fixture(scope="module")
def crew(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One worker with two processes for two queues, shared by the module."""
    crew = Workers(tmp_path_factory.mktemp("crew"), module_env)
    crew.start(APP, concurrency=2, queues="celery,other")
    yield crew
    crew.destroy_all()


pytestmark = pytest.mark.usefixtures("crew")


@pytest.fixture(autouse=True)
def _all_over(crew: Workers, holding: ModuleType) -> Iterator[None]:
    """A test that fails leaves nothing to the next."""
    yield
    for state in holding.poimen.pauses.all(paused=True):
        scope = {"everything": True} if state.scope.kind == "everything" else {state.scope.kind: state.scope.id}
        holding.poimen.resume(**scope)
    settled(holding)


# --- what is parked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCOPES)
def test_every_scope_parks(holding: ModuleType, notes: Path, kind: str) -> None:
    """A plain call that a pause covers is parked, reads PAUSED, and runs once with the resume (promise P14).

    The pause is looked at when it would start, not when it is sent (fault I09).
    """
    with resumed_after(holding, **SCOPES[kind]):
        called = holding.tell.apply_async(("x", str(notes)), headers=HEADERS)
        waits(holding, called)
        assert lines(notes) == []
    assert called.get(timeout=20) == "x"
    assert lines(notes) == ["x"]
    settled(holding)


@pytest.mark.parametrize("kind", [kind for kind in SCOPES if kind != "everything"])
def test_what_a_scope_does_not_cover_runs(holding: ModuleType, notes: Path, kind: str) -> None:
    """A call of another queue, activity, workflow or batch goes on under the pause (promise P14)."""
    with resumed_after(holding, **SCOPES[kind]):
        other = holding.add.apply_async((1, 2), queue="other", headers={"poimen_workflow": "weekly"})
        assert other.get(timeout=20) == 3
        assert parked(holding) == []


def test_overlapping_scopes(holding: ModuleType, notes: Path) -> None:
    """It starts when the last of the scopes that cover it is resumed, and not before (promise P14)."""
    pause, resume = holding.poimen.pause, holding.poimen.resume
    pause(queue="celery")
    called = holding.tell.delay("x", str(notes))
    eventually(lambda: parked(holding) == [called.id])
    pause(everything=True)
    pause(activity=holding.tell.name)
    resume(queue="celery")
    resume(everything=True)
    state = holding.poimen.pauses.state(activity=holding.tell.name)
    assert (state.held, lines(notes)) == (1, [])
    resume(activity=holding.tell.name)
    assert called.get(timeout=20) == "x"
    assert lines(notes) == ["x"]


@pytest.mark.parametrize("how", ["json", "msgpack", "compressed"])
def test_the_whole_message(holding: ModuleType, how: str) -> None:
    """A call that was parked runs with all that its message had, as one that was not (promise P14)."""
    options: dict[str, Any] = {
        "headers": {"mark": "m", **HEADERS},
        "priority": 7,
        "expires": 600,
        "time_limit": 50,
        "soft_time_limit": 40,
        "root_id": "root",
        "parent_id": "parent",
        **({"compression": "gzip"} if how == "compressed" else {"serializer": how}),
    }
    call = ((1, "ü", [None, 2.5]), {"name": {"deep": [True]}})

    def told(name: str) -> Any:
        called = holding.whole.apply_async(*call, task_id=f"{how}-{name}-{secrets.token_hex(4)}", **options)
        if name == "parked":
            waits(holding, called)
        return called

    direct = told("direct").get(timeout=20)
    with resumed_after(holding, everything=True):
        called = told("parked")
    found = called.get(timeout=20)
    assert found.pop("id") == called.id
    direct.pop("id")
    assert found.pop("expires")[:13] == direct.pop("expires")[:13]
    assert found == direct
    assert (found["mark"], found["priority"], found["timelimit"]) == ("m", 7, [50, 40])


@pytest.mark.parametrize("name", ["tell", "tell_late", "tell_only"])
def test_early_late_and_without_a_result(holding: ModuleType, notes: Path, name: str) -> None:
    """Acknowledged early or late, with a result or without: parked once, run once (promise P14)."""
    task = getattr(holding, name)
    with resumed_after(holding, everything=True):
        for number in range(20):
            task.delay(number, str(notes))
        eventually(lambda: len(parked(holding)) == 20)
        assert lines(notes) == []
    eventually(lambda: len(lines(notes)) == 20)
    settled(holding)
    assert sorted(map(int, lines(notes))) == list(range(20))


def test_tasks_of_other_classes(holding: ModuleType) -> None:
    """A task with a base of its own, and one that is a class, are parked too."""
    with resumed_after(holding, everything=True):
        called = [holding.based.delay(3), holding.by_class.delay(4)]
        eventually(lambda: [one.state for one in called] == ["PAUSED"] * 2)
    assert [one.get(timeout=20) for one in called] == [["based", 3], 8]


# --- when it is due ------------------------------------------------------------------------------------------------


def test_a_countdown(holding: ModuleType, notes: Path) -> None:
    """A call with a countdown is parked when it is due, and runs once with the resume (promise P14)."""
    with resumed_after(holding, everything=True):
        called = holding.tell.apply_async(("x", str(notes)), countdown=0.3)
        waits(holding, called)
    assert called.get(timeout=20) == "x"
    assert lines(notes) == ["x"]


def test_expired_while_it_was_parked(holding: ModuleType, notes: Path) -> None:
    """What expires under the pause does not run: it is revoked when it comes back, and forgotten (promise P14)."""
    with resumed_after(holding, everything=True):
        called = holding.tell.apply_async(("x", str(notes)), expires=1.0)
        waits(holding, called)
        expired = time.monotonic() + 1.2
        eventually(lambda: time.monotonic() > expired)
    eventually(lambda: called.state == "REVOKED")
    settled(holding)
    assert lines(notes) == []


def test_revoked_while_it_was_parked(holding: ModuleType, notes: Path) -> None:
    """A parked call that is revoked does not run, and is not published again (promise P14)."""
    with resumed_after(holding, everything=True):
        called = holding.tell.delay("x", str(notes))
        waits(holding, called)
        called.revoke()
        ask = holding.app.control.inspect().revoked
        eventually(lambda: any(called.id in known for known in (ask() or {}).values()))
    eventually(lambda: called.state == "REVOKED")
    settled(holding)
    assert lines(notes) == []


def test_a_retry(holding: ModuleType, notes: Path) -> None:
    """A retry that comes under a pause is parked as the retry it is; it costs no attempt (promise P14)."""
    with resumed_after(holding, everything=True):
        called = holding.retries_once.delay(str(notes))
        waits(holding, called)
    eventually(lambda: lines(notes) == ["attempt 0"])
    with resumed_after(holding, everything=True):
        waits(holding, called)
        assert lines(notes) == ["attempt 0"]
    assert called.get(timeout=20) == 1
    assert lines(notes) == ["attempt 0", "attempt 1"]


def test_a_task_that_replaces_itself(holding: ModuleType, notes: Path) -> None:
    """What takes a parked call's place, id and headers is a call of its own and no copy (promise P14)."""
    with resumed_after(holding, everything=True):
        called = holding.replaced.delay(str(notes), 2)
        waits(holding, called)
    assert called.get(timeout=20) == 0
    assert lines(notes) == ["left 2", "left 1", "left 0"]


# --- canvases; all of them are in `test_paused_canvases.py` ----------------------------------------------------------


def test_every_step_of_a_canvas(holding: ModuleType, notes: Path) -> None:
    """Chord header, chord body, the step behind it and a link are parked one after another, and end as ever (P14)."""
    add, total, tell = holding.add, holding.total, holding.tell
    work = chain(chord(group(add.s(n, 1) for n in range(4)), total.s()), add.s(100))
    with resumed_after(holding, everything=True):
        last = work.apply_async(link=tell.s(str(notes)))
        eventually(lambda: len(parked(holding)) == 4)
    assert last.get(timeout=20) == 110
    eventually(lambda: lines(notes) == ["110"])
    for told, activity in enumerate((total, tell), 2):
        with resumed_after(holding, activity=activity.name):
            last = work.apply_async(link=tell.s(str(notes)))
            eventually(lambda: len(parked(holding)) == 1)
        assert last.get(timeout=20) == 110
        # The link runs behind the result: the next pause must not meet this one's.
        eventually(lambda told=told: lines(notes) == ["110"] * told)  # type: ignore[misc]


def test_a_workflow_covers_what_comes_of_it(holding: ModuleType, notes: Path) -> None:
    """What is sent from inside an item of a workflow, and what that sends, is paused with it (promise P14)."""
    name = f"wf-{secrets.token_hex(4)}"
    with resumed_after(holding, activity=holding.sends.name):
        holding.poimen.dispatch([holding.starts.s(str(notes))], workflow=name).wait(timeout=20)
        eventually(lambda: len(parked(holding)) == 1)
        holding.poimen.pause(workflow=name)
    assert len(held_calls(holding, f"w:{name}")) == 1
    assert lines(notes) == ["item"]
    holding.poimen.resume(workflow=name)
    eventually(lambda: lines(notes) == ["item", "depth 1", "depth 0"])


def test_a_call_that_waits_for_an_equal_one(holding: ModuleType, notes: Path) -> None:
    """Its result comes under the pause: it is held all the same, and served with the resume (protocol 7)."""
    gate = notes.with_name("gate")
    call = (str(notes), secrets.token_hex(4), str(gate))
    leader = holding.priced.delay(*call)
    eventually(lambda: len(lines(notes)) == 1)
    follower = holding.priced.delay(*call)
    waiting = holding.poimen.store.keys.build("waiting_calls")
    eventually(lambda: holding.poimen.store.client.redis.hlen(waiting) == 1)
    with resumed_after(holding, everything=True):
        gate.touch()
        assert leader.get(timeout=20) == f"price of {call[1]}"
        eventually(lambda: parked(holding) == [follower.id])
        assert follower.state == "PAUSED"
    assert follower.get(timeout=20) == f"price of {call[1]}"
    assert len(lines(notes)) == 1


# --- what runs -----------------------------------------------------------------------------------------------------


def test_what_runs_is_in_the_receipt(holding: ModuleType, notes: Path) -> None:
    """A plain call that runs is in the receipt, and `wait_quiet` waits for its end (promise P14)."""
    gate = notes.with_name("gate")
    called = holding.waits_for.delay(str(notes), str(gate))
    eventually(lambda: lines(notes))
    with resumed_after(holding, activity=holding.waits_for.name) as receipt:
        assert receipt.calls == (called.id,)
        with pytest.raises(PauseTimeout, match=called.id):
            receipt.wait_quiet(timeout=0.2)
        gate.touch()
        receipt.wait_quiet(timeout=20)
        assert called.get(timeout=20) == "done"


def test_it_is_renewed_while_it_runs(holding: ModuleType, notes: Path) -> None:
    """A call that runs longer than a lease is running still (promise P14)."""
    gate = notes.with_name("gate")
    holding.waits_for.delay(str(notes), str(gate))
    eventually(lambda: lines(notes))
    redis, key = holding.poimen.store.client.redis, holding.poimen.store.keys.build("running_calls")
    (first,) = redis.hvals(key)
    eventually(lambda: redis.time()[0] > float(first.split(b"\t")[0]) + 1)
    with resumed_after(holding, everything=True) as receipt:
        assert len(receipt.calls) == 1
        gate.touch()
        receipt.wait_quiet(timeout=20)


# --- resumes -------------------------------------------------------------------------------------------------------


def test_many_calls(holding: ModuleType, notes: Path) -> None:
    """Hundreds of parked calls come back in portions, each once."""
    with resumed_after(holding, everything=True):
        with holding.app.producer_or_acquire() as producer, producer.batch(max_size=400):
            for number in range(400):
                holding.tell_only.apply_async((number, str(notes)), producer=producer)
        eventually(lambda: len(parked(holding)) == 400, timeout=60)
        assert len(held_calls(holding, "*")) == 400
    eventually(lambda: len(lines(notes)) >= 400, timeout=60)
    settled(holding)
    assert sorted(map(int, lines(notes))) == list(range(400))


def test_a_resume_with_a_rate(holding: ModuleType, notes: Path) -> None:
    """A resume with a rate lets few go at first, those that come meanwhile as well, and all in the end (P14)."""
    holding.poimen.pause(everything=True)
    for number in range(30):
        holding.tell_only.delay(number, str(notes))
    eventually(lambda: len(parked(holding)) == 30)
    holding.poimen.resume(everything=True, rate=10.0)
    holding.tell_only.delay(30, str(notes))
    assert len(lines(notes)) < 30
    eventually(lambda: len(lines(notes)) == 31)
    settled(holding)
    holding.poimen.store.client.redis.delete(holding.poimen.store.keys.build("ramps"))


def test_a_pause_that_expires(holding: ModuleType, notes: Path) -> None:
    """A pause with an end is over then, and what it held goes on without anybody (promise P14)."""
    holding.poimen.pause(everything=True, expires=1.0)
    called = holding.tell.delay("x", str(notes))
    assert called.get(timeout=20) == "x"
    assert lines(notes) == ["x"]
    assert holding.poimen.pauses.state(everything=True).resume_actor == "keeper"
