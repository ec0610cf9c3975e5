"""`revoke_calls`: parked calls that were revoked do not begin when they come back."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.calls import back, call, no_memory, park, parked, pause, resume
from tests.integration.lanes import assert_layout, assert_once


def test_it_does_not_begin(store):
    """Revoked while it was parked it comes back and ends, whoever knows of it; a copy is refused (fault E06)."""
    pause(store)
    park(store)
    assert store.calls.revoke_calls(["m1", "unknown"]) == 1
    assert resume(store)
    assert store.calls.park_call(back()) == ("revoked", "")
    assert store.calls.park_call(back()) == ("refused", "")
    assert parked(store) == {}
    assert not store.client.redis.exists(store.keys.build("paused_revoked"))
    kinds = [told.kind for told in lanes.audit(store) if told.kind.startswith("call.")]
    assert kinds == ["call.paused", "call.revoking", "call.dropped", "call.refused"]


def test_told_by_every_worker(store):
    """Every worker hears a revocation; the log has it once."""
    pause(store)
    park(store)
    assert [store.calls.revoke_calls(["m1"]) for _ in range(3)] == [1, 1, 1]
    assert len(lanes.audit(store, "call.revoking")) == 1


def test_what_is_not_parked(store):
    """The id of a call that runs, or is to come, is not remembered: that is Celery's."""
    assert store.calls.revoke_calls(["m1"]) == 0
    assert store.calls.start_call(call()) == ""
    pause(store)
    park(store, call("m2"))
    resume(store)
    assert store.calls.park_call(back("m2")) == ("begin", "")


def test_many(store):
    """More than one script takes are told in several."""
    pause(store)
    park(store, call("m700"))
    assert store.calls.revoke_calls([f"m{number}" for number in range(1000)]) == 1


def test_out_of_memory(store):
    """A server without memory notes it all the same."""
    pause(store)
    park(store)
    with no_memory(store):
        assert store.calls.revoke_calls(["m1"]) == 1


def test_once(store):
    """Sent twice it changes things once (protocol 4)."""
    pause(store)
    park(store)
    assert_once(store, lambda: store.calls.revoke_calls(["m1"]))


def test_layout(store):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: store.calls.revoke_calls(["m1"]))
