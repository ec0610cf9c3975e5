"""Claims of items whose results are cached: hits end without running, equal calls run once, leadership passes on."""

from __future__ import annotations

import pytest

from poimen_tasks import codec
from poimen_tasks.store.cache_scripts import Labels, Put
from tests.integration import lanes
from tests.integration.lanes import Lane, begin, digest, field_of, holds_together, open_batch, part

CACHED = part(cached=True)


def put(cache, call, value, **more):
    return cache.cache_put([Put(digest(call), Labels("acts.work"), codec.encode(value), 0.0, **more)])


def stats(store):
    return {
        name.decode(): int(count)
        for name, count in store.client.redis.hgetall(store.keys.build("cache_stats", "acts.work")).items()
    }


def results(store, batch="b"):
    """Position to result and whether the cache gave it."""
    found = {}
    for columns in lanes.outcomes(store, batch):
        for at, position in enumerate(lanes.expand_ranges(columns.ranges)):
            found[position] = ((columns.results or {at: None})[at], at in (columns.cached or ()))
    return found


def test_hits_end_without_running(store, cache):
    """Ten thousand known calls end in the lane's claims, and no item is handed out (promise C9, protocol 8)."""
    for call in range(50):
        put(cache, call, call * 2)
    tickets = open_batch(store, count=256, parts=[CACHED], keys=[n % 50 for n in range(256)], callbacks=["success"])
    reply = Lane(store, tickets[0]).begin(1)
    assert (reply.state, reply.why, reply.positions) == ("end", "over", [])
    assert results(store) == {n: (n % 50 * 2, True) for n in range(256)}
    status = store.reads.status("b")
    assert (status.succeeded, status.cached, str(status.state)) == (256, 256, "completed")
    assert [ticket.batch for ticket in reply.tickets] == ["b@success.0"]
    assert stats(store)["hits"] == 256
    (told,) = lanes.audit(store, "item.finished")
    assert (told.header["ok"], told.header["cached"]) == (256, 256)


def test_hits_and_misses_are_told_apart(store, cache):
    """A claim hands out what is not known, settles what is, and keeps the order of the rest."""
    put(cache, "known", "value")
    keys = ["known" if n % 3 else f"new {n}" for n in range(12)]
    lane = begin(store, open_batch(store, count=12, parts=[CACHED], keys=keys)[0], 2)
    assert sorted(lane.holds) == [0, 3]
    assert holds_together(store)
    seen = list(lane.holds)
    reply = lane.claim(4, ok=list(lane.holds))
    while reply.state == "go":
        seen += reply.positions
        reply = lane.claim(4, ok=list(lane.holds))
    assert seen == [0, 3, 6, 9]
    assert reply.why == "over"
    assert [results(store)[n][1] for n in range(12)] == [bool(n % 3) for n in range(12)]


def test_items_without_a_key_run(store, cache):
    """An item without a cache key runs, whatever the cache holds."""
    lane = begin(store, open_batch(store, count=3, parts=[CACHED], keys=[None, None, None])[0], 1)
    for _ in range(2):
        assert lane.claim(1, ok=list(lane.holds)).positions
    assert lane.claim(1, ok=list(lane.holds)).why == "over"
    assert "misses" not in stats(store)


def test_equal_calls_run_once(store, cache):
    """Of equal calls one runs; the others wait without a slot and get its value with it (promise C9, invariant I6)."""
    tickets = open_batch(store, count=5, parts=[CACHED], keys=["same"] * 5)
    other = open_batch(store, "other", count=2, parts=[CACHED], keys=["same", "else"], callbacks=["complete"])
    lane = begin(store, tickets[0], 1)
    assert list(lane.holds) == [0]
    second = begin(store, other[0], 1)
    assert list(second.holds) == [1]
    assert second.claim(1, ok=[1]).why == "empty"
    lane.finish("stay")
    assert (field_of(store, "waiting", "other"), field_of(store, "running", "other")) == (1, 0)
    assert holds_together(store)
    assert holds_together(store, "other")
    reply = lane.claim(1, ok=[0], values={0: codec.encode("got")})
    assert reply.why == "over"
    assert results(store)[4] == ("got", True)
    assert results(store, "other")[0] == ("got", True)
    assert [ticket.batch for ticket in reply.tickets] == ["other@complete.0"]
    assert [stats(store)[name] for name in ("misses", "coalesced", "hits", "puts")] == [2, 1, 4, 1]
    assert cache.cache_get([digest("same")], ["acts.work"]) == [codec.encode("got")]


