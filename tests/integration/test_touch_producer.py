"""`touch_producer`: the producer of an unsealed batch lives."""

from __future__ import annotations

from poimen_tasks.model import BatchState
from tests.integration import lanes
from tests.integration.lanes import open_batch


def test_stalled_batch(store):
    """A batch whose producer is silent shows as stalled, until the producer is heard again (protocol 1, fault A22)."""
    open_batch(store, seal=False)
    store.client.redis.hset(store.keys.record("b"), "producer", 1)
    assert store.reads.status("b").state is BatchState.STALLED
    for _ in range(2):
        store.scripts.touch_producer("b")
        assert store.reads.status("b").state is BatchState.OPEN


def test_expired_batch_is_not_revived(store):
    """A late sign of life does not bring back a record that expired, and the caller is told."""
    lanes.assert_unknown(store, lambda: store.scripts.touch_producer("b"))


def test_not_audited(store):
    """A sign of life is no change of state (invariant I5)."""
    open_batch(store, seal=False)
    before = lanes.audit(store)
    store.scripts.touch_producer("b")
    assert lanes.audit(store) == before


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store, seal=False)
    lanes.assert_layout(store, lambda: store.scripts.touch_producer("b"))
