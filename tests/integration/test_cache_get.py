"""`cache_get`: many keys in one call."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import assert_layout, cache_counts, digest, entry, look


def test_values_in_the_order_of_the_keys(store, cache):
    """Each key gets its value, a miss is None, and both are counted (promise C3, promise C6)."""
    cache.cache_put([entry("a", b"1"), entry("b", b"")])
    assert look(store, "b", "none", "a") == [b"", None, b"1"]
    assert (cache_counts(store)["hits"], cache_counts(store)["misses"]) == (2, 1)


def test_more_keys_than_one_call_takes(store, cache):
    """A thousand keys are looked up in slices."""
    cache.cache_put([entry(n, b"%d" % n) for n in range(1000)])
    assert look(store, *range(1000)) == [b"%d" % n for n in range(1000)]


def test_a_look_makes_an_entry_young(store, cache):
    """What was looked at is the last to go, in the order of the looks (promise C5)."""
    cache.cache_put([entry(n) for n in range(3)])
    look(store, 1, 0)
    lru = store.client.redis.zrange(store.keys.build("cache_lru"), 0, -1)
    assert lru == [digest(2), digest(1), digest(0)]


def test_hits_are_told_when_asked_for(store, cache):
    """Hits are audited with `audit_cache_hits` only, one entry a call."""
    cache.cache_put([entry("a"), entry("b")])
    look(store, "a")
    assert lanes.audit(store, "cache.hit") == []
    cache.cache_get([digest("a"), digest("b")], ["acts.work"] * 2, log=True)
    (told,) = lanes.audit(store, "cache.hit")
    assert told.header["n"] == 2


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: look(store, "a"))
