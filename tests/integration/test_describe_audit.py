"""`describe_audit`: the stream and its sealer, without changing anything."""

from __future__ import annotations

from poimen_tasks.store.audit_scripts import StreamState
from tests.integration.lanes import assert_layout, snapshot
from tests.integration.sealers import Sealer, add


def test_nothing_there(store):
    """On an empty server there is nothing to tell, and nothing is made."""
    state = store.audit.describe_audit()
    assert state == StreamState(now=state.now)
    assert snapshot(store) == {}


def test_what_there_is(store):
    """Length, first and last entry, and the registered sealer."""
    written = add(store, 3)
    Sealer(store)
    before = snapshot(store)
    state = store.audit.describe_audit()
    assert (state.length, state.added, state.oldest, state.last) == (3, 3, written[0], written[2])
    assert (state.sealer, state.alive, state.home, state.lease) == ("one", True, "home", 60.0)
    assert snapshot(store) == before


def test_layout(store):
    """Data of another layout is not touched."""
    assert_layout(store, store.audit.describe_audit)
