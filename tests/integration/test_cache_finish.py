"""`cache_finish`: a leader stores its result, gives up, or renews its lease."""

from __future__ import annotations

from tests.integration.lanes import (
    Lane,
    assert_layout,
    assert_once,
    cache_counts,
    digest,
    entry,
    field_of,
    open_batch,
    outcomes,
    part,
)

KEY = digest("x")


def lead(cache, owner="one", lease=60.0):
    assert cache.cache_begin(KEY, activity="acts.work", owner=owner, lease=lease).how == "lead"


def park(store, batch="b", count=2):
    """A batch whose items all wait for the key."""
    lane = Lane(store, open_batch(store, batch, count, parts=[part(cached=True)], keys=["x"] * count)[0])
    assert lane.begin(1).why == "empty"
    assert field_of(store, "waiting", batch) == count


def test_items_wait_for_a_caller(store, cache):
    """Items of a batch that wait for a caller's computation are completed by it (promise C9)."""
    lead(cache)
    park(store)
    said = cache.cache_finish(entry("x", b"\x2a"), owner="one").put
    assert said == "stored"
    assert store.reads.status("b").cached == 2
    (columns,) = outcomes(store)
    assert columns.results == [42, 42]


def test_giving_up_lets_an_item_lead(store, cache):
    """A caller that fails lets the first item go, whose ticket comes back (protocol 8)."""
    lead(cache)
    park(store)
    tickets = cache.cache_fail(KEY, owner="one").tickets
    assert [ticket.batch for ticket in tickets] == ["b"]
    assert (field_of(store, "waiting"), field_of(store, "pending")) == (1, 1)


def test_only_the_leader_speaks(store, cache):
    """Another owner can neither store, nor fail, nor renew (fault G02)."""
    lead(cache)
    assert cache.cache_finish(entry("x"), owner="two") == ("fenced", [], [])
    cache.cache_fail(KEY, owner="two")
    assert not cache.cache_renew(KEY, owner="two", lease=60.0)
    assert cache.cache_renew(KEY, owner="one", lease=60.0)
    assert cache_counts(store)["fenced"] == 1


def test_renewing_moves_the_lease(store, cache):
    """A lease that is renewed ends later."""
    lead(cache, lease=0.5)
    assert cache.cache_renew(KEY, owner="one", lease=100.0)
    (score,) = [score for _, score in store.client.redis.zrange(store.keys.build("flight_due"), 0, -1, withscores=True)]
    assert score > store.reads.now() + 50


def test_nothing_is_left_of_a_computation(store, cache):
    """When a computation ended and nobody waited, nothing is left of it but the entry."""
    lead(cache)
    cache.cache_finish(entry("x"), owner="one")
    root = store.keys.root.encode()
    left = {key.removeprefix(root)[:4] for key in store.client.redis.scan_iter(root + b"c:*")}
    assert left == {b"c:me", b"c:ac", b"c:s:", b"c:e:", b"c:lr", b"c:i:"}


def test_once(store, cache):
    """Sent twice it stores once (protocol 4)."""
    lead(cache)
    assert_once(store, lambda: cache.cache_finish(entry("x"), owner="one"))


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: cache.cache_fail(KEY, owner="one"))
