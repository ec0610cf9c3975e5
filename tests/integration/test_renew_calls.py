"""`renew_calls`: plain calls that run for long stay registered."""

from __future__ import annotations

from tests.integration.calls import call, no_memory, pause, running
from tests.integration.lanes import assert_layout


def test_renewed(store):
    """The lease moves, everything else stays; what is not registered is not made up."""
    store.calls.start_call(call(workflow="wf"))
    (until, rest) = running(store)["m1"]
    assert store.calls.renew_calls([call().field, call("other").field], lease=100.0) == 1
    assert running(store)["m1"][0] > until + 50
    assert running(store)["m1"][1] == rest
    assert [one.id for one in pause(store, "w:wf").calls] == ["m1"]


def test_the_tick_drops_what_is_overdue(store):
    """Calls of workers that are gone do not gather."""
    store.calls.start_call(call())
    store.calls.start_call(call("m2"))
    store.calls.renew_calls([call().field], lease=-1.0)
    store.scripts.tick("w", offers=[], payload=b"", period=0.2, lease=3.0)
    assert list(running(store)) == ["m2"]
    store.calls.end_calls([call("m2").field])
    assert running(store) == {}


def test_out_of_memory(store):
    """A server without memory renews all the same."""
    store.calls.start_call(call())
    with no_memory(store):
        assert store.calls.renew_calls([call().field], lease=9.0) == 1


def test_layout(store):
    """Data of another layout is not touched."""
    store.calls.start_call(call())
    assert_layout(store, lambda: store.calls.renew_calls([call().field], lease=1.0))
