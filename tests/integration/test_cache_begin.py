"""`cache_begin`: a caller gets a result, computes it, or waits."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import assert_layout, assert_once, begin, cache_counts, digest, entry, open_batch, part

KEY = digest("x")


def ask(cache, owner="one", lease=60.0, **more):
    return cache.cache_begin(KEY, activity="acts.work", owner=owner, lease=lease, **more)


def put(value=b"\x07"):
    return entry("x", value)


def test_one_leads_the_others_wait(store, cache):
    """The first to ask computes, others wait; the leader may ask again (promise C9, fault G01)."""
    assert ask(cache).how == "lead"
    assert ask(cache, "two").how == "wait"
    assert ask(cache, "two", alone=True).how == "alone"
    assert ask(cache).how == "lead"


def test_what_is_cached_is_a_hit(store, cache):
    """A result that is there is handed over; after waiting it counts as coalesced (promise C6)."""
    since = ask(cache).clock
    assert since is not None
    waited = ask(cache, "two").clock
    cache.cache_finish(put(), owner="one")
    assert ask(cache, "three") == ("hit", b"\x07", None)
    assert ask(cache, "two", since=waited) == ("hit", b"\x07", None)
    assert {name: cache_counts(store)[name] for name in ("hits", "misses", "coalesced")} == {
        "hits": 1, "misses": 1, "coalesced": 1
    }  # fmt: skip


def test_a_refused_result_reaches_who_waited(store, cache):
    """A value too large for the cache is still given to those who waited for it (protocol 8)."""
    ask(cache)
    waited = ask(cache, "two").clock
    assert cache.cache_finish(put(b"x" * 100)._replace(most=10), owner="one").put == "refused"
    assert ask(cache, "two", since=waited) == ("hit", b"x" * 100, None)
    assert ask(cache, "three").how == "lead"


def test_a_dead_leader_is_taken_over(store, cache, eventually):
    """When the leader's lease has ended, whoever asks next leads, and the old one's value is fenced (fault G02)."""
    ask(cache, lease=0.05)
    eventually(lambda: ask(cache, "two").how == "lead")
    assert cache.cache_finish(put(b"old"), owner="one").put == "fenced"
    assert cache.cache_finish(put(b"new"), owner="two").put == "stored"
    assert ask(cache, "three") == ("hit", b"new", None)
    assert len(lanes.audit(store, "cache.takeover")) == 1


def test_after_two_failures_each_computes(store, cache):
    """Two leaders failed: nobody waits any more (protocol 8)."""
    for owner in ("one", "two"):
        assert ask(cache, owner).how == "lead"
        ask(cache, "waits")
        cache.cache_fail(KEY, owner=owner)
    assert ask(cache, "three").how == "alone"
    assert ask(cache, "four").how == "alone"


def test_a_lane_leads_for_callers_too(store, cache):
    """A caller waits for an item that computes the same, and gets its value (promise C9)."""
    lane = begin(store, open_batch(store, count=1, parts=[part(cached=True)], keys=["x"])[0])
    waited = ask(cache).clock
    lane.claim(ok=[0], values={0: b"\x07"})
    assert ask(cache, since=waited) == ("hit", b"\x07", None)


def test_once(store, cache):
    """Sent twice it begins once (protocol 4)."""
    assert_once(store, lambda: ask(cache))


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: ask(cache))
