"""note_snapshot: what is told of a snapshot that is on disk, or was not to be had."""

from __future__ import annotations

from typing import Any

from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.test_pause_scope import pause

TOLD: dict[str, Any] = {
    "snapshot": "s1",
    "host": "h1",
    "batches": 1,
    "items": 4,
    "bytes": 99,
    "taken": 10.5,
    "actor": "me",
    "reason": "why",
    "stage": "s",
    "error": "",
}


def state(store: Store, scope: str = "w:w") -> dict[str, str]:
    """What a pause remembers."""
    return store.snapshots.pause_states([scope]).get(scope, {})


def test_it_is_audited(store: Store) -> None:
    """One entry says who took it, why, where and how much; a workflow that is not paused gets no state."""
    assert store.snapshots.note_snapshot("w", **TOLD) is False
    (told,) = lanes.audit(store, "snapshot.created")
    assert told.header == {"w": "w", "s": "s", "a": "me", **{k: v for k, v in TOLD.items() if k in told.header}}
    assert {"snapshot", "host", "batches", "items", "bytes", "reason"} <= told.header.keys()
    assert state(store) == {}


def test_a_pause_remembers_it(store: Store) -> None:
    """The pause of the workflow knows its snapshot, and of which epoch it is."""
    pause(store, "w:w")
    assert store.snapshots.note_snapshot("w", **TOLD) is True
    known = state(store)
    assert (known["snapshot"], known["snapshot_at"], known["snapshot_host"]) == ("s1", "10.5", "h1")
    assert known["snapshot_epoch"] == known["epoch"]


def test_a_failure_is_remembered_until_it_succeeds(store: Store) -> None:
    """The pause tells why there is no snapshot, until there is one; nothing is audited of what was not done."""
    pause(store, "w:w")
    store.snapshots.note_failure("w", "no space")
    assert state(store)["snapshot_error"] == "no space"
    assert lanes.audit(store, "snapshot.created") == []
    store.snapshots.note_snapshot("w", **TOLD)
    assert "snapshot_error" not in state(store)


def test_a_failure_without_a_pause_leaves_nothing(store: Store) -> None:
    """What is not paused has nowhere to keep it."""
    before = lanes.snapshot(store)
    store.snapshots.note_failure("w", "no space")
    assert lanes.snapshot(store) == before


def test_once(store: Store) -> None:
    """A request that is sent twice is told once (protocol 4)."""
    pause(store, "w:w")
    lanes.assert_once(store, lambda: store.snapshots.note_snapshot("w", **TOLD))


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: store.snapshots.note_snapshot("w", **TOLD))
