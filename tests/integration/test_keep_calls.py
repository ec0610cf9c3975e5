"""`keep_calls`: parked calls whose groups the result backend would forget."""

from __future__ import annotations

from tests.integration.calls import back, call, no_memory, park, pause, resume
from tests.integration.lanes import assert_layout, assert_once


def keep(store):
    """What is due now."""
    return store.calls.keep_calls(period=100.0)


def test_told_when_due(store):
    """A call of a group is told once a period while it is parked."""
    pause(store)
    park(store, groups=["g1", "g2"], keep=0.000001)
    park(store, call("m2"), groups=["g3"], keep=100.0)
    park(store, call("m3"))
    assert store.scripts.tick("w", offers=[], payload=b"", period=0.2, lease=3.0)[b"keep"]
    assert keep(store) == [("m1", ["g1", "g2"])]
    assert keep(store) == []
    assert not store.scripts.tick("w", offers=[], payload=b"", period=0.2, lease=3.0)[b"keep"]


def test_not_once_it_began(store):
    """What is parked no more needs nothing."""
    pause(store)
    park(store, groups=["g1"], keep=0.000001)
    resume(store)
    store.calls.park_call(back())
    assert keep(store) == []


def test_once(store):
    """Sent twice it changes things once (protocol 4)."""
    pause(store)
    park(store, groups=["g1"], keep=0.000001)
    assert_once(store, lambda: keep(store))


def test_out_of_memory(store):
    """A server without memory tells all the same."""
    pause(store)
    park(store, groups=["g1"], keep=0.000001)
    with no_memory(store):
        assert keep(store) == [("m1", ["g1"])]


def test_layout(store):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: keep(store))
