"""`tracker_update`: tasks of a tracker get a status and other values."""

from __future__ import annotations

import pytest

from poimen_tasks import TaskStatus
from poimen_tasks.errors import InvalidArgument
from poimen_tasks.store.tracker_scripts import Given, Who
from tests.integration import lanes
from tests.integration.lanes import update

COMPLETED, FAILED, PENDING = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.PENDING


def told(store):
    """The entries of updates."""
    return [entry.header for entry in lanes.audit(store, "tracker.updated")]


def counts(store):
    """How many tasks there are in each status that has any."""
    found = store.trackers.tracker_stats("v", ranks=len(TaskStatus))
    return {status: count for status, count in zip(TaskStatus, found.ranks, strict=True) if count}


def test_a_task_begins(store):
    """A task that is not there begins with what is given, as the first status without one, and has its entry."""
    done = update(store, scope="all of it", reason="new", actor="ada", workflow="w")
    assert (done.changed, done.conflict) == (1, False)
    state = store.tracker_reads.task("v", "T1")
    assert done.task == state
    assert (state.version, state.status, state.scope, state.branch) == (1, "pending", "all of it", "")
    assert (state.actor, state.reason, state.created) == ("ada", "new", state.updated)
    (header,) = told(store)
    assert (header["tracker"], header["task"], header["to"], header["version"]) == ("v", "T1", "pending", 1)
    assert header["values"] == {b"scope": b"all of it"}
    assert (header["w"], header["a"], header["reason"]) == ("w", "ada", "new")
    assert "from" not in header
    assert store.tracker_reads.names() == ["v"]


def test_only_what_is_given_changes(store):
    """What an update does not name stays as it is; numbers of changes go on over all tasks of the tracker."""
    update(store, "T1", scope="a", branch="b", verification="c")
    update(store, "T2")
    done = update(store, "T1", COMPLETED, branch="d")
    assert done.task[:5] == (3, "completed", "a", "d", "c")
    assert done.task.created < done.task.updated
    assert (told(store)[-1]["from"], told(store)[-1]["to"]) == ("pending", "completed")
    assert told(store)[-1]["values"] == {b"branch": b"d"}
    assert counts(store) == {PENDING: 1, COMPLETED: 1}


def test_nothing_new_changes_nothing(store):
    """An update that says what is there already has no version, no entry, and leaves no trace (invariant I5)."""
    update(store, "T1", COMPLETED, scope="a")
    before = lanes.snapshot(store)
    done = update(store, "T1", COMPLETED, scope="a", actor="another")
    assert (done.changed, done.task.version, done.task.actor) == (0, 1, "me")
    assert lanes.snapshot(store) == before


def test_expected(store):
    """With an expected version only a task that has it changes; 0 is for one that is not there."""
    assert update(store, expected=0).changed == 1
    before = lanes.snapshot(store)
    for version in (0, 2):
        done = update(store, "T1", FAILED, expected=version)
        assert (done.conflict, done.changed, done.task.version) == (True, 0, 1)
    missing = update(store, "T2", FAILED, expected=1)
    assert (missing.conflict, missing.task) == (True, None)
    assert lanes.snapshot(store) == before
    assert update(store, "T1", FAILED, expected=1).task.version == 2


def test_request_id(store):
    """A request that a task has seen changes nothing, whatever happened meanwhile, also one that was no change."""
    update(store, "T1", COMPLETED, request_id="r1")
    update(store, "T1", COMPLETED, request_id="r2")
    update(store, "T1", FAILED)
    before = lanes.snapshot(store)
    for request_id in ("r1", "r2"):
        done = update(store, "T1", COMPLETED, request_id=request_id, expected=77)
        assert (done.changed, done.conflict, done.task.status) == (0, False, "failed")
    assert lanes.snapshot(store) == before
    assert update(store, "T1", COMPLETED, request_id="r3").changed == 1
    assert len(told(store)) == 3


def test_the_last_requests_are_remembered(store):
    """A task remembers its last eight requests: what it keeps has a bound."""
    for number in range(9):
        update(store, "T1", (COMPLETED, FAILED)[number % 2], request_id=f"r{number}")
    assert update(store, "T1", FAILED, request_id="r1").changed == 0
    assert update(store, "T1", FAILED, request_id="r0").changed == 1


def test_many(store):
    """Many tasks go out a hundred a call, each with its entry; those that say nothing new have none."""
    with lanes.listening(store) as calls:
        tasks = [Given(f"T{number}", "completed", COMPLETED.rank) for number in range(250)]
        assert store.trackers.tracker_update("v", tasks, begin=("pending", 0), who=Who("me")).changed == 250
        assert store.trackers.tracker_update("v", tasks[:5], begin=("pending", 0), who=Who("me")).changed == 0
    assert [len(call.request["tasks"]) for call in calls] == [100, 100, 50, 5]
    assert len(told(store)) == 250
    assert counts(store) == {COMPLETED: 250}
    assert [task for task, _ in store.tracker_reads.tasks("v")] == [f"T{number}" for number in range(250)]


def test_calls_are_bounded_by_bytes(store):
    """Long texts make shorter calls, of about a megabyte."""
    with lanes.listening(store) as calls:
        tasks = [Given(f"T{number}", scope="x" * 40_000) for number in range(20)]
        store.trackers.tracker_update("v", tasks, begin=("pending", 0), who=Who("me"))
    assert [len(call.request["tasks"]) for call in calls] == [6, 6, 6, 2]


def test_too_many(store):
    """More than 500 tasks in one call are refused before anything is written."""
    request = {
        "tracker": "v", "tasks": [{"i": f"T{n}"} for n in range(501)], "id": "", "actor": "me", "reason": "",
        "pending": {"s": "pending", "k": 0},
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match="501"):
        store.client.call("tracker_update", request, owner="o", sequence=1)
    assert lanes.snapshot(store) == {}


def test_pages_while_tasks_change(store):
    """A task that is there all the time comes once, though its status changes and others go meanwhile."""
    tasks = [Given(f"T{number}") for number in range(600)]
    store.trackers.tracker_update("v", tasks, begin=("pending", 0), who=Who("me"))
    seen = []
    for task, _ in store.tracker_reads.tasks("v"):
        if not seen:
            update(store, "T500", COMPLETED)
            update(store, "T0", COMPLETED)
            store.trackers.tracker_remove("v", "T400", who=Who("me"))
            update(store, "T600")
        seen.append(task)
    assert seen == [f"T{number}" for number in range(601) if number != 400]


def test_once(store):
    """The same request twice changes a task once; a lower sequence is refused (protocol 4)."""
    update(store)
    lanes.assert_once(store, lambda: update(store, "T1", COMPLETED))


def test_one_memory_a_thread(store):
    """What the store keeps for retries does not grow with the number of updates."""
    for number in range(5):
        update(store, f"T{number}")
    assert len(store.client.redis.keys(store.keys.build("owner", "*"))) == 1


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: update(store))
