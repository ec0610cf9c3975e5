"""`cache_hit`: one key, the lean way."""

from __future__ import annotations

import pytest

from tests.integration.lanes import assert_layout, cache_counts, digest, entry, look


def hit(cache, call):
    return cache.cache_hit(digest(call), "acts.work")


def test_the_same_as_a_look(store, cache):
    """A hit and a miss are what `cache_get` says, and counted alike (promise C3, promise C6)."""
    cache.cache_put([entry("a", b"value", seconds=0.5)])
    assert (hit(cache, "a"), hit(cache, "none")) == (b"value", None)
    lean = cache_counts(store)
    assert look(store, "a", "none") == [b"value", None]
    full = cache_counts(store)
    assert {name: full[name] - lean[name] for name in ("hits", "misses", "saved")} == {
        "hits": lean["hits"], "misses": lean["misses"], "saved": lean["saved"]
    }  # fmt: skip
    ((*_, hits, _size, _labels),) = cache.cache_list(before=None, count=9)
    assert hits == 2


def test_an_empty_value(store, cache):
    """An empty value is one (fault G07)."""
    cache.cache_put([entry("a", b"")])
    assert hit(cache, "a") == b""


@pytest.mark.parametrize("how", ["expired", "invalidated", "damaged"])
def test_what_may_not_be_served(store, cache, eventually, how):
    """An expired, hidden or damaged entry is a miss, and is removed (promise C4, promise C7)."""
    cache.cache_put([entry("a", b"value", ttl=0.001 if how == "expired" else 0.0, tags=("t",))])
    if how == "invalidated":
        store.client.redis.hset(store.keys.build("cache_stamps"), "g:t", 10**9)
    if how == "damaged":
        store.client.redis.setrange(store.keys.root.encode() + b"c:e:" + digest("a"), 90, b"?")
    eventually(lambda: hit(cache, "a") is None)
    assert cache.cache_list(before=None, count=9) == []
    assert cache_counts(store)["misses"] == 1


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: hit(cache, "a"))
