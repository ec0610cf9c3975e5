"""`cancel_batch`: no item starts any more, and each that had not started gets its outcome."""

from __future__ import annotations

import pytest

from poimen_tasks.model import BatchState
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def cancel(store, batch="b", *, reason="stop", terminate=False):
    return store.scripts.cancel_batch(batch, reason=reason, actor="me", terminate=terminate)


def test_everything_that_waits_gets_its_outcome(store):
    """Pending, returned and delayed items are cancelled, in every partition, and the batch ends (promise D8)."""
    parts = [lanes.part("q1"), lanes.part("q2")]
    tickets = open_batch(store, count=8, parts=parts, of=lambda position: position % 2, delayed={6: 9e9, 7: 9e9})
    lanes.reap(store, begin(store, tickets[0], 2))
    cancel(store)
    assert lanes.statuses_of(store) == {position: ["cancelled"] for position in range(8)}
    assert {error[1]: error[2] for columns in lanes.outcomes(store) for error in columns.errors} == {
        "Cancelled": "stop"
    }
    status = store.reads.status("b")
    assert (status.state, status.cancelled, status.finished) == (BatchState.CANCELLED, 8, 8)
    assert len(lanes.ends(store)) == 1
    assert lanes.holds_together(store)


def test_claims_stop_at_once(store):
    """Nothing is claimed after the flag is up, though items still wait to be settled (protocol 4)."""
    lane = begin(store, open_batch(store, count=2000)[0])
    assert cancel(store)[b"left"] == 1499
    reply = lane.claim(9, ok=[0])
    assert (reply.state, reply.why, reply.positions) == ("end", "cancelled", [])
    assert lanes.holds_together(store)


def test_at_most_500_items_a_call(store):
    """A large batch is settled 500 items a call (protocol 4)."""
    open_batch(store, count=1100)
    assert [cancel(store)[b"left"] for _ in range(3)] == [600, 100, 0]
    assert [columns.ranges for columns in lanes.outcomes(store)] == [[0, 500], [500, 1000], [1000, 1100]]
    assert len(lanes.ends(store)) == 1


def test_running_items_finish(store):
    """An item that runs is not taken away: its outcome counts, and ends the batch (promise D8)."""
    lane = begin(store, open_batch(store, count=4)[0])
    assert cancel(store)[b"over"] == 0
    assert lane.finish("stay", ok=[0]).raw[b"over"] is True
    assert lanes.statuses_of(store)[0] == ["ok"]
    assert store.reads.status("b").state is BatchState.CANCELLED


def test_retry_and_return_after_the_flag(store):
    """What is retried or given back after the flag was raised is cancelled in the same step."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    cancel(store)
    assert lane.finish("stay", retry={0: 60.0}, give=[2, 3]).raw[b"cancel"] is True
    assert lane.finish("free", ok=[1]).why == "over"
    assert {p: s for p, s in lanes.statuses_of(store).items() if s != ["cancelled"]} == {1: ["ok"]}
    assert lanes.counters(store) == {}
    assert store.client.redis.exists(store.keys.build("due")) == 0


def test_tickets_are_withdrawn(store):
    """The tickets of a cancelled batch are void at once."""
    lanes.offer(store, 3)
    first, second, *_ = open_batch(store, count=9)
    begin(store, first)
    cancel(store)
    assert lanes.counters(store) == {"l:q": 1}
    assert lanes.Lane(store, second).begin().why == "stale"


def test_open_batch_is_sealed(store):
    """Cancelling seals: a batch that its producer had not finished ends too."""
    open_batch(store, count=0, seal=False)
    assert cancel(store)[b"over"] == 1
    assert store.reads.status("b").state is BatchState.CANCELLED
    assert len(lanes.ends(store)) == 1


@pytest.mark.parametrize("done", [0, 3])
def test_callbacks(store, done):
    """A cancelled batch never calls `on_success`, even when all that was written succeeded (fault A14)."""
    tickets = open_batch(store, count=3, seal=False, callbacks=["success", "failure", "complete"])
    if done:
        lanes.run_all(store, tickets)
    assert sorted(ticket.batch for ticket in lanes.tickets_of(cancel(store))) == ["b@complete.0", "b@failure.0"]


def test_nothing_is_left_behind(store):
    """When callbacks are settled every key of the batch expires, and the global lists are empty (promise D8)."""
    open_batch(store, count=600, callbacks=["failure"], delayed={5: 9e9})
    cancel(store)
    lanes.run_all(store, lanes.tickets_of(cancel(store)))
    redis = store.client.redis
    assert all(redis.ttl(key) > 0 for key in redis.keys(store.keys.record("b") + "*"))
    assert redis.exists(*(store.keys.build(name) for name in ("leases", "tickets", "due", "hungry"))) == 0
    assert lanes.counters(store) == {}


def test_again_after_the_end(store):
    """Cancelling a batch that is over says so and changes nothing."""
    lanes.run_all(store, open_batch(store, count=1))
    before = lanes.snapshot(store)
    reply = cancel(store, terminate=True)
    assert (reply[b"already"], reply[b"left"]) == (True, 0)
    assert lanes.snapshot(store) == before
    assert store.reads.status("b").state is BatchState.COMPLETED


def test_audit(store):
    """The cancellation is audited once with actor and reason, the items in their own entries (invariant I5)."""
    open_batch(store, count=600)
    cancel(store)
    cancel(store)
    (told,) = lanes.audit(store, "batch.cancelling")
    assert (told.header["a"], told.header["reason"]) == ("me", "stop")
    items = lanes.audit(store, "item.cancelled")
    assert [len(entry.positions) for entry in items] == [500, 100]
    assert len(lanes.audit(store, "batch.cancelled")) == 1


def test_terminate_later_is_audited(store):
    """Asking later for the processes to be killed is a change with an entry of its own (invariant I5)."""
    begin(store, open_batch(store, count=2)[0])
    for terminate in (False, True, True):
        cancel(store, terminate=terminate)
    assert [bool(told.header["terminate"]) for told in lanes.audit(store, "batch.cancelling")] == [False, True]


def test_once(store):
    """The same request twice settles 500 items, not 1,000; a lower sequence is refused (protocol 4)."""
    open_batch(store, count=1500)
    lanes.assert_once(store, lambda: cancel(store))
    assert lanes.field_of(store, "cancelled") == 500


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: cancel(store))


def test_unknown_batch(store):
    """A batch that is not known is named."""
    lanes.assert_unknown(store, lambda: cancel(store))
