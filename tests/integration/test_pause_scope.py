"""`pause_scope`: from now on nothing of a scope is claimed, and what runs is told."""

from __future__ import annotations

import msgpack
import pytest

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch

# The form in which somebody asks that a pause which stands be left alone.
STANDING = {"standing": True, "reason": "other", "actor": "other", "grace": 1.0, "expires": 9.0}
SCOPES = ["*", "w:w", "b:b", "q:q", "a:acts.work"]


def pause(store, scope="w:w", **options):
    """Pause as somebody."""
    return store.pauses.pause_scope(scope, **{"reason": "why", "actor": "me", **options})


def held(store, scope="w:w"):
    """What a scope holds back."""
    return [member.replace("\t", " ") for member in store.pause_reads.held(scope)]


@pytest.mark.parametrize("scope", SCOPES)
def test_no_claim_after_it(store, scope):
    """After it no claim in the scope succeeds; what was claimed before is in the reply (promise P3, invariant I4)."""
    lanes.offer(store, 10)
    first, second, *_ = open_batch(store, count=50, limit=3)
    lane = begin(store, first, 4)
    paused = pause(store, scope)
    (row,) = paused.running
    assert (row.batch, row.activity, list(lanes.expand_ranges(row.ranges))) == ("b", "acts.work", list(lane.holds))
    assert paused.at >= row.since > 0
    assert lanes.Lane(store, second).begin().why == "paused"
    reply = lane.claim(ok=list(lane.holds))
    assert (reply.why, reply.tickets) == ("paused", [])
    assert held(store, scope) == ["b b"]
    assert lanes.holds_together(store)


def test_one_that_stands_is_left_alone(store):
    """Asked to, it leaves a pause that stands as it is, and tells of it; where none stands, it pauses."""
    made = pause(store, "w:w", grace=100.0)
    state = store.snapshots.pause_states(["w:w"])
    length = store.client.redis.xlen(store.keys.build("audit"))
    again = pause(store, "w:w", **STANDING)
    assert again._replace(again=False) == made
    assert again.again
    assert store.snapshots.pause_states(["w:w"]) == state
    assert store.client.redis.xlen(store.keys.build("audit")) == length
    store.pauses.resume_scope("w:w", reason="", actor="me")
    anew = pause(store, "w:w", **STANDING)
    assert (anew.again, anew.epoch > made.epoch) == (False, True)
    assert store.snapshots.pause_states(["w:w"])["w:w"]["reason"] == "other"


@pytest.mark.parametrize("scope", ["w:other", "b:a", "q:p", "a:acts.other"])
def test_others_go_on(store, scope):
    """Another scope's pause does not touch a batch (promise P12)."""
    first, *_ = open_batch(store, count=50)
    lane = begin(store, first, 4)
    assert pause(store, scope).running == []
    assert lane.claim(ok=list(lane.holds)).state == "go"


def test_a_queue_of_several(store):
    """A batch goes on with the partitions that nothing covers; its status says what pauses a part of it."""
    parts = [lanes.part("q1", "acts.one"), lanes.part("q2", "acts.two")]
    lanes.offer(store, 4, "q1", "q2")
    pause(store, "a:acts.two")
    tickets = open_batch(store, count=4, parts=parts, of=lambda position: position % 2)
    assert {ticket.queue for ticket in tickets} == {"q1"}
    lanes.run_all(store, tickets)
    status = store.reads.status("b")
    assert (status.succeeded, status.pending, status.paused_by) == (2, 2, ("a:acts.two",))
    assert held(store, "a:acts.two") == ["b b"]


def test_dispatch_into_a_pause(store):
    """A batch that nobody had seen when its workflow was paused gets no ticket (promise P1)."""
    lanes.offer(store, 10)
    pause(store)
    assert open_batch(store, count=256, seal=False) == []
    assert lanes.append(store, 256, 2, seal=True) == []
    assert held(store) == ["b b"]


def test_a_callback_is_held(store):
    """A pause at the last item: its outcome is recorded, the callback waits."""
    (ticket,) = open_batch(store, count=1, callbacks=["success"])
    lane = begin(store, ticket)
    pause(store)
    reply = lane.claim(ok=[0])
    assert (reply.why, reply.tickets) == ("over", [])
    assert held(store) == ["b b@success.0"]
    tickets = store.pauses.resume_scope("w:w", reason="", actor="me").tickets
    assert [ticket.batch for ticket in tickets] == ["b@success.0"]


def test_a_due_retry_is_held(store):
    """What becomes due while it is paused waits in its list, without a slot (invariant I6)."""
    lanes.offer(store, 4)
    lane = begin(store, open_batch(store, count=1)[0])
    lane.finish("stay", retry={0: 0.0})
    pause(store)
    assert lane.finish("free").tickets == []
    assert store.scripts.promote_batch("b") == []
    assert (lanes.counters(store), held(store)) == ({}, ["b b"])
    assert store.reads.status("b").pending == 1


def test_a_reaped_lane_is_not_replaced(store):
    """What a lost lane held is not handed out while it is paused."""
    lane = begin(store, open_batch(store, count=4)[0])
    pause(store)
    assert lanes.reap(store, lane) == []
    assert held(store) == ["b b"]


def test_same_request(store):
    """The same request id gets the same receipt, also after a resume, and changes nothing."""
    begin(store, open_batch(store, count=4)[0], 2)
    first = pause(store, request_id="r1", grace=5.0)
    store.pauses.resume_scope("w:w", reason="", actor="me")
    before = lanes.snapshot(store)
    assert pause(store, request_id="r1") == first._replace(again=True)
    assert lanes.snapshot(store) == before
    assert not store.pause_reads.is_paused("w:w")
    assert pause(store, request_id="r2").epoch == first.epoch + 1


