"""`drop_call`: a parked call that was revoked or has expired is not published again."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.calls import back, due, no_memory, park, parked, pause, resume
from tests.integration.lanes import assert_layout, assert_once


def test_it_is_forgotten(store):
    """Once dropped nothing of it is left, and the audit says why."""
    pause(store)
    park(store, groups=["g"], keep=1.0)
    resume(store)
    assert store.calls.drop_call("m1", why="expired")
    assert (parked(store), due(store)) == ({}, None)
    assert not store.client.redis.exists(store.keys.build("paused_keep"))
    assert not store.calls.drop_call("m1", why="expired")
    (told,) = lanes.audit(store, "call.dropped")
    assert told.header == {"id": "m1", "activity": "acts.work", "why": "expired"}
    assert store.calls.park_call(back()) == ("refused", "")


def test_once(store):
    """Sent twice it changes things once (protocol 4)."""
    pause(store)
    park(store)
    assert_once(store, lambda: store.calls.drop_call("m1", why="revoked"))


def test_out_of_memory(store):
    """It frees memory, so it needs none."""
    pause(store)
    park(store)
    with no_memory(store):
        assert store.calls.drop_call("m1", why="revoked")


def test_layout(store):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: store.calls.drop_call("m1", why="revoked"))
