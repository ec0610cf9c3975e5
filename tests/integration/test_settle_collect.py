"""`settle_collect`: the canvas behind a batch that is a step of it has gone on."""

from __future__ import annotations

import pytest

from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.lanes import open_batch


@pytest.mark.parametrize("how", ["collected", "revoked"])
def test_it_is_told_once(store: Store, how: str) -> None:
    """Whoever says it again changes nothing; one entry says how it ended (invariant I5)."""
    open_batch(store)
    assert store.calls.settle_collect("b", how=how) is True
    before = lanes.snapshot(store)
    assert store.calls.settle_collect("b") is False
    assert lanes.snapshot(store) == before
    (told,) = lanes.audit(store, "batch.collected")
    assert told.header == {"b": "b", "w": "w", "s": "s", "a": "tester", "how": how}


def test_a_batch_that_is_not_kept_is_not_revived(store: Store) -> None:
    """A canvas so late that its batch expired leaves no record of it."""
    assert store.calls.settle_collect("b") is False
    assert store.client.redis.exists(store.keys.record("b")) == 0
    assert lanes.audit(store, "batch.collected") == []


def test_once(store: Store) -> None:
    """A request that is sent twice is told once (protocol 4)."""
    open_batch(store)
    lanes.assert_once(store, lambda: store.calls.settle_collect("b"))


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: store.calls.settle_collect("b"))
