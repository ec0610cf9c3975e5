"""`finish`: outcomes, retries, items given back; and what a lane may still report after it was reaped."""

from __future__ import annotations

import pytest

from poimen_tasks.model import BatchState
from poimen_tasks.store import Refusal
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch, reap


def test_flush_keeps_the_slot(store):
    """A flush records outcomes while the lane goes on with the rest of its claim (protocol 3)."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    assert lane.finish("stay", ok=[0, 2]).state == "go"
    status = store.reads.status("b")
    assert (status.succeeded, status.running) == (2, 2)
    assert lanes.counters(store) == {"l:q": 1}
    assert lanes.holds_together(store)


def test_unstarted_items_are_given_back(store):
    """Unstarted items go back in front, in order, with no attempt counted (protocol 3)."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    lane.finish("stay", give=[1, 2, 3])
    assert store.client.redis.lrange(store.keys.build("fresh", "b", 0), 0, -1) == [b"1:4", b"4:8"]
    assert store.client.redis.hlen(store.keys.build("attempts", "b")) == 0
    assert lane.claim(2, ok=[0]).positions == [1, 2]
    assert lanes.holds_together(store)


def test_given_back_items_bring_tickets(store):
    """Items that are given back return the tickets that are missing now (protocol 2)."""
    lanes.offer(store, 1)
    parts = [lanes.part(prefetch=4)]
    tickets = open_batch(store, count=8, parts=parts)
    for ticket in tickets[1:]:
        assert lanes.Lane(store, ticket).begin(4).state == "go"
    lane = begin(store, tickets[0], 4)
    lanes.offer(store, 4)
    assert lane.finish("stay", give=list(lane.holds)).tickets


def test_retry_with_delay(store, eventually):
    """A retried item holds no slot, and comes back when it is due with its attempts counted (fault C02)."""
    lane = begin(store, open_batch(store, count=1)[0])
    assert lane.finish("free", retry={0: 0.05}).state == "end"
    status = store.reads.status("b")
    assert (status.delayed, status.running, lanes.counters(store)) == (1, 0, {})
    (ticket,) = eventually(lambda: store.scripts.promote_batch("b"))
    reply = lanes.Lane(store, ticket).begin()
    position, attempts, claims, due, call = reply.entries[0]
    assert (position, attempts, claims, call) == (0, 1, 1, False)
    assert due > 1.0
    assert store.client.redis.zscore(store.keys.build("due"), "b") is None


def test_retry_keeps_the_new_call(store, eventually):
    """A retry that changed its arguments runs with them (protocol 3)."""
    lane = begin(store, open_batch(store, count=1)[0])
    finish = {"r": [], "n": [], "y": [[0, 0.0, 1, b"new call"]], "g": [], "m": {}, "late": False}
    lane.send("finish", {**lane.slot, "k": 0, "t": "free", "f": finish}, (b"", b""))
    (ticket,) = eventually(lambda: store.scripts.promote_batch("b"))
    assert lanes.Lane(store, ticket).begin().entries[0][4] == b"new call"


def test_last_outcome_ends_the_batch(store):
    """The outcome that completes the batch carries the mark in its own entry (protocol 3)."""
    lane = begin(store, open_batch(store, count=1)[0])
    reply = lane.finish("stay", ok=[0])
    assert (reply.state, reply.why) == ("end", "over")
    assert lanes.ends(store) == [1]


def test_late_report_of_reaped_items_counts(store):
    """A frozen worker's outcomes count when nobody claimed its items since (protocol 3)."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    reap(store, lane, "lease")
    reply = lane.finish("stay", ok=[0, 1], failed=[2])
    assert (reply.state, reply.late) == ("late", [0, 1, 2])
    assert lanes.statuses_of(store) == {}
    reply = lane.finish("stay", late=True, ok=[0, 1], failed=[2])
    assert (reply.state, reply.why) == ("end", "reaped")
    assert lanes.statuses_of(store) == {0: ["ok"], 1: ["ok"], 2: ["failed"]}
    assert lanes.holds_together(store)
    assert lanes.audit(store, "item.finished")[0].header["late"]


def test_late_report_of_items_claimed_again(store):
    """A late outcome of an item that somebody claimed since is not recorded: one item, one outcome (protocol 3)."""
    lane = begin(store, open_batch(store, count=8)[0], 3)
    other = begin(store, reap(store, lane)[0])
    assert list(other.holds) == [0]
    assert lane.finish("free", ok=[0, 1, 2]).late == [1, 2]
    assert lane.finish("free", late=True, ok=[1, 2]).why == "reaped"
    other.claim(ok=[0])
    assert lanes.statuses_of(store) == {0: ["ok"], 1: ["ok"], 2: ["ok"]}
    assert lanes.holds_together(store)


def test_late_report_of_items_lost_twice(store):
    """Of two lanes that lost the same item only the last one's late outcome counts (protocol 3)."""
    first = begin(store, open_batch(store, count=8)[0], 2)
    second = begin(store, reap(store, first)[0])
    reap(store, second)
    assert list(second.holds) == [0]
    assert first.finish("free", failed=[0, 1]).late == [1]
    assert second.settle(ok=[0]).why == "reaped"
    assert lanes.statuses_of(store) == {0: ["ok"]}
    assert lanes.holds_together(store)


