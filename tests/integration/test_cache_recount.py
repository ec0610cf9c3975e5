"""The recount of the cache in `doctor`: drift is found, named, repaired in one step and audited (fault G09)."""

from __future__ import annotations

import threading

import pytest

from poimen_tasks.health import Level, Repairs, check_cache
from poimen_tasks.store import Store
from poimen_tasks.store.cache_scripts import CacheScripts
from poimen_tasks.store.values import WaitingCall
from tests.integration import lanes
from tests.integration.lanes import begin, digest, entry, open_batch, part

REPAIRS = Repairs(actor="tester", publish=list)
CACHED = part(cached=True)


@pytest.fixture
def redis(store):
    """The server, to break things."""
    return store.client.redis


@pytest.fixture
def filled(cache):
    """Five entries of one activity, some with a tag and an expiry."""
    cache.cache_put([entry(call, ttl=60.0 * (call % 2), tags=("t",)) for call in range(5)])


def key(store, name, *values):
    return store.keys.build(name, *values)


def look(store, *, repair=False):
    return check_cache(store, REPAIRS if repair else None, lambda _text: None)


def assert_repaired(store, message):
    """It is found and named without a change, repaired with one, audited, and sound then."""
    before = lanes.snapshot(store)
    found = look(store)
    assert (found.check, found.level, found.message) == ("cache", Level.ERROR, message)
    assert (found.repairable, found.repaired) == (True, False)
    assert lanes.snapshot(store) == before
    found = look(store, repair=True)
    assert (found.message, found.repaired, found.is_failure) == (message, True, False)
    assert {told.header["a"] for told in lanes.audit(store, "cache.repaired")} == {"tester"}
    assert look(store).level is Level.OK


def tick(store):
    return lanes.offer(store, 2)


def test_nothing_cached(store):
    """An empty cache is sound."""
    assert look(store).message == "0 entries of 0 bytes agree with its counters and indexes"


def test_sound(store, cache, filled):
    """After puts, hits, overwriting with another size, eviction and invalidation nothing drifted (fault G09)."""
    small = CacheScripts(store.client)
    small.limits = {"entries": 4, "bytes": 10_000}
    cache.cache_get([digest(call) for call in range(5)], ["acts.work"] * 5)
    cache.cache_put([entry(2, ttl=1.0)._replace(value=bytes(77)), entry("x", tags=("u", "t"))])
    small.cache_put([entry(call) for call in range(10, 13)])
    cache.cache_invalidate(scopes=["g:u"])
    store.client.call(
        "cache_invalidate", {"scopes": ["g:t"], "keys": [], "actor": "a", "reason": ""}, owner="q", sequence=1
    )
    assert look(store).level is Level.OK
    assert look(store, repair=True).repaired is False
    assert lanes.audit(store, "cache.repaired") == []
    assert look(store).message.startswith(f"{store.client.redis.zcard(key(store, 'cache_lru'))} entries of ")


def test_sums(store, redis, filled):
    """Counted bytes and entries that differ from what is there are put right, in all and by activity (fault G09)."""
    held = int(redis.hget(key(store, "cache_meta"), "bytes"))
    redis.hset(key(store, "cache_meta"), "bytes", -7)
    redis.hset(key(store, "cache_stats", "acts.work"), mapping={"size": 99, "bytes": 3})
    redis.hset(key(store, "cache_stats", "old"), "size", 1)
    assert_repaired(
        store,
        f"activity acts.work: counted are 99 entries of 3 bytes, there are 5 of {held}; "
        f"activity old: counted are 1 entries of 0 bytes, there are 0 of 0; bytes: counted are -7, there are {held}",
    )
    assert int(redis.hget(key(store, "cache_meta"), "bytes")) == held