@pytest.mark.parametrize("how", ["retry", "give", "reap", "fail"])
def test_leadership_passes_on(store, cache, how):
    """A leader that retries, gives back, dies or fails lets the first follower lead (protocol 8)."""
    leader = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    follower = open_batch(store, "b", count=2, parts=[CACHED], keys=["same", "same"])
    lane = begin_waiting(store, follower[0])
    if how == "retry":
        tickets = leader.finish("stay", retry={0: 60.0}).tickets
    elif how == "give":
        tickets = leader.finish("free", give=[0]).tickets
    elif how == "reap":
        tickets = lanes.reap(store, leader)
    else:
        tickets = leader.finish("free", failed=[0]).tickets
    assert field_of(store, "waiting") == 1
    assert [ticket.batch for ticket in tickets if ticket.batch == "b"] == ["b"]
    heir = begin(store, next(ticket for ticket in tickets if ticket.batch == "b"), 1)
    assert list(heir.holds) == [0]
    assert heir.claim(1, ok=[0], values={0: codec.encode(7)}).why == "over"
    assert results(store) == {0: (f"{heir.token}:0", False), 1: (7, True)}
    assert holds_together(store, "a")
    del lane


def begin_waiting(store, ticket):
    """A lane that finds only calls which run already."""
    lane = Lane(store, ticket)
    reply = lane.begin(1)
    assert (reply.state, reply.why) == ("end", "empty")
    return lane


def test_after_two_failed_leaders_everybody_computes(store, cache):
    """Two leaders failed: the others are let go at once and wait for nobody (protocol 8)."""
    tickets = open_batch(store, count=6, parts=[CACHED], keys=["same"] * 6, limit=1)
    lane = begin(store, tickets[0], 1)
    for _ in range(2):
        lane.finish("stay")
        lane.claim(1, failed=list(lane.holds))
    seen = list(lane.holds)
    assert (field_of(store, "waiting"), field_of(store, "pending")) == (0, 3)
    reply = lane.claim(3, ok=list(lane.holds))
    while reply.state == "go":
        seen += reply.positions
        reply = lane.claim(3, ok=list(lane.holds))
    assert sorted(seen) == [2, 3, 4, 5]
    assert reply.why == "over"


def test_a_late_result_of_a_lost_leader_is_fenced(store, cache):
    """A leader that was reaped cannot store its result over its successor's (fault G01)."""
    lost = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    lanes.reap(store, lost)
    heir = begin(store, open_batch(store, "b", count=1, parts=[CACHED], keys=["same"])[0], 1)
    assert lost.settle("free", ok=[0], values={0: codec.encode("late")}).why
    assert cache.cache_get([digest("same")], ["acts.work"]) == [None]
    heir.finish("free", ok=[0], values={0: codec.encode("new")})
    assert cache.cache_get([digest("same")], ["acts.work"]) == [codec.encode("new")]


def test_an_invalidation_during_a_computation_wins(store, cache):
    """What was computed from before an invalidation is not stored, and its followers look again (promise C7)."""
    lane = begin(store, open_batch(store, "a", count=2, parts=[CACHED], keys=["same"] * 2, limit=1)[0], 1)
    begin_waiting(store, open_batch(store, "b", count=1, parts=[CACHED], keys=["same"])[0])
    cache.cache_invalidate(scopes=["a:acts.work"], actor="me")
    reply = lane.claim(1, ok=[0], values={0: codec.encode("old")})
    assert reply.positions == [1] or [ticket.batch for ticket in reply.tickets] == ["b"]
    assert cache.cache_get([digest("same")], ["acts.work"]) == [None]
    assert field_of(store, "waiting", "b") == 0
    assert stats(store)["stale"] == 1


def test_cancelling_settles_what_waits(store, cache):
    """Cancelling a batch gives its waiting items their outcome; the leader's value then skips them (promise D8)."""
    leader = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    begin_waiting(store, open_batch(store, "b", count=3, parts=[CACHED], keys=["same"] * 3)[0])
    reply = store.scripts.cancel_batch("b", reason="no", actor="me", terminate=False)
    assert (reply[b"left"], reply[b"over"]) == (0, 1)
    assert lanes.statuses_of(store) == {n: ["cancelled"] for n in range(3)}
    assert leader.claim(1, ok=[0], values={0: codec.encode(1)}).why == "over"
    assert lanes.statuses_of(store) == {n: ["cancelled"] for n in range(3)}


