"""`poimen.pause`, `resume` and `pauses` as producers and operators call them; no worker is needed for any of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from poimen_tasks import InvalidArgument, InvalidId, NotPaused, PauseTimeout, StaleEpoch
from tests.conftest import ROOT, eventually


@pytest.fixture
def poimen(own_shop: ModuleType) -> Any:
    """The shop's."""
    return own_shop.poimen


# ------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ({}, "got none of them"),
        ({"workflow": "w", "queue": "q"}, "got workflow, queue"),
        ({"batch": "b", "everything": True}, "got batch, everything"),
        ({"everything": 1}, "everything"),
    ],
)
def test_exactly_one_scope(poimen: Any, scope: dict[str, Any], words: str) -> None:
    """None and two scopes are refused by every verb, in words that name what was given, and nothing is paused."""
    pauses = poimen.pauses
    looks = (pauses.is_paused, pauses.state, pauses.wait, pauses.reset, pauses.held, pauses.running)
    for verb in (poimen.pause, poimen.resume, *looks):
        with pytest.raises(InvalidArgument, match=words):
            verb(**scope)
    assert pauses.all() == []


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"grace": -0.1}, InvalidArgument, "grace: expected a number from 0"),
        ({"grace": float("nan")}, InvalidArgument, "grace"),
        ({"expires": 0}, InvalidArgument, "expires"),
        ({"terminate": "yes"}, InvalidArgument, "terminate"),
        ({"actor": "no actor"}, InvalidId, "actor"),
        ({"request_id": ""}, InvalidId, "request id"),
    ],
)
def test_bad_options(poimen: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    """An option out of its range is refused before anything is written."""
    with pytest.raises(error, match=words):
        poimen.pause(workflow="w", **options)
    assert not poimen.pauses.is_paused("w")
    assert poimen.pauses.stats().pauses == 0


@pytest.mark.parametrize("scope", [{"workflow": "no id"}, {"batch": ""}, {"queue": "a\nb"}, {"activity": 7}])
def test_bad_ids(poimen: Any, scope: dict[str, Any]) -> None:
    """An id that breaks its rule is refused."""
    with pytest.raises(InvalidId):
        poimen.pause(**scope)


def test_resuming_what_is_not_paused(poimen: Any) -> None:
    """Resuming what was never paused, or is not any more, is `NotPaused`, and names it (promise P2)."""
    with pytest.raises(NotPaused, match="workflow w is not paused"):
        poimen.resume(workflow="w")
    poimen.pause(workflow="w")
    poimen.resume(workflow="w")
    with pytest.raises(NotPaused, match="workflow w is not paused"):
        poimen.resume(workflow="w")
    with pytest.raises(InvalidArgument, match="rate"):
        poimen.resume(workflow="w", rate=0)


def test_a_stale_epoch(poimen: Any) -> None:
    """A resume meant for a pause that was replaced is refused (promise P2)."""
    first = poimen.pause(workflow="w", reason="one")
    second = poimen.pause(workflow="w", reason="two", grace=3.0)
    assert second.epoch > first.epoch
    with pytest.raises(StaleEpoch, match=f"epoch {first.epoch}"):
        poimen.resume(workflow="w", epoch=first.epoch)
    assert poimen.pauses.is_paused("w")
    assert not poimen.resume(workflow="w", epoch=second.epoch).paused


def test_repeated_requests(poimen: Any) -> None:
    """A request that is repeated with its id gets the same answer and changes nothing; a new one replaces the first."""
    first = poimen.pause(workflow="w", reason="one", request_id="r1")
    assert poimen.pause(workflow="w", reason="other", request_id="r1").epoch == first.epoch
    assert poimen.pauses.state("w").reason == "one"
    done = poimen.resume(workflow="w", request_id="r2")
    assert poimen.resume(workflow="w", request_id="r2") == done
    assert poimen.pauses.stats().resumes == 1


# ------------------------------------------------------------------------------------------ asking
def test_states_and_stats(poimen: Any) -> None:
    """State, all states and totals tell when, who and why, of pauses that last and that are over (promise P4)."""
    pauses = poimen.pauses
    assert pauses.state("unknown") is None
    assert not pauses.is_paused("unknown")
    poimen.pause(workflow="one", reason="upgrade", actor="ops", grace=5.0, expires=600.0)
    poimen.pause(queue="mail", reason="bounces", actor="ann")
    resumed = poimen.resume(queue="mail", reason="fixed", actor="bob", rate=3.0)
    state = pauses.state("one")
    assert (state.paused, state.reason, state.actor, state.grace) == (True, "upgrade", "ops", 5.0)
    assert (state.expires_at - state.paused_at).total_seconds() == pytest.approx(600.0)
    assert (state.stop_at - state.paused_at).total_seconds() == pytest.approx(5.0)
    assert state.resumed_at is None
    assert (resumed.resume_reason, resumed.resume_actor, resumed.rate) == ("fixed", "bob", 3.0)
    assert resumed.resumed_at >= resumed.paused_at
    assert [str(one.scope) for one in pauses.all()] == ["queue mail", "workflow one"]
    assert [str(one.scope) for one in pauses.all(paused=True)] == ["workflow one"]
    assert pauses.stats().to_dict() == {"total": 2, "paused": 1, "resumed": 1, "pauses": 2, "resumes": 1}
    assert state.to_dict()["paused_at"] == state.paused_at.isoformat()


def test_what_is_held(poimen: Any, own_shop: ModuleType) -> None:
    """What a pause holds back can be listed, and is held by all scopes that cover it (promise P4)."""
    poimen.pause(workflow="w")
    poimen.pause(everything=True)
    batches = [poimen.dispatch(poimen.map(own_shop.noop, range(3)), workflow="w") for _ in range(3)]
    assert sorted(poimen.pauses.held("w").batches) == sorted(batch.id for batch in batches)
    assert poimen.pauses.held(everything=True) == poimen.pauses.held("w")
    assert len(poimen.pauses.held("w", limit=2).batches) == 2
    assert poimen.pauses.held("w").to_dict()["calls"] == []
    assert poimen.pauses.running("w") == (0, 0)
    poimen.resume(workflow="w")
    assert poimen.pauses.held("w").batches == ()
    assert len(poimen.pauses.held(everything=True).batches) == 3


def test_reset(poimen: Any) -> None:
    """Reset forgets a scope; what is paused must be resumed first (promise P10)."""
    poimen.pause(workflow="w")
    with pytest.raises(InvalidArgument, match="workflow w is paused"):
        poimen.pauses.reset("w")
    poimen.resume(workflow="w")
    assert poimen.pauses.reset("w", actor="ops")
    assert poimen.pauses.state("w") is None
    assert poimen.pauses.all() == []
    assert not poimen.pauses.reset("w")
    with pytest.raises(PauseTimeout):
        poimen.pauses.wait("w", timeout=0.05)


# ------------------------------------------------------------------------------------------ waiting
def test_a_wait_that_times_out(poimen: Any) -> None:
    """A wait without a signal is an error after its timeout, and names the scope (promise P5)."""
    with pytest.raises(PauseTimeout, match="workflow w was neither paused nor resumed"):
        poimen.pauses.wait("w", timeout=0.05)
    with pytest.raises(InvalidArgument, match="timeout"):
        poimen.pauses.wait("w", timeout=-1)


def test_no_signal_is_lost_between_two_waits(poimen: Any) -> None:
    """Signals made while nobody waits are told by the next waits, each once and in order (promise P5)."""
    assert not poimen.pauses.is_paused("w")
    for _ in range(3):
        poimen.pause(workflow="w")
        poimen.resume(workflow="w")
    poimen.pause(workflow="other")
    assert [poimen.pauses.wait("w", timeout=5) for _ in range(6)] == [True, False] * 3
    with pytest.raises(PauseTimeout):
        poimen.pauses.wait("w", timeout=0.05)


LISTEN = """
import sys
from tests.acceptance.shop import poimen
poimen.pauses.is_paused("w")
print("ready", flush=True)
print([poimen.pauses.wait("w") for _ in range(2)], flush=True)
"""


def test_a_wait_in_another_process(poimen: Any, worker_env: dict[str, str]) -> None:
    """A process that waits without a timeout hears of a pause and a resume made in this one (promise P5)."""
    import os

    listener = subprocess.Popen(
        [sys.executable, "-c", LISTEN],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **worker_env},
        stdout=subprocess.PIPE,
        text=True,
    )
    with listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        poimen.pause(workflow="w")
        poimen.resume(workflow="w")
        assert listener.communicate(timeout=30)[0] == "[True, False]\n"