def test_lost_entries(store, redis, filled):
    """Entries that the server lost leave every index, and are counted no more (fault G09)."""
    size = int(redis.hget(key(store, "cache_meta"), "bytes")) // 5
    redis.delete(key(store, "cache_entry", "").encode() + digest(1))
    assert_repaired(
        store,
        f"index members without an entry: 3; activity acts.work: counted are 5 entries of {5 * size} bytes, "
        f"there are 4 of {4 * size}; bytes: counted are {5 * size}, there are {4 * size}",
    )
    assert redis.zscore(key(store, "cache_lru"), digest(1)) is None
    assert not redis.sismember(key(store, "cache_index", "g:t"), digest(1))


def test_unlisted_entries(store, cache, redis, filled):
    """Entries that are missing in an index are listed again: they can be evicted and invalidated."""
    redis.zrem(key(store, "cache_lru"), digest(0))
    redis.zrem(key(store, "cache_expiry"), digest(1))
    redis.srem(key(store, "cache_index", "g:t"), digest(2))
    assert_repaired(store, "entries that are missing in an index: 3")
    assert cache.cache_invalidate(scopes=["g:t"]) == 5
    assert redis.zcard(key(store, "cache_lru")) == 0
    assert look(store).level is Level.OK


def test_damaged_entries(store, cache, redis, filled):
    """An entry whose head cannot be read is removed with its places in the indexes."""
    name = key(store, "cache_entry", "").encode() + digest(3)
    redis.set(name, b"short")
    found = look(store, repair=True)
    assert found.message.startswith(
        "entries that cannot be read: 1; index members without an entry: 2; activity acts.work"
    )
    assert look(store).message.startswith("4 entries")
    assert not redis.exists(name)


def test_sums_under_change(store, cache, filled):
    """Sums that were read before an entry came are not compared, and nothing is repaired by them."""
    changes = int(store.client.redis.hget(key(store, "cache_meta"), "changes"))
    cache.cache_put([entry("new")])
    before = lanes.snapshot(store)
    reply = cache.repair_cache({"sums": [[b"acts.work", 1, 1]], "bytes": 1, "changes": changes}, repair=True, actor="x")
    assert (reply[b"busy"], reply[b"good"], reply[b"repaired"]) == (True, True, False)
    assert lanes.snapshot(store) == before


def test_idempotence(store, cache, redis, filled):
    """A repeated repair changes nothing more (protocol 4)."""
    redis.zrem(key(store, "cache_lru"), digest(0))
    lanes.assert_once(store, lambda: cache.repair_cache({"keys": [digest(0)]}, repair=True, actor="x"))


