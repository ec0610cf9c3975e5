"""restore_done: a snapshot is restored, and is remembered as such."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import SnapshotConflict
from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.keeping import begin, done
from tests.integration.test_note_snapshot import state
from tests.integration.test_pause_scope import pause


def test_it_is_remembered(store: Store) -> None:
    """It is remembered for a year, with one audit entry, and may be asked for again without effect."""
    begin(store)
    assert done(store) is True
    assert store.client.redis.ttl(store.keys.build("restored", "s1")) > 360 * 86_400
    assert done(store) is False
    (told,) = lanes.audit(store, "snapshot.restored")
    assert (told.header["w"], told.header["a"], told.header["items"]) == ("w", "me", 4)


def test_a_pause_is_content_with_it(store: Store) -> None:
    """A workflow that comes back paused has its snapshot: the keeper takes no other one for that pause."""
    begin(store)
    pause(store, "w:w")
    done(store)
    assert (state(store)["snapshot"], state(store)["snapshot_epoch"]) == ("s1", state(store)["epoch"])


def test_only_who_began(store: Store) -> None:
    """Nobody else may say that it is done."""
    begin(store, holder="one")
    with pytest.raises(SnapshotConflict):
        done(store, holder="two")


def test_once(store: Store) -> None:
    """A request that is sent twice changes things once (protocol 4)."""
    begin(store)
    lanes.assert_once(store, lambda: done(store))


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    begin(store)
    lanes.assert_layout(store, lambda: done(store))