def test_many_requests_are_bounded(store):
    """A scope remembers its last 16 requests."""
    for number in range(20):
        pause(store, request_id=f"r{number}")
    fields = store.client.redis.hkeys(store.keys.build("pause_state", "w:w"))
    assert sorted(name for name in fields if name.startswith(b"r:")) == sorted(b"r:r%d" % n for n in range(4, 20))


def test_paused_anew(store):
    """Pausing what is paused takes the new reason, grace and terminate, under a new epoch; since when stays."""
    first = pause(store, reason="one", expires=60.0)
    second = pause(store, reason="two", grace=3.0, terminate=True, actor="you")
    state = store.pause_reads.state("w:w")
    assert second.epoch == first.epoch + 1
    assert float(state["paused_at"]) == pytest.approx(first.at)
    assert float(state["stop_at"]) == pytest.approx(second.at + 3.0)
    assert [state[name] for name in ("reason", "actor", "terminate", "expires_at")] == [b"two", b"you", b"1", b""]
    assert store.client.redis.zcard(store.keys.build("pause_due")) == 0


def test_ended_batches_are_kept(store):
    """Batches of the workflow that ended before keep their keys while it is paused (fault I08)."""
    redis = store.client.redis
    lanes.run_all(store, open_batch(store, count=1, callbacks=["complete"]))
    assert redis.ttl(store.keys.record("b")) > 0
    pause(store)
    assert [redis.ttl(store.keys.record(name)) for name in ("b", "b@complete.0")] == [-1, -1]
    assert held(store) == ["b b"]
    store.pauses.resume_scope("w:w", reason="", actor="me")
    assert all(0 < redis.ttl(store.keys.record(name)) <= 60 for name in ("b", "b@complete.0"))


def test_a_batch_that_ends_while_paused_is_kept(store):
    """A batch that ends while it is paused begins its retention at the resume."""
    redis = store.client.redis
    lane = begin(store, open_batch(store, count=1)[0])
    pause(store, "b:b")
    pause(store)
    lane.finish("free", ok=[0])
    assert redis.ttl(store.keys.record("b")) == -1
    store.pauses.resume_scope("b:b", reason="", actor="me")
    assert redis.ttl(store.keys.record("b")) == -1
    store.pauses.resume_scope("w:w", reason="", actor="me")
    assert redis.ttl(store.keys.record("b")) > 0


def test_cancel_while_paused(store):
    """A cancelled batch ends though it is paused; nothing of it is held but its callback."""
    lanes.offer(store, 4)
    open_batch(store, count=5, callbacks=["failure"])
    pause(store)
    store.scripts.promote_batch("b")
    reply = store.scripts.cancel_batch("b", reason="no", actor="me", terminate=False)
    assert (reply[b"over"], lanes.tickets_of(reply)) == (1, [])
    assert held(store) == ["b b@failure.0"]


def test_tickets_of_a_paused_batch_are_taken_back(store):
    """A ticket that is overdue while its batch is paused is not issued again: the slot is free (invariant I6)."""
    lanes.offer(store, 2)
    (ticket,) = open_batch(store, count=1)
    pause(store)
    assert store.scripts.reissue_ticket("b", ticket.slot, reissue=True) == []
    assert lanes.counters(store) == {}
    assert (lanes.Lane(store, ticket).begin().why, held(store)) == ("stale", ["b b"])


def test_what_has_not_begun_goes_back(store):
    """A lane that reports while its items are paused is told so."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    assert b"paused" not in lane.finish("stay", ok=[0]).raw
    pause(store)
    assert lane.finish("stay", ok=[1]).raw[b"paused"] is True


def test_state_index_and_signal(store):
    """State, index, signal and totals are written in the same step."""
    paused = pause(store)
    redis, keys = store.client.redis, store.keys
    assert redis.zscore(keys.build("pause_index"), "w:w") == float("inf")
    ((_, signal),) = redis.xrange(keys.build("pause_signals", "w:w"))
    assert signal == {b"s": b"paused", b"e": b"%d" % paused.epoch}
    assert store.pause_reads.totals()[:4] == (1, 1, 1, 0)
    assert [redis.ttl(keys.build(name, "w:w")) for name in ("pause_state", "pause_signals")] == [-1, -1]


def test_audit(store):
    """The entry has who, why, epoch and counts (invariant I5)."""
    begin(store, open_batch(store, count=9)[0], 2)
    pause(store, grace=2.0)
    (told,) = lanes.audit(store, "scope.paused")
    names = ("scope", "epoch", "a", "reason", "grace", "running", "lanes", "calls")
    assert [told.header[name] for name in names] == ["w:w", 1, "me", "why", 2.0, 2, 1, 0]


def test_many_lanes_one_step(store):
    """One request tells of all lanes, whatever their batches hold."""
    lanes.offer(store, 40)
    for name in "abc":
        for ticket in open_batch(store, name, count=40, limit=10):
            begin(store, ticket)
    with lanes.listening(store) as calls:
        assert len(pause(store, "*").running) == 30
    assert len(calls) == 1
    assert len(msgpack.packb(calls[0].request)) < 200


def test_once(store):
    """The same request twice pauses once; a lower sequence is refused (protocol 4)."""
    begin(store, open_batch(store, count=9)[0], 2)
    lanes.assert_once(store, lambda: pause(store))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: pause(store))
