"""`tracker_remove`: a task of a tracker is forgotten."""

from __future__ import annotations

from poimen_tasks import TaskStatus
from poimen_tasks.store.tracker_scripts import Who
from tests.integration import lanes
from tests.integration.lanes import update


def remove(store, task="T1", **options):
    """Remove a task."""
    return store.trackers.tracker_remove("v", task, who=Who("me", "enough"), **options)


def test_removes(store):
    """It is in no index any more; the others stay, and an entry tells what it was."""
    update(store, "T1", TaskStatus.FAILED)
    update(store, "T2")
    assert remove(store) == (True, False, 1)
    assert [task for task, _ in store.tracker_reads.tasks("v")] == ["T2"]
    assert sum(store.trackers.tracker_stats("v", ranks=len(TaskStatus)).ranks) == 1
    (told,) = lanes.audit(store, "tracker.removed")
    assert (told.header["task"], told.header["from"], told.header["version"]) == ("T1", "failed", 1)
    assert told.header["reason"] == "enough"


def test_unknown(store):
    """What is not there is not removed, and has no entry (invariant I5)."""
    update(store, "T2")
    before = lanes.snapshot(store)
    assert remove(store) == (False, False, 0)
    assert lanes.snapshot(store) == before


def test_expected(store):
    """With an expected version only a task that has it is removed."""
    update(store)
    before = lanes.snapshot(store)
    assert remove(store, expected=2) == (False, True, 1)
    assert lanes.snapshot(store) == before
    assert remove(store, expected=1) == (True, False, 1)


def test_no_version_comes_twice(store):
    """A task that is removed and begins anew has another version: who saw the old one is told of the change."""
    update(store)
    remove(store)
    assert update(store).task.version == 3
    assert update(store, "T1", TaskStatus.FAILED, expected=1).conflict


def test_once(store):
    """The same request twice removes once; a lower sequence is refused (protocol 4)."""
    update(store)
    lanes.assert_once(store, lambda: remove(store))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    update(store)
    lanes.assert_layout(store, lambda: remove(store))
