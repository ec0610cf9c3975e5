"""`StateTracker`, the values that it gives, and boards that follow it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from poimen_tasks import (
    BoardTask,
    InvalidArgument,
    InvalidId,
    Poimen,
    StateTracker,
    TaskStatus,
    TrackerConflict,
    board,
    context,
)
from tests.integration import lanes
from tests.unit.boards import titled


@pytest.fixture
def states(poimen: Poimen) -> StateTracker:
    """A tracker that nobody has used."""
    return poimen.tracker("release")


def test_update_and_get(poimen: Poimen, states: StateTracker) -> None:
    """What was set is there, in any process, with who, why, when and its version (promise B4)."""
    made = states.update("T1", "In progress", scope="a | b", branch="w/a", actor="ada", reason="now")
    assert (made.id, made.status, made.scope, made.branch) == ("T1", TaskStatus.IN_PROGRESS, "a | b", "w/a")
    assert (made.version, made.actor, made.reason, made.verification) == (1, "ada", "now", "")
    assert StateTracker(poimen, "release").get("T1") == made
    assert states.get("T2") is None
    assert made.created_at == made.updated_at
    assert made.created_at.utcoffset() == timedelta(0)
    changed = states.update("T1", verification="make test")
    assert (changed.status, changed.scope, changed.created_at) == (made.status, made.scope, made.created_at)
    assert changed.to_dict() == {
        "id": "T1", "status": "in_progress", "scope": "a | b", "branch": "w/a", "verification": "make test",
        "version": 2, "actor": "unknown", "reason": "", "created_at": made.created_at.isoformat(),
        "updated_at": changed.updated_at.isoformat(),
    }  # fmt: skip
    assert repr(states) == "StateTracker('release')"


def test_all_completed_and_stats(poimen: Poimen, states: StateTracker) -> None:
    """All tasks in the order in which they came, those of one status, and totals (promise B4)."""
    assert (list(states.all()), poimen.trackers(), states.stats().total) == ([], [], 0)
    assert states.stats().to_dict()["created_at"] is None
    for number, status in enumerate(("pending", "completed", "failed", "completed", "blocked", "cancelled")):
        states.update(f"T{number}", status)
    assert [state.id for state in states.all()] == [f"T{number}" for number in range(6)]
    assert [state.id for state in states.completed()] == ["T1", "T3"]
    assert [state.id for state in states.all("Blocked")] == ["T4"]
    stats = states.stats()
    assert (stats.total, stats.completed, stats.remaining, stats.changes) == (6, 2, 2, 6)
    assert stats.progress == pytest.approx(1 / 3)
    plain = stats.to_dict()
    assert plain["by_status"] == {
        "pending": 1, "in_progress": 0, "in_review": 0, "blocked": 1, "completed": 2, "failed": 1, "cancelled": 1,
    }  # fmt: skip
    assert datetime.fromisoformat(plain["updated_at"]) == states.get("T5").updated_at
    assert poimen.trackers() == ["release"]


def test_conflicts(states: StateTracker) -> None:
    """A task that somebody else changed is told as such, with its version, and nothing is changed (promise B4)."""
    first = states.update("T1", expected=0)
    states.update("T1", "failed", expected=first.version)
    said = r"task 'T1' of tracker 'release': expected version 1, it has version 2: somebody else changed it"
    for verb in (lambda: states.update("T1", "completed", expected=1), lambda: states.remove("T1", expected=1)):
        with pytest.raises(TrackerConflict, match=said) as raised:
            verb()
        assert raised.value.version == 2
    with pytest.raises(TrackerConflict, match="expected no such task, it has version 2"):
        states.update("T1", "completed", expected=0)
    with pytest.raises(TrackerConflict, match="expected version 7, it is not there") as raised:
        states.update("T2", "completed", expected=7)
    assert raised.value.version == 0
    assert states.stats().by_status[TaskStatus.FAILED] == states.stats().total == 1


def test_a_request_twice(states: StateTracker) -> None:
    """An update that is sent again under its id changes nothing, whatever happened meanwhile (promise B4)."""
    states.update("T1", "completed", request_id="r1")
    states.update("T1", "failed")
    assert states.update("T1", "completed", request_id="r1").status is TaskStatus.FAILED
    assert states.stats().changes == 2


def test_many_and_none(states: StateTracker) -> None:
    """Many tasks are checked before the first is written; empty texts leave what is there."""
    states.update("T1", scope="kept")
    rows = [BoardTask(id=f"T{number}", status="completed") for number in range(1, 251)]
    assert states.update_many(rows, actor="ada", reason="load") == 250
    assert states.update_many(iter(rows)) == states.update_many([]) == 0
    assert states.get("T1").scope == "kept"
    assert states.update_many(states.all()) == 0
    with pytest.raises(InvalidArgument, match="tasks: expected values of BoardTask or TaskState, got 'T1'"):
        states.update_many([BoardTask(id="new"), "T1"])
    assert states.get("new") is None


def test_remove_and_clear(poimen: Poimen, states: StateTracker) -> None:
    """A task, and a whole tracker, are forgotten on demand, each with its entry (promise B4)."""
    states.update_many([BoardTask(id="T1"), BoardTask(id="T2"), BoardTask(id="T3")])
    assert (states.remove("T1", actor="ada", reason="moved"), states.remove("T1")) == (True, False)
    assert [state.id for state in states.all()] == ["T2", "T3"]
    assert (states.clear(actor="ada"), states.clear()) == (2, 0)
    assert poimen.trackers() == []
    told = poimen.audit.query(type=["tracker.removed", "tracker.cleared"])
    assert [(event.actor, event.task, event.action) for event in told] == [
        ("ada", "T1", "task T1 was removed from tracker release"),
        ("ada", None, "tracker release was cleared"),
    ]


def test_round_trips(poimen: Poimen, states: StateTracker) -> None:
    """A verb takes as many round trips with a thousand tasks as with one; `all` takes two for every 250."""
    states.update_many([BoardTask(id=f"T{number}") for number in range(1000)])
    counts = {}
    for name, verb in {
        "update": lambda: states.update("T5", "failed"),
        "get": lambda: states.get("T5"),
        "stats": states.stats,
        "remove": lambda: states.remove("T6"),
        "completed": lambda: list(states.completed()),
        "all": lambda: list(states.all()),
        "clear": states.clear,
    }.items():
        calls: list[Any] = []
        read = poimen.store.client.read
        poimen.store.client.read = lambda *a, **k: calls.append(a) or read(*a, **k)  # type: ignore[method-assign] # noqa: B023
        try:
            verb()
        finally:
            del poimen.store.client.read
        counts[name] = len(calls)
    assert counts == {"update": 1, "get": 1, "stats": 1, "remove": 1, "completed": 1, "all": 9, "clear": 1}


def test_inside_a_task(poimen: Poimen, states: StateTracker) -> None:
    """A running item says who it is, and of which workflow, unless the call says who."""
    item = context.RunningItem("b", "nightly", "s", "cron", lambda: False, lambda _state: None)
    before = context.enter(item)
    try:
        assert states.update("T1").actor == "cron"
        assert states.update("T1", "failed", actor="ada").actor == "ada"
    finally:
        context.enter(before)
    events = poimen.audit.query(workflow="nightly", type="tracker.updated")
    assert [event.actor for event in events] == ["cron", "ada"]
    assert poimen.audit.count(task="T1") == 2


Call = Callable[[StateTracker], Any]
BAD: dict[str, tuple[Call, type[Exception], str]] = {
    "empty id": (lambda t: t.update(""), InvalidId, "task id: expected 1-256 printable characters"),
    "id with a line break": (lambda t: t.update("a\nb"), InvalidId, r"task id: .*'a\\nb'"),
    "id with a space": (lambda t: t.get(" a"), InvalidId, "task id: expected no space at either end"),
    "number as id": (lambda t: t.remove(5), InvalidId, "task id: .* got int"),
    "status": (lambda t: t.update("T1", "done"), InvalidArgument, "status: expected one of pending, .* got 'done'"),
    "status of all": (lambda t: t.all("done"), InvalidArgument, "status: expected one of pending"),
    "scope": (lambda t: t.update("T1", scope="a\nb"), InvalidArgument, r"scope: holds the character U\+000A"),
    "branch": (lambda t: t.update("T1", branch=5), InvalidArgument, "branch: expected a text, got 5"),
    "expected": (lambda t: t.update("T1", expected=-1), InvalidArgument, "expected: expected a whole number from 0"),
    "expected as text": (lambda t: t.remove("T1", expected="1"), InvalidArgument, "expected: expected a whole number"),
    "actor": (lambda t: t.update("T1", actor="a b"), InvalidId, "actor: expected 1-128 of"),
    "request id": (lambda t: t.update("T1", request_id=""), InvalidId, "request id: expected 1-256 printable"),
    "one text": (lambda t: t.update_many("T1"), InvalidArgument, "tasks: expected a list of tasks of a board"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(poimen: Poimen, states: StateTracker, name: str) -> None:
    """Bad input is one clear error that names it, before anything is written."""
    call, kind, said = BAD[name]
    with pytest.raises(kind, match=said):
        call(states)
    assert lanes.snapshot(poimen.store) == {}


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", "x" * 129, 5, None])
def test_bad_names(poimen: Poimen, name: Any) -> None:
    """A tracker's name is a name (fault H11)."""
    with pytest.raises(InvalidId, match="tracker: expected 1-128 of"):
        poimen.tracker(name)


def test_a_board_that_follows(states: StateTracker) -> None:
    """A board is brought to what the tracker has; what only the board has stays (promise B3)."""
    text = titled("| T1 | a | pending | | |", "| T2 | b | nonsense |")
    states.update("T1", "completed", branch="w/a")
    states.update("T3", scope="c | d")
    healed = board.heal(text, states)
    assert [(task.id, task.status, task.branch) for task in healed.board.tasks] == [
        ("T1", "completed", "w/a"), ("T2", "pending", ""), ("T3", "pending", ""),
    ]  # fmt: skip
    assert "| T3 | c \\| d | pending |  |  |" in healed.text
    assert board.heal(healed.text, states).changes == ()
    assert states.update_many(healed.board.tasks) == 2
    assert states.get("T1").branch == "w/a"


def test_ids_and_texts_of_any_script(states: StateTracker) -> None:
    """What a board may hold, a tracker may."""
    row = BoardTask(id="T/1: é漢 \\|", scope="a | \\| `b|`", status="in_review", branch="\U0001f469\u200d\U0001f4bb")
    states.update_many([row])
    assert board.heal("", states).board.tasks == (row,)
