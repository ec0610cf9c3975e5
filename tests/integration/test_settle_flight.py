"""`settle_flight`: what is due of a computation, as the elected keeper asks for it."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import Lane, assert_layout, assert_once, digest, entry, field_of, open_batch, part

KEY = digest("x")


def park(store, batch="b", count=2):
    lane = Lane(store, open_batch(store, batch, count, parts=[part(cached=True)], keys=["x"] * count)[0])
    assert lane.begin(1).why == "empty"


def due_now(store):
    store.client.redis.zadd(store.keys.build("flight_due"), {KEY: 1.0})


def lead(cache, lease=60.0):
    cache.cache_begin(KEY, activity="acts.work", owner="one", lease=lease)


def test_not_due(store, cache):
    """A computation whose leader lives is left alone."""
    lead(cache)
    park(store)
    assert cache.settle_flight(KEY) == (False, ("", [], []))
    assert field_of(store, "waiting") == 2


def test_a_dead_caller_is_let_go(store, cache, eventually):
    """When a caller's lease has ended, an item that waited for it leads (protocol 8)."""
    lead(cache, lease=1.0)
    park(store)
    tickets = eventually(lambda: cache.settle_flight(KEY)[1].tickets)
    assert [ticket.batch for ticket in tickets] == ["b"]
    assert field_of(store, "pending") == 1
    assert len(lanes.audit(store, "cache.takeover")) == 1


def test_it_tells_which_batches_are_over(store, cache):
    """Batches that end with the result get their callbacks (protocol 6)."""
    lead(cache)
    for number in range(3):
        tickets = open_batch(
            store, f"b{number}", 200, parts=[part(cached=True)], keys=["x"] * 200, callbacks=["complete"]
        )
        assert Lane(store, tickets[0]).begin(1).why == "empty"
    first = cache.cache_finish(entry("x"), owner="one").tickets
    more, rest = cache.settle_flight(KEY)
    assert not more
    begun = sorted(ticket.batch for ticket in [*first, *rest.tickets] if "@" in ticket.batch)
    assert begun == [f"b{number}@complete.0" for number in range(3)]


def test_once(store, cache):
    """Sent twice it lets one item go (protocol 4)."""
    lead(cache)
    park(store)
    store.client.redis.hset(store.keys.root.encode() + b"c:f:" + KEY, "d", "1")
    due_now(store)
    assert_once(store, lambda: cache.settle_flight(KEY))


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: cache.settle_flight(KEY))
