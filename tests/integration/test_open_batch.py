"""`open_batch`: the record, its first slice and perhaps its seal, in one step."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import DuplicateItem, InvalidArgument
from poimen_tasks.model import BatchState
from tests.integration import lanes
from tests.integration.lanes import open_batch


def test_opens_with_first_ticket(store):
    """A batch and its first ticket come out of one script: work can begin at once (protocol 0, promise D1)."""
    (ticket,) = open_batch(store, count=3)
    assert ticket == ("b", 0, 1, "q", 0)
    status = store.reads.status("b")
    assert (status.total, status.pending, status.state) == (3, 3, BatchState.OPEN)
    assert lanes.counters(store) == {"t:q": 1}
    assert lanes.holds_together(store)


def test_tickets_follow_capacity(store):
    """More than one ticket goes out only up to twice the slots that workers offer on the queue (protocol 2)."""
    lanes.offer(store, 2)
    assert len(open_batch(store, "a", 100)) == 4
    assert len(open_batch(store, "b", 100)) == 1, "one ticket a batch, whatever the others have"
    assert lanes.counters(store) == {"t:q": 5}
    assert store.client.redis.zrange(store.keys.build("hungry"), 0, -1) == [b"a", b"b"]


def test_tickets_follow_limit_and_items(store):
    """No more tickets than the limit, and no more than items."""
    lanes.offer(store, 50)
    assert len(open_batch(store, "a", 100, limit=3)) == 3
    assert len(open_batch(store, "b", 2)) == 2


def test_partitions_get_tickets_of_their_queues(store):
    """Each queue of a batch gets its own ticket (protocol 1)."""
    parts = [lanes.part("q1"), lanes.part("q2"), lanes.part("q1", "acts.other")]
    tickets = open_batch(store, count=6, parts=parts, of=lambda position: position % 3)
    assert sorted((ticket.queue, ticket.partition) for ticket in tickets) == [("q1", 0), ("q2", 1)]
    assert lanes.holds_together(store)


def test_many_partitions(store):
    """A batch of hundreds of partitions runs to its end (protocol 1)."""
    parts = [lanes.part("q", f"acts.a{number}") for number in range(300)]
    tickets = open_batch(store, count=600, parts=parts, of=lambda position: position % 300)
    assert lanes.holds_together(store)
    lanes.run_all(store, tickets)
    assert store.reads.status("b").state is BatchState.COMPLETED
    assert lanes.counters(store) == {}


def test_too_many_partitions(store):
    """More partitions than a step can look at are refused before anything is written (protocol 4)."""
    parts = [lanes.part("q", f"acts.a{number}") for number in range(9000)]
    with pytest.raises(InvalidArgument, match="more than 1,000 combinations"):
        open_batch(store, count=1, parts=parts)
    assert lanes.snapshot(store) == {}
    open_batch(store, count=256, seal=False, parts=parts[:1000])
    with pytest.raises(InvalidArgument, match="more than 1,000 combinations"):
        lanes.append(store, 256, 1, all_parts=parts)
    assert store.reads.status("b").total == 256


def test_existing_is_described(store):
    """An existing batch is described and not touched: a producer can see what it joins."""
    open_batch(store, count=3, seal=False)
    before = lanes.snapshot(store)
    opened, parts, cancelled = store.scripts.open_batch(
        "b", record=lanes.record(workflow="other"), parts=[lanes.part("z")], piece=lanes.make_slice(0, 9), seal=True
    )
    assert (opened.existed, opened.total, opened.sealed, opened.over) == (True, 3, False, False)
    assert (opened.workflow, opened.stage, opened.tickets) == ("w", "s", [])
    assert (parts, cancelled) == ([lanes.PART], False)
    assert lanes.snapshot(store) == before


def test_empty_batch_is_over_at_once(store):
    """An empty sealed batch is over at once: mark, callbacks, end of batch (fault A09, promise D10)."""
    tickets = open_batch(store, count=0, callbacks=["success", "failure", "complete"])
    assert store.reads.status("b").state is BatchState.COMPLETED
    assert len(lanes.ends(store)) == 1
    assert sorted(ticket.batch for ticket in tickets) == ["b@complete.0", "b@success.0"]
    assert [told.kind for told in lanes.audit(store, batch="b")] == [
        "batch.opened",
        "batch.sealed",
        "batch.completed",
        "callback.opened",
        "callback.opened",
    ]


def test_empty_batch_expires(store):
    """An empty batch without callbacks gets its retention at once (protocol 6)."""
    open_batch(store, count=0, retention=7.0)
    assert 0 < store.client.redis.ttl(store.keys.record("b")) <= 7


def test_empty_open_batch_waits(store):
    """An empty batch that is not sealed is open and asks for no ticket."""
    assert open_batch(store, count=0, seal=False) == []
    assert store.reads.status("b").state is BatchState.OPEN


def test_delayed_items_take_no_ticket(store):
    """A delayed item holds no slot and no message (invariant I6, fault C02)."""
    due = store.reads.now() + 600
    assert open_batch(store, count=2, delayed={0: due, 1: due}) == []
    status = store.reads.status("b")
    assert (status.pending, status.delayed) == (0, 2)
    assert store.client.redis.zscore(store.keys.build("due"), "b") == pytest.approx(due)
    assert lanes.holds_together(store)


def test_big_calls_out_of_line(store):
    """Calls that are too large for their chunk are stored beside it (protocol 0)."""
    piece = lanes.make_slice(0, 3, big=[(1, b"large"), (2, b"larger")])
    store.scripts.open_batch("b", record=lanes.record(), parts=[lanes.PART], piece=piece, seal=True)
    assert [store.reads.big_call("b", position) for position in (1, 2)] == [b"large", b"larger"]


def test_custom_ids(store):
    """Custom ids lead to positions, and the batch remembers that it has them (protocol 0)."""
    open_batch(store, count=3, ids=["x", "y", "z"])
    assert [store.reads.position_of("b", name) for name in ("x", "z", "1")] == [0, 2, None]


def test_leftover_ids_are_refused_before_anything_is_written(store):
    """An id that is known already under another position is named, and nothing is written (fault A08)."""
    store.client.redis.hset(store.keys.build("ids", "b"), "y", 7)
    before = lanes.snapshot(store)
    with pytest.raises(DuplicateItem, match="'y'"):
        open_batch(store, count=3, ids=["x", "y", "z"])
    assert lanes.snapshot(store) == before


def test_audit(store):
    """Opening writes one entry for the batch and one for its items, with workflow, stage and actor (invariant I5)."""
    open_batch(store, count=3, seal=False)
    opened, appended = lanes.audit(store)
    assert (opened.kind, appended.kind) == ("batch.opened", "batch.appended")
    assert {name: opened.header[name] for name in "bwsa"} == {"b": "b", "w": "w", "s": "s", "a": "tester"}
    assert (appended.header["offset"], appended.header["count"]) == (0, 3)


def test_once(store):
    """The same request twice opens one batch; a lower sequence is refused (protocol 4, fault H07)."""
    lanes.assert_once(store, lambda: open_batch(store, count=300, callbacks=["success"]))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: open_batch(store))
