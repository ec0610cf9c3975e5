"""`step`: a lane begins, claims, reports and leaves."""

from __future__ import annotations

import pytest

from poimen_tasks.model import BatchState
from poimen_tasks.store import Refusal
from poimen_tasks.store.chunk_blob import ChunkView
from poimen_tasks.store.values import Ticket
from tests.integration import lanes
from tests.integration.lanes import Lane, begin, open_batch


def test_begin_and_claim(store):
    """The first step turns the ticket into a live lane with a lease, and claims (protocol 2)."""
    (ticket,) = open_batch(store, count=3)
    lane = Lane(store, ticket)
    reply = lane.begin()
    assert (reply.state, reply.positions) == ("go", [0])
    assert lanes.counters(store) == {"l:q": 1}
    assert [lease[:3] for lease in store.reads.leases()] == [("b", 0, ticket.generation)]
    status = store.reads.status("b")
    assert (status.pending, status.running, status.state) == (2, 1, BatchState.RUNNING)
    ((number, blob),) = reply.raw[b"chunks"]
    assert (number, ChunkView(blob).call(0)) == (0, ([0], {}))


def test_chunks_at_hand_are_not_sent(store):
    """A chunk that the lane has is not sent again."""
    lane = Lane(store, open_batch(store, count=3)[0])
    lane.slot["have"] = [0]
    assert lane.begin().raw[b"chunks"] == []


def test_ticket_delivered_twice(store):
    """A ticket that is delivered twice runs once: the second delivery ends at once (fault C01)."""
    (ticket,) = open_batch(store, count=9)
    begin(store, ticket)
    before = lanes.snapshot(store)
    reply = Lane(store, ticket).begin()
    assert (reply.state, reply.why) == ("end", "stale")
    assert lanes.snapshot(store) == before


def test_older_generation(store):
    """A ticket of an older generation ends at once (protocol 2)."""
    (old,) = open_batch(store, count=9)
    (new,) = store.scripts.reissue_ticket("b", 0, reissue=True)
    assert Lane(store, old).begin().why == "stale"
    begin(store, new)


def test_ticket_of_a_batch_that_is_over_or_unknown(store):
    """A late ticket of a batch that is over or gone ends at once."""
    tickets = open_batch(store, count=1)
    lanes.run_all(store, tickets)
    assert Lane(store, tickets[0]).begin().why == "over"
    assert Lane(store, Ticket("nobody", 0, 1, "q", 0)).begin().why == "gone"


def test_claims_are_disjoint(store):
    """Two lanes never hold the same item (invariant I2)."""
    lanes.offer(store, 2)
    first, second, *_ = [begin(store, ticket, 5) for ticket in open_batch(store, count=40)]
    assert not set(first.holds) & set(second.holds)
    assert lanes.holds_together(store)


def test_claim_is_a_fair_share(store):
    """A claim takes at most what is left over twice the live lanes, and at most 512 (protocol 0)."""
    assert len(begin(store, open_batch(store, "a", 10)[0], 99).holds) == 5
    assert len(begin(store, open_batch(store, "b", 3000)[0], 5000).holds) == 512


def test_prefetch_bounds_the_claim(store):
    """`policy(prefetch=1)` forces claims of one item (protocol 3)."""
    lane = begin(store, open_batch(store, count=100, parts=[lanes.part(prefetch=1)])[0], 50)
    assert len(lane.holds) == 1
    assert len(lane.claim(50, ok=[0]).positions) == 1


def test_outcomes_and_next_claim_in_one_step(store):
    """One step records outcomes and claims the next items (protocol 0)."""
    lane = begin(store, open_batch(store, count=3)[0])
    assert lane.claim(ok=[0]).positions == [1]
    assert lane.claim(failed=[1]).positions == [2]
    reply = lane.claim(skipped=[2])
    assert (reply.state, reply.why, reply.raw[b"over"]) == ("end", "over", True)
    assert lanes.statuses_of(store) == {0: ["ok"], 1: ["failed"], 2: ["skipped"]}
    assert store.reads.status("b").state is BatchState.FAILED
    assert [store.reads.ordinal_of("b", position) for position in range(3)] == [1, 2, 3]
    assert lanes.ends(store) == [3]
    assert lanes.counters(store) == {}


def test_lane_serves_its_queue_only(store):
    """A lane takes from the partitions of its queue, and leaves when they are empty (protocol 1)."""
    parts = [lanes.part("q1"), lanes.part("q2")]
    by_queue = {
        ticket.queue: ticket for ticket in open_batch(store, count=4, parts=parts, of=lambda position: position % 2)
    }
    lane = begin(store, by_queue["q2"], 1)
    assert list(lane.holds) == [1]
    assert lane.claim(ok=[1]).positions == [3]
    reply = lane.claim(ok=[3])
    assert (reply.state, reply.why) == ("end", "empty")
    assert lanes.counters(store) == {"t:q1": 1}


