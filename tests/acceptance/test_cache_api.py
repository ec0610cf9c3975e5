"""The cache as a user calls it: real processes on a real server, no worker needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from poimen_tasks import MISSING, CacheKey, CachePolicy, CacheTimeout, InvalidArgument, Poimen, SerializationError
from poimen_tasks.cache import Cache
from poimen_tasks.settings import Settings
from poimen_tasks.store.server import EmbeddedServer
from tests.conftest import eventually


@pytest.fixture
def poimen(settings: Settings) -> Iterator[Poimen]:
    made = Poimen("cacheshop", settings=settings)
    yield made
    made.store.client.close()
    made.celery.close()


@pytest.fixture
def cache(poimen: Poimen) -> Cache:
    return poimen.cache


KEY = CacheKey("shop.sum", "T1", "abc", "m1")


def test_put_and_get(cache: Cache) -> None:
    """What was put is found, a miss is not an error, and None is a value (promise C3, fault G07)."""
    assert cache.get(KEY) is MISSING
    assert not MISSING
    for value in (None, [], 0, False, "", {"a": [1, 2]}, "x" * 50_000):
        assert cache.put(KEY, value)
        assert cache.get(KEY) == value
    assert cache.get_many([KEY, CacheKey("shop.sum", "T2", "abc", "m1")]) == ["x" * 50_000, MISSING]


def test_a_large_value_is_compressed(cache: Cache) -> None:
    """Values over a kilobyte are compressed where that helps."""
    cache.put(KEY, "x" * 50_000)
    (entry,), _ = cache.entries()
    assert entry.bytes < 1000


def test_the_key_is_readable_and_checked(cache: Cache) -> None:
    """A key reads as its four fields, and what is no key is refused (promise C1, promise C10)."""
    assert str(KEY) == "shop.sum:T1:abc:m1"
    for wrong in (None, "shop.sum", 7):
        with pytest.raises(InvalidArgument, match="CacheKey"):
            cache.get(wrong)
    for wrong in ("", "two\nlines", 5):
        with pytest.raises(InvalidArgument, match="activity"):
            CacheKey(wrong)


def test_keys_do_not_run_into_one_another() -> None:
    """Fields are kept apart, so no two keys are one (fault G03)."""
    assert CacheKey("a", "bc", "d").digest != CacheKey("ab", "c", "d").digest
    assert CacheKey("a", "b").digest != CacheKey("a", "", "b").digest


@pytest.mark.parametrize(
    "scope", [{"key": KEY}, {"activity": "shop.sum"}, {"task_id": "T1"}, {"model_id": "m1"}, {"tag": "red"}]
)
def test_invalidating(cache: Cache, scope: dict[str, object]) -> None:
    """One key, an activity, a task, a model or a tag is called back; the rest stays (promise C7)."""
    other = CacheKey("shop.other", "T2", "abc", "m2")
    cache.put(KEY, 1, tags=["red", "green"])
    cache.put(other, 2, tags=["blue"])
    assert cache.invalidate(**scope, actor="me", reason="test") == 1
    assert cache.get(KEY) is MISSING
    assert cache.get(other) == 2
    assert (cache.stats().size, cache.stats().invalidated) == (1, 1)


def test_clear(cache: Cache) -> None:
    """Everything is called back, and can be put again (promise C7)."""
    cache.put_many({CacheKey("shop.sum", "", str(n)): n for n in range(700)})
    assert cache.stats().size == 700
    assert cache.clear() == 700
    assert (cache.stats().size, cache.stats().bytes) == (0, 0)
    cache.put(KEY, 1)
    assert cache.get(KEY) == 1


def test_lifetimes(cache: Cache) -> None:
    """An entry is not found after its lifetime, and 0 is for ever (promise C4)."""
    cache.put(KEY, 1, ttl=0.05)
    forever = CacheKey("shop.sum", "forever")
    cache.put(forever, 2, ttl=0)
    eventually(lambda: cache.get(KEY) is MISSING)
    assert cache.get(forever) == 2
    assert {entry.key: entry.expires_at for entry in cache.entries()[0]} == {forever: None}
    assert (cache.stats().size, cache.stats().expired) == (1, 1)


def test_stats_and_entries(cache: Cache) -> None:
    """Hits, misses and what each entry is are told, in all and by activity (promise C6)."""
    cache.put(KEY, [1, 2, 3], seconds=2.0, tags=["red"])
    for _ in range(3):
        cache.get(KEY)
    cache.get(CacheKey("shop.none"))
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.size, stats.hit_rate) == (3, 1, 1, 0.75)
    assert stats.seconds_saved == 6.0
    assert (cache.stats("shop.none").misses, cache.stats("shop.none").hits) == (1, 0)
    (entry,), cursor = cache.entries()
    assert (entry.key, entry.hits, entry.tags, entry.seconds_saved, cursor) == (KEY, 3, ("red",), 6.0, None)
    assert entry.to_dict()["key"]["task_id"] == "T1"


def test_entries_come_in_pages(cache: Cache) -> None:
    """Pages go from the most recently used to the least, each entry once."""
    keys = [CacheKey("shop.sum", "", str(n)) for n in range(7)]
    cache.put_many(dict.fromkeys(keys, 1))
    seen, cursor = cache.entries(limit=3)
    while cursor is not None:
        page, cursor = cache.entries(limit=3, cursor=cursor)
        seen += page
    assert [entry.key for entry in seen] == keys[::-1]


def test_bounds(settings: Settings) -> None:
    """The least recently used leave when there are too many, and a value too large is refused (promise C5)."""
    poimen = Poimen("bounded", settings=settings.model_copy(update={"cache_max_entries": 3, "cache_max_bytes": 5000}))
    try:
        keys = [CacheKey("shop.sum", "", str(n)) for n in range(4)]
        for key in keys[:3]:
            poimen.cache.put(key, 1)
        poimen.cache.get(keys[0])
        poimen.cache.put(keys[3], 1)
        assert [poimen.cache.get(key) is MISSING for key in keys] == [False, True, False, False]
        assert not poimen.cache.put(keys[0], os.urandom(6000))
        assert (poimen.cache.stats().refused, poimen.cache.stats().evictions) == (1, 1)
    finally:
        poimen.store.client.close()
        poimen.celery.close()


def test_equal_calls_compute_once(cache: Cache) -> None:
    """Of many callers at one time one computes, the others get its value (promise C6, promise C9, fault G01)."""
    calls, go = [], threading.Event()

    def compute() -> int:
        calls.append(1)
        go.wait(10)
        return 42

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(cache.get_or_compute(KEY, compute))) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: calls)
    go.set()
    for thread in threads:
        thread.join()
    assert (results, len(calls)) == ([42] * 8, 1)
    stats = cache.stats()
    assert stats.hits + stats.misses + stats.coalesced == 8


def test_a_failed_computation_is_not_cached(cache: Cache) -> None:
    """What the computation raises passes on, and the next call computes again."""

    def fail() -> int:
        raise KeyError("no")

    with pytest.raises(KeyError):
        cache.get_or_compute(KEY, fail)
    assert cache.get_or_compute(KEY, lambda: 5) == 5
    with pytest.raises(SerializationError):
        cache.get_or_compute(CacheKey("shop.odd"), object)
    assert cache.get_or_compute(CacheKey("shop.odd"), lambda: 6) == 6


def test_waiting_has_a_deadline(cache: Cache) -> None:
    """A caller waits no longer than it wants for another's computation."""
    go, started = threading.Event(), threading.Event()

    def compute() -> int:
        started.set()
        go.wait(10)
        return 1

    thread = threading.Thread(target=lambda: cache.get_or_compute(KEY, compute))
    thread.start()
    started.wait(10)
    with pytest.raises(CacheTimeout, match=r"shop\.sum"):
        cache.get_or_compute(KEY, lambda: 2, timeout=0.05)
    go.set()
    thread.join()


