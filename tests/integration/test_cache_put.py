"""`cache_put`: bounds, order and accounting, against a model."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.lanes import assert_layout, assert_once, cache_counts, cached_bytes, digest, entry, look


@pytest.fixture
def small(settings: Settings, store):
    """A store whose cache takes 20 entries and 2,000 bytes."""
    made = Store(settings.model_copy(update={"cache_max_entries": 20, "cache_max_bytes": 2000}), store.client.url)
    yield made
    made.client.close()


def test_the_least_recently_used_leaves(small):
    """An entry too many drives out the one that was not looked at for longest (promise C5).

    So the cache needs no server that evicts, and may share one that must not (fault G12).
    """
    small.cache.cache_put([entry(n) for n in range(20)])
    look(small, 0)
    small.cache.cache_put([entry(20)])
    assert look(small, 0, 1, 2, 20) == [b"\x01", None, b"\x01", b"\x01"]
    assert cache_counts(small)["evictions"] == 1
    (told,) = lanes.audit(small, "cache.evicted")
    assert told.header["n"] == {b"acts.work": 1}


def test_bytes_are_a_bound_too(small):
    """A large value drives out as many as it takes (promise C5)."""
    small.cache.cache_put([entry(n, b"x" * 100) for n in range(20)])
    small.cache.cache_put([entry("large", b"x" * 1500)])
    assert cached_bytes(small) == 2000
    assert look(small, 14, 15, "large") == [None, b"x" * 100, b"x" * 1500]


def test_too_large(small):
    """A value over a bound is refused and counted, and drives nothing out."""
    small.cache.cache_put([entry("kept")])
    assert small.cache.cache_put([entry("a", b"x" * 2001), entry("b", b"x" * 11, most=10)]) == ["refused"] * 2
    assert look(small, "a", "b", "kept") == [None, None, b"\x01"]
    assert cache_counts(small)["refused"] == 2


def test_put_again_counts_once(store, cache):
    """Another value under the same key takes the place of the first, in all accounts (fault G09)."""
    cache.cache_put([entry("a", b"x" * 10)])
    cache.cache_put([entry("a", b"x" * 3)])
    assert (cached_bytes(store), cache_counts(store)["size"], cache_counts(store)["bytes"]) == (3, 1, 3)
    assert look(store, "a") == [b"xxx"]


def test_the_audit_tells(store, cache):
    """A put is told with its activity, hash and size, several in one entry (invariant I5)."""
    cache.cache_put([entry("a", b"12", hashed="h1"), entry("b", b"3")])
    (told,) = lanes.audit(store, "cache.put")
    assert told.header == {"n": 2}


def test_once(store, cache):
    """Sent twice it stores once (protocol 4)."""
    assert_once(store, lambda: cache.cache_put([entry("a")]))


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: cache.cache_put([entry("a")]))


class Model:
    """What an ordered dict does, with lifetimes left out: the store's clock cannot be turned here."""

    def __init__(self):
        self.kept: OrderedDict[int, tuple[bytes, str]] = OrderedDict()

    def size(self):
        """Bytes of all values."""
        return sum(len(value) for value, _ in self.kept.values())

    def put(self, call, value, tag):
        """One value."""
        if len(value) > 2000:
            return
        self.kept.pop(call, None)
        while len(self.kept) >= 20 or self.size() + len(value) > 2000:
            self.kept.popitem(last=False)
        self.kept[call] = (value, tag)

    def get(self, call):
        """A look."""
        if call not in self.kept:
            return None
        self.kept.move_to_end(call)
        return self.kept[call][0]

    def drop(self, wanted):
        """An invalidation."""
        for call in [call for call, (_, tag) in self.kept.items() if wanted(call, tag)]:
            del self.kept[call]


@pytest.mark.parametrize("seed", range(3))
def test_order_as_an_ordered_dict(small, seed):
    """Puts, looks and invalidations leave what an ordered dict would, in its order (promise C5, fault G09)."""
    rnd, model, cache = random.Random(seed), Model(), small.cache
    for _ in range(1200):
        call, what = rnd.randrange(40), rnd.random()
        if what < 0.45:
            assert look(small, call) == [model.get(call)]
        elif what < 0.5:
            assert cache.cache_hit(digest(call), "acts.work") == model.get(call)
        elif what < 0.93:
            value, tag = bytes(rnd.randrange(1, 2100 if what < 0.52 else 300)), f"t{rnd.randrange(4)}"
            cache.cache_put([entry(call, value, tags=(tag,))])
            model.put(call, value, tag)
        elif what < 0.97:
            cache.cache_invalidate(keys=[digest(call)])
            model.drop(lambda one, _tag, call=call: one == call)
        elif what < 0.99:
            cache.cache_invalidate(scopes=[f"g:t{call % 4}"])
            model.drop(lambda _one, tag, call=call: tag == f"t{call % 4}")
        else:
            cache.cache_invalidate(scopes=["*"])
            model.drop(lambda _one, _tag: True)
    lru = small.client.redis.zrange(small.keys.build("cache_lru"), 0, -1)
    assert lru == [digest(call) for call in model.kept]
    assert cached_bytes(small) == model.size()
    assert cache_counts(small).get("bytes", 0) == model.size()
    left = set(small.client.redis.scan_iter(match=f"{small.keys.root}c:[ieo]:*"))
    kept_tags = {f"{small.keys.root}c:i:g:{tag}".encode() for _, tag in model.kept.values()}
    entries = {small.keys.root.encode() + b"c:e:" + digest(call) for call in model.kept}
    activity = {f"{small.keys.root}c:i:a:acts.work".encode()} if model.kept else set()
    assert left == kept_tags | entries | activity
