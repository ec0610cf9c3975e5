"""`release_call`: a message that seems lost is published again."""

from __future__ import annotations

from poimen_tasks.store.values import WaitingCall
from tests.integration.lanes import assert_layout, assert_once, digest, entry


def release(store, cache):
    """A call that was released and is overdue."""
    cache.cache_begin(digest("x"), activity="acts.work", owner="one", lease=60.0)
    waiting = WaitingCall("m1", b"message")
    cache.cache_begin(digest("x"), activity="acts.work", owner="two", lease=60.0, call=waiting)
    cache.cache_finish(entry("x"), owner="one")
    store.client.redis.zadd(store.keys.build("waiting_due"), {"m1": 1.0})
    return waiting


def test_until_it_begins(store, cache):
    """It comes back each time it is overdue, until it begins (protocol 7)."""
    waiting = release(store, cache)
    assert cache.release_call("m1") == [waiting]
    assert cache.release_call("m1") == []
    store.client.redis.zadd(store.keys.build("waiting_due"), {"m1": 1.0})
    cache.begin_call("m1", redelivered=False)
    assert cache.release_call("m1") == []
    assert not store.client.redis.exists(store.keys.build("waiting_calls"), store.keys.build("waiting_due"))


def test_once(store, cache):
    """Sent twice it is the same release (protocol 4)."""
    release(store, cache)
    assert_once(store, lambda: cache.release_call("m1"))


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: cache.release_call("m1"))
