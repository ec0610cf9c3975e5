"""`tracker_clear`: a tracker is forgotten with all its tasks."""

from __future__ import annotations

from poimen_tasks.store.tracker_scripts import Given, Who
from tests.integration import lanes
from tests.integration.lanes import update


def clear(store):
    """Clear the tracker."""
    return store.trackers.tracker_clear("v", who=Who("me", "over", "w"))


def test_clears(store):
    """However many there are, nothing of it is left, and nothing of others is touched; one entry says how many."""
    tasks = [Given(f"T{number}") for number in range(300)]
    store.trackers.tracker_update("v", tasks, begin=("pending", 0), who=Who("me"))
    update(store, tracker="v2")
    assert clear(store) == 300
    assert [key for key in lanes.snapshot(store) if b"}:t:v/" in key or key.endswith(b"}:t:v")] == []
    assert store.tracker_reads.names() == ["v2"]
    (told,) = lanes.audit(store, "tracker.cleared")
    assert (told.header["tracker"], told.header["n"], told.header["reason"]) == ("v", 300, "over")
    assert told.header["w"] == "w"


def test_unknown(store):
    """What was never there is not cleared, and has no entry (invariant I5)."""
    assert clear(store) == 0
    assert lanes.snapshot(store) == {}


def test_once(store):
    """The same request twice clears once; a lower sequence is refused (protocol 4)."""
    update(store)
    lanes.assert_once(store, lambda: clear(store))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    update(store)
    lanes.assert_layout(store, lambda: clear(store))
