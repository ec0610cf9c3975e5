"""`resume_scope`: a scope is paused no more, and what it held back goes on."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import NotPaused, StaleEpoch
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch
from tests.integration.test_pause_scope import held, pause


def resume(store, scope="w:w", **options):
    """Resume as somebody."""
    return store.pauses.resume_scope(scope, **{"reason": "why", "actor": "me", **options})


def test_held_batch_gets_its_tickets(store):
    """A batch that was dispatched into a pause gets its tickets with the resume."""
    lanes.offer(store, 10)
    pause(store, "b:b")
    assert open_batch(store, count=50, limit=3) == []
    reply = resume(store, "b:b")
    assert (len(reply.tickets), reply.left, reply.released) == (3, False, 1)
    lanes.run_all(store, reply.tickets)
    assert lanes.field_of(store, "ok") == 50


def test_overlapping_scopes(store):
    """An item starts only when none of the scopes that cover it is paused (promise P1)."""
    lanes.offer(store, 10)
    scopes = ["w:w", "q:q", "*", "a:acts.work", "b:b"]
    for scope in scopes:
        pause(store, scope)
    open_batch(store, count=5)
    for scope in scopes[:-1]:
        assert resume(store, scope).tickets == []
        assert lanes.counters(store) == {}
    assert len(resume(store, scopes[-1]).tickets) == 5


def test_not_paused(store):
    """What is not paused cannot be resumed; an older epoch resumes nothing, the current one does (promise P2)."""
    with pytest.raises(NotPaused, match="w:w"):
        resume(store)
    first = pause(store)
    second = pause(store)
    before = lanes.snapshot(store)
    with pytest.raises(StaleEpoch, match="w:w"):
        resume(store, epoch=first.epoch)
    assert lanes.snapshot(store) == before
    assert resume(store, epoch=second.epoch).epoch == second.epoch


def test_same_request(store):
    """The same request id does not resume what was paused since, and is no error when nothing was."""
    pause(store)
    resume(store, request_id="r1")
    assert resume(store, request_id="r1").again
    with pytest.raises(NotPaused):
        resume(store, request_id="r2")


def test_state(store):
    """The state keeps who resumed and why, for a retention; the signal, index and totals follow (promise P4)."""
    pause(store, reason="one")
    resume(store, reason="two", actor="you", rate=3.0)
    state, redis, keys = store.pause_reads.state("w:w"), store.client.redis, store.keys
    names = ("state", "reason", "resume_reason", "resume_actor", "rate")
    assert [state[name] for name in names] == [b"resumed", b"one", b"two", b"you", b"3"]
    ttls = [redis.ttl(keys.build(name, "w:w")) for name in ("pause_state", "pause_signals")]
    assert all(0 < ttl <= store.settings.retention for ttl in ttls)
    assert store.pause_reads.totals()[:4] == (1, 0, 1, 1)
    assert not redis.exists(keys.build("pauses"))


def test_a_ramp(store):
    """With a rate items start one by one as it grows: a lane without its turn leaves, and the keeper brings it back."""
    lanes.offer(store, 10)
    pause(store)
    open_batch(store, count=50)
    (ticket,) = resume(store, rate=0.5).tickets
    lane = begin(store, ticket, 8)
    assert len(lane.holds) == 1
    reply = lane.claim(8, ok=list(lane.holds))
    assert (reply.why, reply.tickets) == ("ramped", [])
    assert store.client.redis.zscore(store.keys.build("hungry"), "b")
    assert store.scripts.promote_batch("b") == []
    rewind(store, "w:w", 2.0)
    (ticket,) = store.scripts.promote_batch("b")
    assert len(begin(store, ticket, 8).holds) == 1


def test_a_ramp_doubles_and_ends(store):
    """The rate doubles every 5 s and is lifted after 60 s."""
    lanes.offer(store, 100)
    pause(store)
    open_batch(store, count=200)
    (first,) = resume(store, rate=1.0).tickets
    rewind(store, "w:w", 20.0)
    assert len(store.scripts.promote_batch("b")) == 31  # of 2 s at 16 a second, one is out
    begin(store, first)
    rewind(store, "w:w", 60.0)
    assert len(store.scripts.promote_batch("b")) == 168
    assert not store.client.redis.exists(store.keys.build("ramps"))


def rewind(store, scope, seconds):
    """Make a ramp so much older."""
    key = store.keys.build("ramps")
    rate, since, level, at = map(float, store.client.redis.hget(key, scope).split(b"|"))
    store.client.redis.hset(key, scope, f"{rate}|{since - seconds}|{level}|{at - seconds}")


def test_a_pause_ends_a_ramp(store):
    """Pausing again forgets the ramp."""
    pause(store)
    resume(store, rate=1.0)
    pause(store)
    assert not store.client.redis.exists(store.keys.build("ramps"))


def test_a_batch_that_is_gone(store):
    """A held batch that is over, or gone, is passed over."""
    lanes.offer(store, 4)
    pause(store, "q:q")
    open_batch(store, "a", count=1)
    open_batch(store, "c", count=1)
    store.client.redis.delete(store.keys.record("a"))
    assert [ticket.batch for ticket in resume(store, "q:q").tickets] == ["c"]
    assert held(store, "q:q") == []


def test_audit(store):
    """The entry has who, why, epoch, rate and how much was held (invariant I5)."""
    lanes.offer(store, 4)
    pause(store)
    open_batch(store, count=2)
    resume(store, rate=9.0)
    (told,) = lanes.audit(store, "scope.resumed")
    assert [told.header[name] for name in ("scope", "epoch", "a", "reason", "rate", "held")] == [
        "w:w",
        1,
        "me",
        "why",
        9.0,
        1,
    ]


def test_once(store):
    """The same request twice resumes once; a lower sequence is refused (protocol 4)."""
    lanes.offer(store, 10)
    pause(store)
    open_batch(store, count=5)
    lanes.assert_once(store, lambda: resume(store))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    pause(store)
    store.client.redis.set(store.keys.build("layout"), 1)
    lanes.assert_layout(store, lambda: resume(store))
