"""`check_batch`: the counters of a batch against its lists."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def test_sound_batch(store):
    """In every state an item is counted where it is found (invariant I3)."""
    lane = begin(store, open_batch(store, count=20, delayed={19: 9e9})[0], 8)
    lane.finish("stay", ok=[0], failed=[1], retry={2: 60.0}, give=[3])
    reply = store.scripts.check_batch("b")
    assert reply[b"good"] is True
    assert reply[b"counted"] == {
        b"pending": 12,
        b"delayed": 2,
        b"waiting": 0,
        b"running": 4,
        b"finished": 2,
        b"total": 20,
    }
    assert reply[b"found"] == {b"pending": 12, b"delayed": 2, b"waiting": 0, b"running": 4}


def test_drifted_counters_are_put_right(store):
    """Counters that drifted are found, repaired and audited, and work goes on (invariant I3)."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    lanes.reap(store, lane)
    store.client.redis.hset(store.keys.record("b"), mapping={"pending": 3, "c:0": 0, "running": 5})
    assert not lanes.holds_together(store)
    reply = store.scripts.check_batch("b", repair=True)
    assert (reply[b"good"], reply[b"repaired"]) == (False, True)
    assert lanes.holds_together(store)
    assert store.reads.field("b", "c:0") == [b"8"]
    (told,) = lanes.audit(store, "batch.repaired")
    assert (told.header["counted"][b"pending"], told.header["found"][b"pending"]) == (3, 8)


def test_claimable_counts_are_checked(store):
    """The count of what a partition offers is held against its list too: at 0 nothing would be claimed."""
    open_batch(store, count=8)
    store.client.redis.hset(store.keys.record("b"), "c:0", 0)
    assert not lanes.holds_together(store)
    store.scripts.check_batch("b", repair=True)
    assert lanes.holds_together(store)


def test_lost_items_are_not_guessed(store):
    """When an item is nowhere the batch is reported, not repaired: counters alone cannot bring it back."""
    open_batch(store, count=8)
    store.client.redis.delete(store.keys.build("fresh", "b", 0))
    before = lanes.snapshot(store)
    reply = store.scripts.check_batch("b", repair=True)
    assert (reply[b"good"], reply[b"repaired"]) == (False, False)
    assert lanes.snapshot(store) == before


def test_looking_changes_nothing(store):
    """A check without repair writes nothing."""
    open_batch(store, count=8)
    store.client.redis.hset(store.keys.record("b"), "pending", 3)
    before = lanes.snapshot(store)
    store.scripts.check_batch("b")
    assert lanes.snapshot(store) == before


def test_once(store):
    """The same repair twice is audited once; a lower sequence is refused (protocol 4)."""
    open_batch(store, count=8)
    store.client.redis.hset(store.keys.record("b"), "pending", 3)
    lanes.assert_once(store, lambda: store.scripts.check_batch("b", repair=True))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: store.scripts.check_batch("b"))


def test_unknown_batch(store):
    """A batch that is not known is named."""
    lanes.assert_unknown(store, lambda: store.scripts.check_batch("b"))