def test_items_that_came_back_go_first(store):
    """What came back is claimed before what was never claimed."""
    lane = begin(store, open_batch(store, count=9)[0], 4)
    assert list(lane.holds) == [0, 1, 2, 3]
    lane.finish("stay", ok=[0], retry={1: 0.0})
    reply = lane.claim(ok=[2, 3])
    assert reply.positions == [1]
    assert reply.entries[1][:3] == [1, 1, 1]


def test_due_items_of_another_queue_get_their_ticket(store):
    """A claim that finds items due on a queue without a lane brings that queue's ticket (protocol 2)."""
    parts = [lanes.part("q1"), lanes.part("q2")]
    (ticket,) = open_batch(
        store, count=6, parts=parts, of=lambda position: position // 3, delayed=dict.fromkeys((3, 4, 5), 9e9)
    )
    lane = begin(store, ticket)
    store.client.redis.zadd(store.keys.build("delayed", "b"), {"3:1": 1.0})
    reply = lane.claim(ok=[0])
    assert reply.positions == [1]
    assert [(missing.queue, missing.partition) for missing in reply.tickets] == [("q2", 1)]
    lane.repeat()
    assert lanes.counters(store) == {"l:q1": 1, "t:q2": 1}


def test_items_given_back_with_a_claim_bring_tickets(store):
    """What a lane gives back when it claims again is offered to other lanes at once (protocol 2)."""
    lanes.offer(store, 1)
    first, second = open_batch(store, count=4)
    lane = begin(store, first, 4)
    lanes.run_all(store, [second])
    assert lanes.counters(store) == {"l:q": 1}
    reply = lane.claim(1, give=list(lane.holds))
    assert (reply.positions, len(reply.tickets)) == ([0], 1)


def test_what_a_lane_still_holds_goes_back(store):
    """A lane that claims or leaves without a word about an item it holds gives that item back: nothing leaks."""
    lane = begin(store, open_batch(store, count=20)[0], 4)
    reply = lane.claim(2, ok=[0])
    assert reply.positions == [1, 2]
    assert lanes.holds_together(store)
    lane.finish("free", ok=[1])
    assert (lanes.field_of(store, "running"), lanes.field_of(store, "pending")) == (0, 18)
    assert lanes.holds_together(store)


def test_paused_partition_is_skipped(store):
    """Paused activities are skipped; a paused batch is left without a ticket (protocol 3, invariant I4)."""
    parts = [lanes.part("q", "acts.a"), lanes.part("q", "acts.b")]
    store.client.redis.hset(store.keys.build("pauses"), "a:acts.a", 1)
    lane = begin(store, open_batch(store, count=4, parts=parts, of=lambda position: position % 2)[0])
    assert list(lane.holds) == [1]
    store.client.redis.hset(store.keys.build("pauses"), "b:b", 2)
    reply = lane.claim(ok=[1])
    assert (reply.state, reply.why, reply.tickets) == ("end", "paused", [])
    assert store.reads.status("b").state is BatchState.PAUSED
    store.client.redis.delete(store.keys.build("pauses"))
    lanes.run_all(store, store.scripts.promote_batch("b"))
    assert store.reads.status("b").state is BatchState.COMPLETED


def test_paused_between_claim_and_outcome(store):
    """An item that was claimed before the pause still gets its outcome (fault I07)."""
    lane = begin(store, open_batch(store, count=1)[0])
    store.client.redis.hset(store.keys.build("pauses"), "*", 1)
    lane.claim(ok=[0])
    assert store.reads.status("b").is_over


def test_lanes_count_tickets_of_others(store):
    """A claim tells how many tickets of other batches wait on the queue (protocol 2)."""
    (ticket,) = open_batch(store, "a", 9)
    assert Lane(store, ticket).begin().raw[b"others"] == 0
    open_batch(store, "b", 9)
    (other,) = open_batch(store, "c", 9)
    assert Lane(store, other).begin().raw[b"others"] == 1


def test_yield(store):
    """A lane that gives way releases its slot and gets a ticket of the next generation in one step (protocol 2)."""
    (ticket,) = open_batch(store, count=9)
    lane = begin(store, ticket)
    reply = lane.finish("yield", ok=[0])
    (again,) = reply.tickets
    assert (reply.state, again.slot, again.generation) == ("end", 0, ticket.generation + 1)
    assert lanes.counters(store) == {"t:q": 1}
    assert lane.claim().why == "reaped"


def test_lease_is_renewed_by_each_step(store):
    """Claim and finish renew the lane's lease (protocol 5)."""
    lane = begin(store, open_batch(store, count=9)[0], lease=5.0)
    ends = [store.reads.leases()[0][3]]
    lane.claim(ok=[0])
    ends.append(store.reads.leases()[0][3])
    lane.finish("stay", ok=[1])
    ends.append(store.reads.leases()[0][3])
    assert ends == sorted(set(ends))


