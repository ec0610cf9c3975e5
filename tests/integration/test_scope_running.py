"""`scope_running`: what runs in a scope now."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch
from tests.integration.test_pause_scope import pause


def test_running(store):
    """What lanes hold is told until they have reported it; a callback belongs to its batch."""
    lane = begin(store, open_batch(store, count=1, callbacks=["complete"])[0])
    assert store.pauses.scope_running("b:b").epoch is None
    epoch = pause(store, "q:other").epoch
    assert store.pauses.scope_running("q:other") == (epoch, [], [])
    assert [row.ranges for row in store.pauses.scope_running("b:b").running] == [[0, 1]]
    hidden = begin(store, lane.finish("free", ok=[0]).tickets[0])
    for scope in ("b:b", "w:w", "*", "a:acts.callback"):
        assert [row.batch for row in store.pauses.scope_running(scope).running] == ["b@complete.0"]
    hidden.finish("free", ok=[0])
    assert store.pauses.scope_running("*").running == []


def test_changes_nothing(store):
    """It is a look."""
    begin(store, open_batch(store)[0])
    before = lanes.snapshot(store)
    store.pauses.scope_running("*")
    assert lanes.snapshot(store) == before


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    begin(store, open_batch(store)[0])
    lanes.assert_layout(store, lambda: store.pauses.scope_running("*"))
