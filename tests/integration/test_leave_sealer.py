"""`leave_sealer`: a sealer stops in order, or for good."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import SealerConflict
from tests.integration.lanes import assert_layout
from tests.integration.sealers import Sealer, add, meta, register


def test_stays_registered(store):
    """Who only stops keeps the stream from being bounded: nothing is dropped until the next comes."""
    register(store)
    assert store.audit.leave_sealer("one")
    state = store.audit.describe_audit()
    assert (state.sealer, state.alive, state.beat) == ("one", False, 0)
    assert not store.audit.leave_sealer("two"), "only the registered one leaves"


def test_forgotten(store):
    """Unregistered, the stream is bounded again, and what was published is still known."""
    sealer = Sealer(store)
    sealer.publish(add(store, 3))
    store.audit.leave_sealer("one")
    assert store.audit.leave_sealer("", forget=True)
    assert "sealer" not in meta(store)
    assert meta(store)["sealed"] == "3"
    assert not store.audit.leave_sealer("", forget=True)


def test_a_living_one_is_not_forgotten(store):
    """It has to be stopped first."""
    register(store)
    with pytest.raises(SealerConflict, match="sealer one"):
        store.audit.leave_sealer("", forget=True)
    assert meta(store)["sealer"] == "one"


def test_layout(store):
    """Data of another layout is not touched."""
    register(store)
    assert_layout(store, lambda: store.audit.leave_sealer("one"))