def test_callback_runs_as_a_hidden_batch(store):
    """A callback is a hidden batch of one item; retention starts when it is settled (protocol 6)."""
    hidden = lanes.run_all(
        store, open_batch(store, count=2, callbacks=["success", "failure", "complete"], retention=50.0)
    )
    assert sorted(ticket.batch for ticket in hidden[1:]) == ["b@complete.0", "b@success.0"]
    assert lanes.statuses_of(store, "b@success.0") == {0: ["ok"]}
    keys = store.client.redis.keys(store.keys.build("record", "b") + "*")
    assert {store.client.redis.ttl(key) > 0 for key in keys} == {True}
    assert store.reads.batches() == ["b"], "a hidden batch is not listed"


def test_batch_is_kept_while_its_callback_runs(store):
    """No key of a batch expires while a callback of it is not settled (protocol 6)."""
    tickets = open_batch(store, count=1, callbacks=["complete"])
    (hidden,) = begin(store, tickets[0]).claim(ok=[0]).tickets
    assert store.reads.status("b").callbacks_pending == 1
    assert store.client.redis.ttl(store.keys.record("b")) == -1
    lanes.run_all(store, [hidden])
    assert store.client.redis.ttl(store.keys.record("b")) > 0


def test_failing_callback_settles_too(store):
    """A callback that fails is settled as well (fault A16)."""
    (hidden,) = begin(store, open_batch(store, count=1, callbacks=["success"])[0]).claim(ok=[0]).tickets
    lanes.run_all(store, [hidden], status="failed")
    assert store.reads.status("b").callbacks_pending == 0
    assert store.reads.status("b").state is BatchState.COMPLETED


def test_lost_callback_runs_again(store):
    """A callback whose worker died is run again, and has one outcome (fault A04, fault A05)."""
    (hidden,) = begin(store, open_batch(store, count=1, callbacks=["success"])[0]).claim(ok=[0]).tickets
    lane = begin(store, hidden)
    lanes.run_all(store, lanes.reap(store, lane))
    lane.settle(ok=[0])
    assert lanes.statuses_of(store, "b@success.0") == {0: ["ok"]}
    assert len(lanes.audit(store, "callback.finished")) == 1


@pytest.mark.parametrize("told", [{"ok": [0, 1]}, {"ok": [0], "retry": {1: 60.0}}, {"failed": [0], "give": [1]}])
def test_once(store, told):
    """A repeated step returns the same claim with its chunks; a lower sequence is refused (protocol 4)."""
    lane = begin(store, open_batch(store, count=9)[0], 2)
    assert list(lane.holds) == [0, 1]
    reply = lane.claim(2, **told)
    after = lanes.snapshot(store)
    assert lane.repeat().raw == reply.raw
    assert b"chunks" in reply.raw
    with pytest.raises(Refusal, match="STALE"):
        lane.repeat(behind=1)
    assert lanes.snapshot(store) == after


def test_once_at_the_beginning(store):
    """A first step whose reply was lost gets the same claim again, not "stale" (protocol 4)."""
    lane = begin(store, open_batch(store, count=9)[0], 2)
    after = lanes.snapshot(store)
    assert lane.repeat().positions == [0, 1]
    assert lanes.snapshot(store) == after


def test_audit(store):
    """One entry carries all outcomes of a step, with the lane's details and payload (protocol 4, invariant I5)."""
    begin(store, open_batch(store, count=9)[0], 3).claim(ok=[0, 2], failed=[1])
    (told,) = lanes.audit(store, "item.finished")
    assert sorted(told.positions) == [0, 1, 2]
    assert (told.header["ok"], told.header["failed"], told.header["worker"], told.payload) == (2, 1, "w1", b"details")


def test_other_layout(store):
    """A lane does not claim from data of another layout (protocol 4)."""
    (ticket,) = open_batch(store)
    lanes.assert_layout(store, lambda: Lane(store, ticket).begin())


def test_decline(store):
    """A worker that does not know the task gives its claim back; the keeper issues the next ticket (protocol 3)."""
    (ticket,) = open_batch(store, count=3, limit=1)
    reply = begin(store, ticket).finish("decline")
    assert (reply.state, reply.why, reply.tickets) == ("end", "decline", [])
    status = store.reads.status("b")
    assert (status.pending, status.running) == (3, 0)
    assert lanes.counters(store) == {}
    assert b"b" in lanes.offer(store, 1)[b"hungry"]
    (again,) = store.scripts.promote_batch("b")
    assert list(begin(store, again).holds) == [0]
    assert lanes.holds_together(store)