def test_live(store, settings, filled):
    """While others put, hit, evict and invalidate, every look finds a sound cache or says that it was busy."""
    over = threading.Event()

    def work(seed):
        own = Store(settings, str(settings.redis_url))
        own.cache.limits = {"entries": 30, "bytes": 10_000}
        number = seed
        while not over.is_set():
            number += 1
            own.cache.cache_put([entry(number % 97, tags=(f"t{number % 3}",))._replace(value=bytes(number % 50 + 1))])
            own.cache.cache_get([digest(number % 53)], ["acts.work"])
            own.cache.cache_begin(digest(f"f{number}"), activity="acts.work", owner="o", lease=60.0)
            own.cache.cache_finish(entry(f"f{number}"), owner="o")
            if number % 20 == 0:
                own.cache.cache_invalidate(scopes=[f"g:t{number % 3}"])
        own.client.close()

    threads = [threading.Thread(target=work, args=(seed * 1000,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        found = [look(store, repair=True) for _ in range(10)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert {(one.level, one.repaired) for one in found} == {(Level.OK, False)}
    assert look(store).message.split()[1:3] == ["entries", "of"]


# ------------------------------------------------------------------------------------------- computations
def test_sound_computations(store, cache):
    """Led, followed, waited for and landed computations, of lanes and callers, are sound."""
    lane = begin(store, open_batch(store, count=3, parts=[CACHED], keys=["a", "a", "b"])[0], 1)
    lane.claim(1, ok=[0], values={0: b"\xc0"})
    for name in ("v", "w"):
        cache.cache_begin(digest(name), activity="acts.work", owner="o", lease=60.0)
        cache.cache_begin(digest(name), activity="acts.work", owner="p", lease=60.0)
        cache.cache_begin(
            digest(name), activity="acts.work", owner="q", lease=60.0, call=WaitingCall(f"m{name}", b"message")
        )
    cache.cache_finish(entry("v"), owner="o")
    begin(store, open_batch(store, "other", count=2, parts=[CACHED], keys=["w", "c"])[0], 1)
    assert look(store).level is Level.OK


def test_lane_that_is_gone(store, redis):
    """A computation whose lane does not hold the item any more is let go, and a follower leads."""
    lane = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    tickets = open_batch(store, "b", count=2, parts=[CACHED], keys=["same", "own"])
    second = begin(store, tickets[0], 1)
    second.finish("free", ok=[1])
    redis.hdel(key(store, "running", "a"), lane.token)
    assert_repaired(store, "computations that nobody looks at: 1")
    assert tick(store)[b"flights"] == [digest("same")]
    _, landed = store.cache.settle_flight(digest("same"))
    heir = begin(store, landed.tickets[0], 1)
    assert list(heir.holds) == [0]


def test_caller_that_nobody_looks_at(store, cache, redis):
    """A caller's computation that is not in the list of those due gets its place back, at the end of its lease."""
    cache.cache_begin(digest("v"), activity="acts.work", owner="o", lease=60.0)
    redis.delete(key(store, "flight_due"))
    assert_repaired(store, "computations that nobody looks at: 1")
    assert redis.zscore(key(store, "flight_due"), digest("v")) > store.reads.now() + 30
    assert cache.cache_finish(entry("v"), owner="o").put == "stored"


def test_followers_without_computation(store, redis):
    """Followers whose computation is gone are looked at, and one of them leads."""
    begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    begin(store, open_batch(store, "b", count=2, parts=[CACHED], keys=["same", "own"])[0], 1).finish("free", ok=[1])
    redis.delete(key(store, "flight", "").encode() + digest("same"))
    redis.zrem(key(store, "flights"), digest("same"))
    assert_repaired(store, "computations that nobody looks at: 1")
    _, landed = store.cache.settle_flight(digest("same"))
    assert list(begin(store, landed.tickets[0], 1).holds) == [0]


def test_index_of_computations(store, redis):
    """A computation that is listed and gone would keep old invalidations for ever: it leaves the list."""
    redis.zadd(key(store, "flights"), {digest("gone"): 1})
    assert_repaired(store, "computations that nobody looks at: 1")
    assert redis.zcard(key(store, "flights")) == 0


def test_calls_that_nobody_releases(store, cache, redis):
    """A plain call that waits in no list of followers is published again by the keeper."""
    for owner, call in (("o", None), ("p", WaitingCall("kept", b"message")), ("q", WaitingCall("lost", b"message"))):
        cache.cache_begin(digest("v"), activity="acts.work", owner=owner, lease=60.0, call=call)
    redis.rpop(key(store, "followers", "").encode() + digest("v"))
    assert_repaired(store, "calls that nobody releases: 1")
    assert tick(store)[b"calls"] == [b"lost"]
    assert cache.release_call("lost") == [WaitingCall("lost", b"message")]


def test_many(store, cache, redis):
    """More names than one call takes are looked at in slices, followers included."""
    cache.cache_put([entry(number) for number in range(600)])
    cache.cache_begin(digest("v"), activity="acts.work", owner="o", lease=60.0)
    name = key(store, "followers", "").encode() + digest("v")
    first = cache.cache_begin(
        digest("v"), activity="acts.work", owner="p", lease=60.0, call=WaitingCall("first", b"message")
    )
    row = redis.lindex(name, 0)
    redis.rpush(name, *[row] * 1200)
    assert first.how == "parked"
    assert look(store).message.startswith("600 entries")
