"""`tracker_stats`: how many tasks a tracker has in each status."""

from __future__ import annotations

from poimen_tasks import TaskStatus
from tests.integration import lanes
from tests.integration.lanes import update


def stats(store):
    """What it says."""
    return store.trackers.tracker_stats("v", ranks=len(TaskStatus))


def test_counts(store):
    """Each status has its count, changes are counted, and times are those of the first and the last change."""
    for number, status in enumerate((*TaskStatus, TaskStatus.FAILED)):
        last = update(store, f"T{number}", status)
    first = store.tracker_reads.task("v", "T0")
    found = stats(store)
    assert found.ranks == [2 if status is TaskStatus.FAILED else 1 for status in TaskStatus]
    assert (found.changes, found.created, found.updated) == (8, first.created, last.task.updated)


def test_unknown(store):
    """A tracker that nobody began has nothing, and looking begins none."""
    assert stats(store) == ([0] * len(TaskStatus), 0, None, None)
    assert lanes.snapshot(store) == {}


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: stats(store))
