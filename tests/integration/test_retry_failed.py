"""`retry_failed`: failed items run again in a new round."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import InvalidArgument
from poimen_tasks.model import BatchState
from poimen_tasks.store import Refusal
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def retry(store, *items, round_=1, batch="b"):
    return store.scripts.retry_failed(
        batch, [(position, 0, ordinal) for position, ordinal in items], round_=round_, actor="me"
    )


def failed_batch(store, count=2, **options):
    """A batch that is over, all of whose items failed with the ordinals 1, 2, ...; its callbacks are settled."""
    (ticket,) = open_batch(store, count=count, **options)
    lane = begin(store, ticket)
    reply = None
    for position in range(count):
        reply = lane.claim(failed=[position])
    lanes.run_all(store, reply.tickets)


def test_new_round(store):
    """A batch that is over opens again for its failed items, and ends with a mark of its own (promise D3)."""
    failed_batch(store)
    retried, tickets = retry(store, (0, 1), (1, 2))
    assert retried == 2
    status = store.reads.status("b")
    assert (status.state, status.failed, status.pending) == (BatchState.RUNNING, 0, 2)
    lanes.run_all(store, tickets)
    assert lanes.statuses_of(store) == {0: ["failed", "ok"], 1: ["failed", "ok"]}
    assert store.reads.status("b").state is BatchState.COMPLETED
    assert len(lanes.ends(store)) == 2
    assert lanes.counters(store) == {}


def test_each_round_has_its_callbacks(store):
    """Callbacks are opened exactly once in each round, after what the round ended with (protocol 6)."""
    failed_batch(store, callbacks=["success", "failure", "complete"])
    _, tickets = retry(store, (0, 1), (1, 2))
    lanes.run_all(store, tickets)
    opened = [(told.header["kind"], told.header["round"]) for told in lanes.audit(store, "callback.opened")]
    assert sorted(opened) == [("complete", 0), ("complete", 1), ("failure", 0), ("success", 1)]
    assert [len(lanes.statuses_of(store, f"b@complete.{number}")) for number in (0, 1)] == [1, 1]


def test_keys_live_again(store):
    """Retention stops while the new round runs and starts anew behind it (protocol 6)."""
    failed_batch(store)
    keys = [store.keys.record("b"), store.keys.build("items", "b"), store.keys.build("index", "b")]
    assert all(store.client.redis.ttl(key) > 0 for key in keys)
    _, tickets = retry(store, (0, 1))
    assert [store.client.redis.ttl(key) for key in keys] == [-1, -1, -1]
    assert store.client.redis.exists(store.keys.build("expiring")) == 0
    lanes.run_all(store, tickets)
    assert all(store.client.redis.ttl(key) > 0 for key in store.client.redis.keys(store.keys.record("b") + "*"))


def test_while_the_batch_is_open(store):
    """Failed items of a batch that still runs join it, and the batch ends once (invariant I2)."""
    lane = begin(store, open_batch(store, count=4, callbacks=["success"])[0])
    lane.claim(failed=[0])
    retried, _ = retry(store, (0, 1))
    assert (retried, lanes.holds_together(store)) == (1, True)
    reply = lane.claim(ok=[1])
    assert reply.positions == [0], "what came back goes first"
    reply = lane.claim(ok=[0])
    while reply.state == "go":
        reply = lane.claim(ok=list(lane.holds))
    assert [ticket.batch for ticket in reply.tickets] == ["b@success.1"]
    assert len(lanes.ends(store)) == 1


def test_attempts_begin_anew(store):
    """A retried item has no attempts and no losses behind it."""
    failed_batch(store)
    _, (ticket, *_) = retry(store, (1, 2))
    reply = lanes.Lane(store, ticket).begin()
    assert reply.entries[1][1] == 0


def test_only_the_outcome_named(store):
    """An item whose newest outcome is not the one named is left alone, so two callers retry it once."""
    failed_batch(store)
    assert retry(store, (0, 9))[0] == 0
    assert store.reads.status("b").state is BatchState.FAILED
    assert retry(store, (0, 1))[0] == 1
    assert retry(store, (0, 1))[0] == 0
    assert lanes.holds_together(store)


def test_several_calls_for_one_round(store):
    """More than 500 items come in several calls of one round (protocol 4)."""
    failed_batch(store, 3, callbacks=["complete"])
    _, tickets = retry(store, (0, 1))
    assert retry(store, (1, 2))[0] == 1
    lanes.run_all(store, tickets)
    assert lanes.field_of(store, "round") == 1
    assert len(lanes.audit(store, "callback.opened")) == 2


def test_round_that_ended_between_two_calls(store):
    """When the round ended between two calls, the second begins another one: its callbacks run too (protocol 6)."""
    failed_batch(store, 3, callbacks=["complete"])
    lanes.run_all(store, retry(store, (0, 1))[1])
    retried, tickets = retry(store, (1, 2))
    assert retried == 1
    lanes.run_all(store, tickets)
    assert store.reads.status("b").is_over
    assert store.reads.status("b").callbacks_pending == 0
    assert [told.header["round"] for told in lanes.audit(store, "callback.opened")] == [0, 1, 2]
    assert len(lanes.ends(store)) == 3
    assert retry(store, (2, 3))[0] == 1


def test_round_of_the_future(store):
    """A round that cannot be next is refused."""
    failed_batch(store)
    before = lanes.snapshot(store)
    with pytest.raises(Refusal, match="ROUND 0"):
        retry(store, (0, 1), round_=2)
    assert lanes.snapshot(store) == before


def test_running_callbacks(store):
    """While callbacks of the last round run no new round begins (protocol 6)."""
    begin(store, open_batch(store, count=1, callbacks=["failure"])[0]).claim(failed=[0])
    before = lanes.snapshot(store)
    with pytest.raises(InvalidArgument, match="callbacks of the batch are still running"):
        retry(store, (0, 1))
    assert lanes.snapshot(store) == before


def test_cancelled_batch(store):
    """A cancelled batch is not opened again."""
    begin(store, open_batch(store, count=3)[0]).claim(failed=[0])
    store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)
    with pytest.raises(InvalidArgument, match="was cancelled"):
        retry(store, (0, 1))


def test_audit(store):
    """A retry is audited with actor, items and round (invariant I5)."""
    failed_batch(store)
    retry(store, (0, 1), (1, 2))
    (told,) = lanes.audit(store, "batch.retried")
    assert (told.header["a"], told.positions, told.header["round"]) == ("me", [0, 1], 1)


def test_once(store):
    """The same request twice retries once; a lower sequence is refused (protocol 4)."""
    failed_batch(store)
    lanes.assert_once(store, lambda: retry(store, (0, 1), (1, 2)))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    failed_batch(store)
    lanes.assert_layout(store, lambda: retry(store, (0, 1)))


def test_unknown_batch(store):
    """A batch that is not known is named."""
    lanes.assert_unknown(store, lambda: retry(store, (0, 1)))


def test_a_round_of_several_calls_ends_with_the_last(store):
    """While more calls follow the batch does not end, and its callbacks run once, after the last one (protocol 6)."""
    failed_batch(store, 3, callbacks=["complete"])
    retried, tickets = store.scripts.retry_failed("b", [(0, 0, 1), (1, 0, 2)], round_=1, actor="me", more=True)
    assert retried == 2
    lanes.run_all(store, tickets)
    assert store.reads.status("b").state is BatchState.RUNNING
    retried, tickets = retry(store, (2, 3))
    assert retried == 1
    lanes.run_all(store, tickets)
    assert store.reads.status("b").state is BatchState.COMPLETED
    opened = [(told.header["kind"], told.header["round"]) for told in lanes.audit(store, "callback.opened")]
    assert opened == [("complete", 0), ("complete", 1)]


def test_a_last_call_that_finds_all_done_ends_the_round(store):
    """When what the earlier calls put back is over already, the last call itself ends the batch (protocol 6)."""
    failed_batch(store, 2)
    _, tickets = store.scripts.retry_failed("b", [(0, 0, 1)], round_=1, actor="me", more=True)
    lanes.run_all(store, tickets)
    retried, tickets = retry(store, (1, 99))
    assert (retried, tickets) == (0, [])
    assert store.reads.status("b").state is BatchState.FAILED
    assert len(lanes.ends(store)) == 2
