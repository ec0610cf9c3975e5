"""restore_begin: whether a snapshot may be restored here."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import SnapshotConflict
from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.keeping import begin, done, end


def test_into_an_empty_store(store: Store) -> None:
    """The first restorer may begin; the workflow is marked, so that nobody takes a part of it for the whole."""
    assert store.snapshots.is_restoring("w") is False
    begin(store)
    assert store.snapshots.is_restoring("w") is True
    assert store.client.redis.get(store.keys.build("layout")) == b"1"


def test_only_one(store: Store) -> None:
    """While somebody restores it another one is refused, and the same one may go on."""
    begin(store, holder="one")
    begin(store, holder="one")
    with pytest.raises(SnapshotConflict, match="somebody else"):
        begin(store, holder="two")


def test_one_that_is_silent_is_followed(store: Store) -> None:
    """A restorer that is silent for too long, or let go, is followed by another one (fault I13)."""
    store.snapshots.restore_begin("s1", workflow="w", holder="one", batches=["b"], hold=0.0)
    begin(store, holder="two")
    assert store.client.redis.hget(store.keys.build("restored", "s1"), "holder") == b"two"


def test_a_live_batch_is_refused(store: Store) -> None:
    """Where one of its batches is, nothing is begun, whichever of them it is."""
    lanes.open_batch(store, "there")
    before = lanes.snapshot(store)
    with pytest.raises(SnapshotConflict, match="batch 'there' is there already"):
        begin(store, batches=("b", "there"))
    with pytest.raises(SnapshotConflict, match="batch 'there' is there already"):
        begin(store, batches=(*(f"b{number}" for number in range(600)), "there"))
    assert lanes.snapshot(store) == before


def test_another_snapshot_at_the_same_batch(store: Store) -> None:
    """A batch that is half restored from one snapshot is not taken by another one."""
    begin(store)
    end(store, fields=["workflow", "w"], whole=False)
    with pytest.raises(SnapshotConflict, match="'b' is there already"):
        begin(store, "s2", holder="two")


def test_twice(store: Store) -> None:
    """What was restored is not restored again (fault I13)."""
    begin(store)
    done(store)
    assert store.snapshots.is_restoring("w") is False
    before = lanes.snapshot(store)
    with pytest.raises(SnapshotConflict, match="workflow 'w' was restored here already"):
        begin(store, holder="two")
    assert lanes.snapshot(store) == before


def test_once(store: Store) -> None:
    """A request that is sent twice changes things once (protocol 4)."""
    lanes.assert_once(
        store,
        lambda: store.snapshots._call(
            "restore_begin",
            {"snapshot": "s", "workflow": "w", "holder": "h", "hold": 9.0, "batches": ["b"], "check": False},
        ),
    )


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: begin(store))
