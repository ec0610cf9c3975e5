"""`park_call`: a plain call is parked by a pause, comes back once, or is refused as a copy."""

from __future__ import annotations

import pytest

from poimen_tasks.store.values import WaitingCall
from tests.integration import lanes
from tests.integration.calls import (
    MESSAGE,
    back,
    call,
    due,
    held,
    no_memory,
    park,
    parked,
    pause,
    resume,
    running,
)
from tests.integration.lanes import assert_layout, assert_once, digest, entry


def test_parked_and_back_once(store):
    """A parked call is published with the resume and begins once; a copy of its message does not (promise P14)."""
    pause(store)
    assert park(store) == ("parked", "*")
    assert (held(store), running(store)) == ({b"c\tm1"}, {})
    assert resume(store) == [("m1", MESSAGE)]
    assert store.calls.park_call(back()) == ("begin", "")
    assert list(running(store)) == ["m1"]
    assert store.calls.park_call(back()) == ("refused", "")
    assert parked(store) == {}
    kinds = [told.kind for told in lanes.audit(store) if told.kind.startswith("call.")]
    assert kinds == ["call.paused", "call.resumed", "call.refused"]


def test_nothing_covers_it_any_more(store):
    """When the pause ended between the two questions it begins."""
    assert park(store) == ("begin", "")
    assert (list(running(store)), parked(store)) == (["m1"], {})


def test_the_message_is_asked_for(store):
    """A call that comes back without a record is parked only with its message."""
    pause(store)
    one = call(redelivered=True)
    assert store.calls.park_call(one) == ("message", "*")
    assert park(store, one) == ("parked", "*")


def test_it_parks_again_under_another_pause(store):
    """What other scopes still cover stays held by those, also when it comes back meanwhile (promise P14)."""
    pause(store)
    park(store)
    pause(store, "q:q")
    assert resume(store) == []
    assert held(store, "q:q") == {b"c\tm1"}
    assert resume(store, "q:q") == [("m1", MESSAGE)]
    pause(store, "a:acts.work")
    assert store.calls.park_call(back()) == ("parked", "a:acts.work")
    assert due(store) is None
    assert resume(store, "a:acts.work") == [("m1", MESSAGE)]


def test_delivered_again_while_it_is_parked(store):
    """A worker that died between parking and acknowledging leaves one record, whoever gets the message next."""
    pause(store)
    park(store)
    assert store.calls.park_call(call(redelivered=True)) == ("parked", "*")
    assert resume(store) == [("m1", MESSAGE)]
    assert store.calls.park_call(call(redelivered=True)) == ("begin", "")
    assert store.calls.park_call(back()) == ("refused", "")


def test_the_first_message_after_the_parked_one_began(store):
    """The message that was parked and not acknowledged is refused once its call began again (promise P14)."""
    pause(store)
    park(store)
    resume(store)
    assert store.calls.park_call(back()) == ("begin", "")
    assert store.calls.park_call(call(redelivered=True)) == ("refused", "")
    assert store.calls.park_call(back(redelivered=True)) == ("begin", "")


def test_two_messages_of_one_id(store):
    """Calls that were sent under the same id are all kept, each under a key of its own."""
    pause(store)
    park(store)
    assert park(store, message=b"another") == ("parked", "*")
    assert sorted(parked(store)) == ["m1", "m1#1"]
    assert sorted(resume(store)) == [("m1", MESSAGE), ("m1#1", b"another")]
    assert store.calls.park_call(back(key="m1#1")) == ("begin", "")
    assert sorted(parked(store)) == ["m1"]


def test_a_call_that_waited(store, cache):
    """Released from its wait under a pause it is held, begins once, and is not published by both (protocol 7)."""
    cache.cache_begin(digest("x"), activity="acts.work", owner="one", lease=60.0)
    cache.cache_begin(digest("x"), activity="acts.work", owner="two", lease=60.0, call=WaitingCall("m1", b"waits"))
    pause(store)
    assert [one.id for one in cache.cache_finish(entry("x"), owner="one").calls] == ["m1"]
    waited = call(waited=True)
    assert store.calls.park_call(waited) == ("message", "*")
    assert park(store, waited) == ("parked", "*")
    assert store.calls.park_call(waited) == ("parked", "*")
    assert not store.client.redis.exists(store.keys.build("waiting_due"))
    assert resume(store) == [("m1", MESSAGE)]
    assert store.calls.park_call(back(waited=True)) == ("begin", "")
    assert store.calls.park_call(back(waited=True)) == ("refused", "")
    assert store.calls.park_call(waited) == ("refused", "")
    assert not store.client.redis.exists(store.keys.build("waiting_calls"))


def test_a_call_that_waited_and_is_not_paused(store, cache):
    """It begins as without pauses, once."""
    cache.cache_begin(digest("x"), activity="acts.work", owner="one", lease=60.0)
    cache.cache_begin(digest("x"), activity="acts.work", owner="two", lease=60.0, call=WaitingCall("m1", b"waits"))
    cache.cache_finish(entry("x"), owner="one")
    assert store.calls.park_call(call(waited=True)) == ("begin", "")
    assert store.calls.park_call(call(waited=True)) == ("refused", "")


def test_a_resume_lets_go_a_megabyte_at_a_time(store):
    """What a reply has no room for is the keeper's to publish, a moment later."""
    pause(store)
    for number in range(4):
        park(store, call(f"m{number}"), message=b"x" * 600_000)
    assert len(resume(store)) == 1
    assert sorted(filter(None, (due(store, f"m{number}") for number in range(4))))


@pytest.mark.parametrize("groups", [[], ["g1", "g2"]])
def test_groups_are_noted(store, groups):
    """A call that a group waits for is refreshed in time, another one is not."""
    pause(store)
    park(store, groups=groups, keep=100.0)
    assert store.client.redis.zcard(store.keys.build("paused_keep")) == bool(groups)


def test_out_of_memory(store):
    """A server without memory parks all the same: the broker frees as much."""
    pause(store)
    with no_memory(store):
        assert park(store) == ("parked", "*")


def test_once(store):
    """Sent twice it parks once (protocol 4)."""
    pause(store)
    assert_once(store, lambda: park(store))


def test_layout(store):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: park(store))
