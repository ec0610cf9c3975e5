"""`promote_batch`: what is due becomes claimable, tickets that are missing are issued, a cancelled batch is drained."""

from __future__ import annotations

import pytest

from poimen_tasks.model import BatchState
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def _make_due(store, *positions):
    """Move due times into the past, as waiting would."""
    key = store.keys.build("delayed", "b")
    store.client.redis.zadd(key, {f"{position}:0": 1.0 for position in positions})


def test_due_items_bring_a_ticket(store):
    """A due item becomes claimable and brings the ticket it needs; the others wait on (protocol 2, fault D09)."""
    open_batch(store, count=3, delayed={position: 9e9 + position for position in range(3)})
    _make_due(store, 1)
    (ticket,) = store.scripts.promote_batch("b")
    status = store.reads.status("b")
    assert (status.pending, status.delayed) == (1, 2)
    assert store.client.redis.zscore(store.keys.build("due"), "b") == 9e9
    assert list(begin(store, ticket).holds) == [1]
    assert lanes.holds_together(store)


def test_many_due_items(store):
    """At most 200 items move in a call, and the batch stays due until all have (protocol 4)."""
    open_batch(store, count=450, delayed=dict.fromkeys(range(450), 1.0))
    moved = []
    while b"b" in lanes.offer(store, 1)[b"due"]:
        store.scripts.promote_batch("b")
        moved.append(lanes.field_of(store, "pending"))
    assert moved == [200, 400, 450]
    assert lanes.holds_together(store)


def test_hungry_batch(store):
    """A batch that wanted more tickets than there was room for gets them when workers come (protocol 2)."""
    assert len(open_batch(store, count=50)) == 1
    hungry = lanes.offer(store, 3)[b"hungry"]
    assert hungry == [b"b"]
    assert len(store.scripts.promote_batch("b")) == 5


def test_served_batch_is_not_hungry(store):
    """A batch that has what it wants leaves the list."""
    open_batch(store, count=50, limit=2)
    lanes.offer(store, 3)
    store.scripts.promote_batch("b")
    assert lanes.offer(store, 3)[b"hungry"] == []


def test_drains_a_cancelled_batch(store):
    """The keeper goes on with a cancellation whose caller is gone, 500 items a call (protocol 4)."""
    open_batch(store, count=1200, delayed=dict.fromkeys(range(1000, 1200), 9e9), callbacks=["failure"])
    assert store.scripts.cancel_batch("b", reason="stop", actor="me", terminate=False)[b"left"] == 700
    assert store.scripts.promote_batch("b") == []
    assert lanes.offer(store, 1)[b"hungry"] == [b"b"]
    (hidden,) = store.scripts.promote_batch("b")
    assert hidden.batch == "b@failure.0"
    assert store.reads.status("b").state is BatchState.CANCELLED
    assert lanes.offer(store, 1)[b"hungry"] == []
    assert len(lanes.ends(store)) == 1


@pytest.mark.parametrize("over", [True, False])
def test_batch_that_is_over_or_gone(store, over):
    """A batch that is over or gone leaves the global lists."""
    if over:
        open_batch(store, count=0)
    for name in ("due", "hungry"):
        store.client.redis.zadd(store.keys.build(name), {"b": 1.0})
    assert store.scripts.promote_batch("b") == []
    assert store.client.redis.exists(store.keys.build("due"), store.keys.build("hungry")) == 0


def test_nothing_to_do(store):
    """Promoting a batch that has its tickets changes nothing."""
    open_batch(store, limit=1)
    before = lanes.snapshot(store)
    assert store.scripts.promote_batch("b") == []
    assert lanes.snapshot(store) == before


def test_once(store):
    """The same request twice promotes once; a lower sequence is refused (protocol 4)."""
    open_batch(store, count=450, delayed=dict.fromkeys(range(450), 1.0))
    lanes.assert_once(store, lambda: store.scripts.promote_batch("b"))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: store.scripts.promote_batch("b"))
