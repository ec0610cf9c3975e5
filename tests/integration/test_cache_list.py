"""`cache_list`: pages of what is cached."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import assert_layout, entry, look


def test_the_most_recently_used_first(store, cache):
    """Pages go from the youngest to the oldest, without the values, and nothing changes by looking."""
    cache.cache_put([entry(n, b"x" * n, hashed=f"h{n}", seconds=float(n)) for n in range(5)])
    look(store, 1)
    before = lanes.snapshot(store)
    first = cache.cache_list(before=None, count=3)
    rest = cache.cache_list(before=first[-1][0], count=3)
    assert [row[7][2] for row in first + rest] == [b"h1", b"h4", b"h3", b"h2", b"h0"]
    assert [(row[5], row[6]) for row in first[:2]] == [(1, 1), (0, 4)]
    assert lanes.snapshot(store) == before


def test_expired_entries_are_no_entries(store, cache, eventually):
    """What has expired is not shown, and does not end a page early."""
    cache.cache_put([entry("a", ttl=0.01), entry("b")])
    eventually(lambda: [bool(row[7]) for row in cache.cache_list(before=None, count=2)] == [True, False])


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: cache.cache_list(before=None, count=1))
