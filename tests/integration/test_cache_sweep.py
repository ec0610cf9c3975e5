"""`cache_sweep`: what is hidden or expired is removed, and stamps that hide nothing any more."""

from __future__ import annotations

from tests.integration.lanes import assert_layout, begin, cache_counts, cached_bytes, digest, entry, open_batch, part


def names(store):
    return {
        key.decode("latin-1").removeprefix(store.keys.root)
        for key in store.client.redis.scan_iter(f"{store.keys.root}c:*")
    }


def test_nothing_is_left(store, cache):
    """After an invalidation nothing of the entries is left but counters (fault G09)."""
    cache.cache_put([entry(n, task=f"T{n}", tags=("x",)) for n in range(700)])
    cache.cache_invalidate(scopes=["g:x"])
    assert names(store) == {"c:meta", "c:acts", "c:s:acts.work"}
    assert (cached_bytes(store), cache_counts(store)) == (0, {"puts": 700, "invalidated": 700})


def test_expired_entries_leave(store, cache, eventually):
    """Entries whose lifetime is over are removed without anybody asking for them (promise C4)."""
    cache.cache_put([entry(n, ttl=0.01) for n in range(10)])
    eventually(lambda: cache.cache_sweep() or cached_bytes(store) == 0)
    assert cache_counts(store)["expired"] == 10


def test_a_stamp_stays_while_a_computation_may_need_it(store, cache):
    """A stamp is kept until every computation that began before it has ended (protocol 8)."""
    lane = begin(store, open_batch(store, count=1, parts=[part(cached=True)], keys=["x"])[0])
    cache.cache_invalidate(scopes=["a:acts.work"])
    cache.cache_sweep()
    assert "c:stamps" in names(store)
    lane.claim(ok=[0], values={0: b"\x01"})
    cache.cache_sweep()
    assert "c:stamps" not in names(store)
    assert cache.cache_get([digest("x")], ["acts.work"]) == [None]


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, cache.cache_sweep)