def test_waiting_for_quiet_is_told_of_a_resume(poimen: Any, own_shop: ModuleType) -> None:
    """Who waits for a scope to be quiet is told when it is resumed meanwhile."""
    receipt = poimen.pause(workflow="w")
    receipt.wait_quiet(timeout=0)
    poimen.resume(workflow="w")
    with pytest.raises(NotPaused, match="was resumed while you waited"):
        receipt.wait_quiet(timeout=5)


def test_eager(poimen: Any, own_shop: ModuleType) -> None:
    """Under `task_always_eager` the dispatch of what is paused returns, and the resume runs it in the caller."""
    own_shop.app.conf.task_always_eager = True
    poimen.pause(workflow="w")
    batch = poimen.dispatch(poimen.starmap(own_shop.add, [(1, 2), (3, 4)]), workflow="w")
    assert batch.status().state == "paused"
    poimen.resume(workflow="w")
    assert batch.wait(timeout=10).results == {"0": 3, "1": 7}


# ------------------------------------------------------------------------------------------ many
def test_a_thousand_workflows(poimen: Any, own_shop: ModuleType) -> None:
    """A thousand workflows are paused at once and resumed one by one, each by itself (promise P12)."""
    names = [f"wf-{number}" for number in range(1000)]
    for name in names:
        poimen.pause(workflow=name, reason=name)
    held = poimen.dispatch(poimen.map(own_shop.noop, range(2)), workflow="wf-7")
    free = poimen.dispatch(poimen.map(own_shop.noop, range(2)), workflow="wf-1000")
    assert (held.status().state, free.status().state) == ("paused", "open")
    assert sorted(state.reason for state in poimen.pauses.all(paused=True)) == sorted(names)
    for name in names[::2]:
        poimen.resume(workflow=name)
    assert [poimen.pauses.is_paused(name) for name in names[:4]] == [False, True, False, True]
    assert poimen.pauses.stats().to_dict() == {
        "total": 1000, "paused": 500, "resumed": 500, "pauses": 1000, "resumes": 500,
    }  # fmt: skip
    assert held.status().state == "paused"
    poimen.resume(workflow="wf-7")
    assert held.status().state == "open"


def test_pausing_from_many_threads(poimen: Any) -> None:
    """Pauses and resumes of the same scope from many threads leave one of the two, and count what they did."""
    refused: list[Exception] = []

    def steer(number: int) -> None:
        for _ in range(10):
            poimen.pause(workflow="w", actor=f"t{number}")
            try:
                poimen.resume(workflow="w", actor=f"t{number}")
            except NotPaused as error:
                refused.append(error)

    threads = [threading.Thread(target=steer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = poimen.pauses.stats()
    assert (stats.pauses, stats.resumes) == (80, 80 - len(refused))
    eventually(lambda: not poimen.pauses.is_paused("w"))
