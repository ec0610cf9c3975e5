"""`claim_collect`: of the copies of the message behind a batch one goes on."""

from __future__ import annotations

from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.lanes import open_batch


def test_one_goes_on(store: Store) -> None:
    """The first does, the others do not; one that died is replaced, by one again (faults A05, C01)."""
    open_batch(store)
    record, claim = store.keys.record("b"), store.calls.claim_collect
    assert [claim("b", patience=30) for _ in range(3)] == [True, False, False]
    before = float(store.client.redis.hget(record, "going"))
    store.client.redis.hset(record, "going", before - 31)
    assert [claim("b", patience=30) for _ in range(2)] == [True, False]
    store.client.redis.hset(record, "going", before + 600)  # a clock that went back
    assert claim("b", patience=30) is True
    assert lanes.audit(store, "batch.collected") == []
    store.calls.settle_collect("b")
    store.client.redis.hdel(record, "going")
    assert claim("b", patience=30) is False, "the canvas has gone on"


def test_a_batch_that_is_not_kept_is_not_revived(store: Store) -> None:
    """Behind a batch that expired whoever comes goes on; no record of it is left."""
    assert store.calls.claim_collect("b", patience=30) is True
    assert store.client.redis.exists(store.keys.record("b")) == 0


def test_once(store: Store) -> None:
    """A request that is sent twice has the same reply: who goes on is not told that another one does (protocol 4)."""
    open_batch(store)
    lanes.assert_once(store, lambda: store.calls.claim_collect("b", patience=30))


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: store.calls.claim_collect("b", patience=30))