def test_more_followers_than_one_call_takes(store, cache):
    """A leader's result reaches every follower, five hundred a call (protocol 8)."""
    leader = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    for number in range(5):
        tickets = open_batch(store, f"f{number}", count=256, parts=[CACHED], keys=["same"] * 256)
        begin_waiting(store, tickets[0])
    leader.finish("free", ok=[0], values={0: codec.encode("v")})
    more = True
    while more:
        more, _ = cache.settle_flight(digest("same"))
    for number in range(5):
        status = store.reads.status(f"f{number}")
        assert (status.succeeded, status.cached, status.waiting) == (256, 256, 0)
    assert not store.client.redis.exists(store.keys.build("flight_due"), store.keys.build("flights"))


def test_a_vacant_flight_finds_another_leader(store, cache):
    """When whoever was to lead is cancelled, another follower is let go after a second (protocol 8)."""
    leader = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    begin_waiting(store, open_batch(store, "b", count=1, parts=[CACHED], keys=["same"])[0])
    begin_waiting(store, open_batch(store, "c", count=1, parts=[CACHED], keys=["same"])[0])
    leader.finish("free", failed=[0])
    store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)
    assert field_of(store, "waiting", "c") == 1
    store.client.redis.zadd(store.keys.build("flight_due"), {digest("same"): 1.0})
    _, landed = cache.settle_flight(digest("same"))
    assert [ticket.batch for ticket in landed.tickets] == ["c"]
    assert field_of(store, "waiting", "c") == 0


def test_a_retry_with_other_arguments_is_another_call(store, cache):
    """An item that retried with other arguments runs: what is cached for its first call is not its result."""
    lane = begin(store, open_batch(store, count=1, parts=[CACHED], keys=["same"])[0], 1)
    lane.finish("stay", retry={0: 0.0}, call=codec.encode([["other"], {}]))
    put(cache, "same", "of the first call")
    reply = lane.claim(1)
    assert reply.positions == [0]
    assert lane.claim(1, ok=[0]).why == "over"
    assert results(store) == {0: (f"{lane.token}:0", False)}


def test_paused_followers_do_not_lead(store, cache):
    """When a leader leaves, the first follower that is not paused leads at once; paused ones wait in their batches."""
    leader = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    for batch in "bcd":
        begin_waiting(store, open_batch(store, batch, count=1, parts=[CACHED], keys=["same"])[0])
    for batch in "bc":
        store.pauses.pause_scope(f"b:{batch}", reason="", actor="me")
    tickets = leader.finish("free", failed=[0]).tickets
    assert [ticket.batch for ticket in tickets] == ["d"]
    assert [store.reads.status(batch).pending for batch in "bc"] == [1, 1]
    assert all(holds_together(store, batch) for batch in "bcd")
    begin(store, tickets[0]).finish("free", ok=[0], values={0: codec.encode("v")})
    for batch in "bc":
        (ticket,) = store.pauses.resume_scope(f"b:{batch}", reason="", actor="me").tickets
        assert Lane(store, ticket).begin().why == "over"
        assert results(store, batch) == {0: ("v", True)}


def test_a_paused_leader_passes_the_lead_on(store, cache):
    """An item that leads and stops because it is paused leaves the lead to a follower."""
    leader = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    begin_waiting(store, open_batch(store, "b", count=1, parts=[CACHED], keys=["same"])[0])
    store.pauses.pause_scope("b:a", reason="", actor="me", grace=0.0)
    told = {"r": [], "g": [], "z": [0, 1]}
    reply = leader.send("finish", {**leader.slot, "k": 0, "t": "free", "f": told}, (b"", b""))
    assert [ticket.batch for ticket in reply.tickets] == ["b"]


def test_a_paused_follower_gets_its_outcome(store, cache):
    """A result that lands is an outcome for paused followers too; what comes after their batch is held (protocol 8)."""
    leader = begin(store, open_batch(store, "a", count=1, parts=[CACHED], keys=["same"])[0], 1)
    waiting = open_batch(store, "b", count=1, parts=[CACHED], keys=["same"], callbacks=["success"])
    begin_waiting(store, waiting[0])
    store.pauses.pause_scope("b:b", reason="", actor="me")
    assert leader.finish("free", ok=[0], values={0: codec.encode("v")}).tickets == []
    assert results(store, "b") == {0: ("v", True)}
    assert store.pause_reads.held("b:b") == ["b\tb@success.0"]