def test_late_report_names_what_still_counts(store):
    """Between the two calls of a late report another lane may claim an item: then the shorter list is told."""
    lane = begin(store, open_batch(store, count=8)[0], 3)
    tickets = reap(store, lane)
    assert lane.finish("free", ok=[0, 1, 2]).late == [0, 1, 2]
    begin(store, tickets[0])
    reply = lane.finish("free", late=True, ok=[0, 1, 2])
    assert (reply.state, reply.late) == ("late", [1, 2])


def test_late_report_of_recorded_items(store):
    """A late outcome of an item that has its outcome changes nothing (invariant I2)."""
    lane = begin(store, open_batch(store, count=2)[0])
    lanes.run_all(store, reap(store, lane))
    before = lanes.snapshot(store)
    assert lane.settle(failed=[0]).why == "reaped"
    assert lanes.snapshot(store) == before


def test_late_report_ends_the_batch(store):
    """A late outcome can be the last one: then it carries the mark, opens the callbacks and voids the new ticket."""
    lane = begin(store, open_batch(store, count=1, callbacks=["success"])[0])
    (ticket,) = reap(store, lane)
    reply = lane.settle(ok=[0])
    assert (reply.why, [hidden.batch for hidden in reply.tickets]) == ("over", ["b@success.0"])
    assert len(lanes.ends(store)) == 1
    assert lanes.Lane(store, ticket).begin().why == "over"
    assert lanes.counters(store) == {"t:q": 1}


def test_late_finish_leaves_nothing_in_the_list(store):
    """An item with a late outcome is taken out of the list of those that came back."""
    lane = begin(store, open_batch(store, count=8)[0], 3)
    reap(store, lane)
    lane.settle(failed=[1])
    assert store.client.redis.lrange(store.keys.build("back", "b", 0), 0, -1) == [b"0", b"2"]


def test_late_failure_and_retry_failed(store):
    """An item whose failure came late is claimed once after `retry_failed`, not twice (invariant I2)."""
    lane = begin(store, open_batch(store, count=8)[0], 3)
    reap(store, lane)
    lane.settle(failed=[1])
    retried, tickets = store.scripts.retry_failed("b", [(1, 0, 1)], round_=1, actor="me")
    assert (retried, lanes.holds_together(store)) == (1, True)
    lanes.run_all(store, [*tickets, *store.scripts.promote_batch("b"), *_tickets_out(store)])
    assert {position: found for position, found in lanes.statuses_of(store).items() if found != ["ok"]} == {
        1: ["failed", "ok"]
    }
    assert store.reads.status("b").state is BatchState.COMPLETED


def _tickets_out(store):
    return [
        ticket
        for slot in store.client.redis.hkeys(store.keys.build("slots", "b"))
        for ticket in store.scripts.reissue_ticket("b", int(slot), reissue=True)
    ]


def test_late_report_of_an_earlier_round(store):
    """A late outcome from before `retry_failed` is not taken for one of the new round (protocol 3)."""
    frozen = begin(store, open_batch(store, count=2)[0])
    other = begin(store, reap(store, frozen)[0])
    ordinal = 1
    other.finish("stay", failed=[0])
    store.scripts.retry_failed("b", [(0, 0, ordinal)], round_=1, actor="me")
    assert frozen.finish("free", ok=[0]).state == "end"
    assert lanes.statuses_of(store) == {0: ["failed"]}
    assert lanes.holds_together(store)


def test_late_report_does_not_take_a_delayed_item(store):
    """Items that wait for their time belong to nobody: a report about one that was never claimed is dropped."""
    lane = begin(store, open_batch(store, count=2, delayed={1: 9e9})[0])
    reap(store, lane)
    assert lane.finish("free", ok=[1]).state == "end"
    assert lanes.statuses_of(store) == {}
    assert lanes.holds_together(store)


def test_leaving_lane_brings_the_missing_ticket(store):
    """A lane that goes while items are left returns the ticket for the next one (protocol 2)."""
    (ticket,) = open_batch(store, count=9)
    (again,) = begin(store, ticket).finish("free", ok=[0]).tickets
    assert again.generation > ticket.generation


def test_once(store):
    """A repeated report records its outcomes once; a lower sequence is refused (protocol 4)."""
    lane = begin(store, open_batch(store, count=9)[0], 4)
    reply = lane.finish("stay", ok=[0], failed=[1], retry={2: 60.0}, give=[3])
    after = lanes.snapshot(store)
    assert lane.repeat().raw == reply.raw
    with pytest.raises(Refusal, match="STALE"):
        lane.repeat(behind=1)
    assert lanes.snapshot(store) == after


def test_late_once(store):
    """A repeated late report records its outcomes once (protocol 4)."""
    lane = begin(store, open_batch(store, count=9)[0], 4)
    reap(store, lane)
    lane.settle(ok=[0, 1])
    after = lanes.snapshot(store)
    lane.repeat()
    assert lanes.snapshot(store) == after


def test_audit_of_a_retry(store):
    """A retry has its entry with position, delay and attempts (invariant I5)."""
    begin(store, open_batch(store, count=9)[0]).finish("stay", retry={0: 60.0})
    (told,) = lanes.audit(store, "item.retried")
    assert told.header["y"][0][:3] == [0, 60, 1]


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lane = begin(store, open_batch(store)[0])
    lanes.assert_layout(store, lambda: lane.finish("stay", ok=[0]))


def test_unknown_batch(store):
    """A report to a batch that is gone ends the lane."""
    lane = begin(store, open_batch(store)[0])
    store.client.redis.delete(store.keys.record("b"))
    assert lane.finish("stay", ok=[0]).why == "gone"