def test_an_invalidation_during_a_computation_wins(cache: Cache) -> None:
    """What was computed from before an invalidation is returned to its caller and not stored (promise C7)."""

    def compute() -> int:
        cache.invalidate(activity="shop.sum")
        return 1

    assert cache.get_or_compute(KEY, compute) == 1
    assert cache.get(KEY) is MISSING
    assert cache.stats().stale == 1


def test_nested_computations_never_deadlock(cache: Cache) -> None:
    """A computes B and B computes A at one time in two threads: both end (protocol 8)."""
    a, b = CacheKey("shop.a"), CacheKey("shop.b")
    both = threading.Barrier(2, timeout=10)

    def outer(one: CacheKey, other: CacheKey) -> None:
        def compute() -> int:
            both.wait()
            return cache.get_or_compute(other, lambda: 1) + 1

        results.append(cache.get_or_compute(one, compute))

    results: list[int] = []
    threads = [threading.Thread(target=outer, args=pair) for pair in ((a, b), (b, a))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(results) == 2
    assert all(not thread.is_alive() for thread in threads)


def test_a_damaged_value_is_a_miss(poimen: Poimen, cache: Cache) -> None:
    """A value that was damaged in the store is counted and computed again, and nobody sees an error."""
    cache.put(KEY, "good")
    name = poimen.store.keys.root.encode() + b"c:e:" + KEY.digest
    redis = poimen.store.client.redis
    redis.setrange(name, redis.strlen(name) - 2, b"??")
    assert cache.get(KEY) is MISSING
    assert cache.stats().corrupt == 1
    assert cache.get_or_compute(KEY, lambda: "again") == "again"


def test_it_survives_a_restart(tmp_path: Path, settings: Settings) -> None:
    """After the server was killed and started again what was put is there (promise C8)."""
    with EmbeddedServer(tmp_path / "server") as server:
        changed = settings.model_copy(update={"redis_url": server.url, "broker_url": server.url})
        poimen = Poimen("restarted", settings=changed)
        try:
            poimen.cache.put(KEY, "kept", ttl=0, tags=["red"])
            for _ in range(5):
                assert poimen.cache.get(KEY) == "kept"
            server.kill()
            server.restart()
            assert poimen.cache.get(KEY) == "kept"
            # Clocks went on: what is called back now is what was put before.
            assert poimen.cache.invalidate(tag="red") == 1
            assert poimen.cache.get(KEY) is MISSING
            poimen.cache.put(KEY, "again", ttl=0)
            assert poimen.cache.get(KEY) == "again"
        finally:
            poimen.store.client.close()
            poimen.celery.close()


def test_bad_arguments(cache: Cache) -> None:
    """Wrong arguments are named with what is allowed, before anything is written."""
    for call, word in (
        (lambda: cache.put(KEY, 1, ttl=-1), "ttl"),
        (lambda: cache.put(KEY, 1, ttl=10**400), "ttl"),
        (lambda: cache.put(KEY, 1, ttl=1e308), "ttl: expected a number from 0 to 1e"),
        (lambda: cache.put(KEY, 1, seconds=1e13), "seconds: expected a number from 0 to 1e"),
        (lambda: cache.put(KEY, 1, max_bytes=10**30), "max_bytes"),
        (lambda: cache.put(KEY, 1, tags="red"), "tags"),
        (lambda: cache.put(KEY, 1, tags=[str(n) for n in range(33)]), "tags: expected at most 32, got 33"),
        (lambda: CachePolicy(ttl=1e10), "ttl"),
        (lambda: cache.get_or_compute(KEY, 5), "compute"),
        (lambda: cache.get_or_compute(KEY, int, timeout=-1), "timeout"),
        (cache.invalidate, "one of key, activity"),
        (lambda: cache.invalidate(activity="a", tag="b"), "activity, tag"),
        (lambda: cache.entries(limit=0), "limit"),
        (lambda: CachePolicy(on_uncacheable="ignore"), "on_uncacheable"),
    ):
        with pytest.raises(InvalidArgument, match=word):
            call()
    assert cache.stats().size == 0


def test_a_result_outlives_an_outage_at_its_end(tmp_path: Path, settings: Settings) -> None:
    """What was computed while the server went away is returned, though it cannot be stored (promise C8)."""
    with EmbeddedServer(tmp_path / "server") as server:
        urls = {"redis_url": server.url, "broker_url": server.url, "connect_timeout": 0.2}
        poimen = Poimen("outage", settings=settings.model_copy(update=urls))

        def compute() -> str:
            server.stop()
            return "paid for"

        try:
            assert poimen.cache.get_or_compute(KEY, compute) == "paid for"
        finally:
            poimen.store.client.close()
            poimen.celery.close()


def test_full_counters_fail_no_call(poimen: Poimen, cache: Cache) -> None:
    """A counter that can hold no more stays as it is, and results are served all the same."""
    cache.put(KEY, 1, seconds=1e9)
    poimen.store.client.redis.hset(f"{poimen.store.keys.root}c:s:{KEY.activity}", "saved", 2**63 - 1)
    assert (cache.get(KEY), cache.get_many([KEY]), cache.get_or_compute(KEY, int)) == (1, [1], 1)
    assert cache.stats().hits == 3
