"""`begin_call`: a plain call that waited comes back, once."""

from __future__ import annotations

from itertools import pairwise

from poimen_tasks.store.values import WaitingCall
from tests.integration import lanes
from tests.integration.lanes import assert_layout, assert_once, digest, entry


def server_time(redis):
    """Seconds, by the server's clock."""
    seconds, micros = redis.time()
    return seconds + micros / 1e6


def park(cache, message_id="m1", call="x"):
    """A caller leads, and a message waits for it."""
    cache.cache_begin(digest(call), activity="acts.work", owner="one", lease=60.0)
    waiting = WaitingCall(message_id, b"message of " + message_id.encode())
    assert cache.cache_begin(digest(call), activity="acts.work", owner="two", lease=60.0, call=waiting).how == "parked"
    return waiting


def test_it_begins_once(store, cache):
    """The first message begins, a copy does not, and what the broker delivers again does (protocol 7)."""
    waiting = park(cache)
    assert cache.cache_finish(entry("x"), owner="one").calls == [waiting]
    assert cache.begin_call("m1", redelivered=False)
    assert not cache.begin_call("m1", redelivered=False)
    assert cache.begin_call("m1", redelivered=True)
    assert [told.header["id"] for told in lanes.audit(store, "call.parked", "call.released")] == ["m1", "m1"]


def test_it_is_released_by_a_leader_that_fails(cache):
    """When the leader gives up, the first that waits comes back to lead (protocol 8)."""
    first, second = park(cache, "m1"), WaitingCall("m2", b"2")
    cache.cache_begin(digest("x"), activity="acts.work", owner="three", lease=60.0, call=second)
    assert cache.cache_fail(digest("x"), owner="one").calls == [first]


def test_it_is_published_ever_more_seldom(store, cache):
    """Each copy of a released call comes later than the one before, and none is left to come once it began."""
    waiting = park(cache)
    cache.cache_finish(entry("x"), owner="one")
    redis, due, pauses = store.client.redis, store.keys.build("waiting_due"), []
    for _ in range(4):
        pauses.append(redis.zscore(due, "m1") - server_time(redis))
        redis.zadd(due, {"m1": 0})
        assert cache.release_call("m1") == [waiting]
    assert all(later > 1.5 * sooner for sooner, later in pairwise(pauses))
    assert cache.begin_call("m1", redelivered=False)
    assert not redis.exists(due, store.keys.build("waiting_tries"))


def test_once(store, cache):
    """Sent twice it begins once (protocol 4)."""
    park(cache)
    cache.cache_finish(entry("x"), owner="one")
    assert_once(store, lambda: cache.begin_call("m1", redelivered=False))


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: cache.begin_call("m1", redelivered=False))
