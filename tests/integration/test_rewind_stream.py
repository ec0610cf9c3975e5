"""`rewind_stream`: no id is given a second time."""

from __future__ import annotations

import pytest

from poimen_tasks.store.audit_scripts import StreamChanged
from tests.integration.lanes import assert_layout
from tests.integration.sealers import Sealer, add, ids


def test_the_next_id_is_above(store):
    """Entries that are there stay; the next gets an id larger than the one on disk (protocol 10)."""
    before = add(store, 2)
    sealer = Sealer(store)
    state = store.audit.rewind_stream("one", sealer.epoch, above="9000000000000-5")
    assert state.last == "9000000000000-5"
    assert add(store) == ["9000000000000-6"]
    assert ids(store) == [*before, "9000000000000-6"]


def test_a_stream_that_is_gone(store):
    """It is made anew, empty, and its ids go on above."""
    sealer = Sealer(store)
    state = store.audit.rewind_stream("one", sealer.epoch, above="9000000000000-5")
    assert (state.last, state.length) == ("9000000000000-5", 0)
    assert add(store) == ["9000000000000-6"]


def test_never_back(store):
    """An id below the last changes nothing."""
    (written,) = add(store)
    sealer = Sealer(store)
    assert store.audit.rewind_stream("one", sealer.epoch, above="5-0").last == written


def test_fenced(store):
    """Only the registered sealer may."""
    sealer = Sealer(store)
    with pytest.raises(StreamChanged, match="FENCED"):
        store.audit.rewind_stream("two", sealer.epoch, above="5-0")


def test_layout(store):
    """Data of another layout is not touched."""
    sealer = Sealer(store)
    assert_layout(store, lambda: store.audit.rewind_stream("one", sealer.epoch, above="5-0"))
