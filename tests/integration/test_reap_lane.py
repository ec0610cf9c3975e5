"""`reap_lane`: a lane is lost, and its items are settled."""

from __future__ import annotations

import pytest

from poimen_tasks.model import BatchState
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch, reap


def test_shared_claim_blames_nobody(store):
    """Items of a shared claim go back in order, marked to run alone, with no loss counted (protocol 3, fault B02)."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    (ticket,) = reap(store, lane)
    again = lanes.Lane(store, ticket)
    reply = again.begin(4)
    assert reply.positions == [0], "an item that runs alone is claimed alone"
    assert reply.entries[0][1] == 0
    assert [again.claim(4, ok=list(again.holds)).positions for _ in range(4)] == [[1], [2], [3], [4, 5]]
    assert lanes.holds_together(store)


@pytest.mark.parametrize("most", [1, 3])
def test_poison_item_fails_after_its_losses(store, most):
    """An item under which workers die fails as `WorkerLost` after `max_lost` losses (fault B03)."""
    tickets = open_batch(store, count=1, parts=[lanes.part(max_lost=most)])
    for _ in range(most):
        assert tickets
        tickets = reap(store, begin(store, tickets[0]))
    assert store.reads.status("b").state is BatchState.FAILED
    (columns,) = lanes.outcomes(store)
    assert (columns.statuses, columns.errors, columns.attempts) == ([1], [[0, "WorkerLost", "gone", ""]], [most])
    assert len(lanes.ends(store)) == 1


def test_hard_limit_fails_a_solo_item(store):
    """The hard time limit fails the item that ran alone, at once (fault B11)."""
    reap(store, begin(store, open_batch(store, count=1)[0]), "timeout")
    (columns,) = lanes.outcomes(store)
    assert columns.errors[0][1] == "TimeLimitExceeded"


def test_hard_limit_in_a_shared_claim(store):
    """The hard limit in a shared claim fails nobody yet (protocol 3)."""
    reap(store, begin(store, open_batch(store, count=8)[0], 4), "timeout")
    assert lanes.statuses_of(store) == {}
    assert lanes.field_of(store, "pending") == 8


def test_lane_without_items(store):
    """A lane that died between its items leaves its slot to the next one."""
    lane = begin(store, open_batch(store, count=4)[0])
    lane.finish("stay", ok=[0])
    (ticket,) = reap(store, lane)
    assert ticket.generation > lane.ticket.generation
    assert lanes.counters(store) == {"t:q": 1}


def test_lease_that_has_not_ended(store):
    """A lane whose lease was renewed meanwhile is not reaped by the keeper (protocol 5)."""
    lane = begin(store, open_batch(store)[0])
    before = lanes.snapshot(store)
    assert store.scripts.reap_lane(*lane.ticket[:3], why="lease", overdue_only=True) == (False, [], [], [], [])
    assert lanes.snapshot(store) == before


def test_lease_that_has_ended(store, eventually):
    """A lane whose lease ended is reaped (fault B01, fault C01)."""
    lane = begin(store, open_batch(store)[0], lease=0.01)
    reaped, tickets, *_ = eventually(
        lambda: (found := store.scripts.reap_lane(*lane.ticket[:3], why="lease", overdue_only=True))[0] and found
    )
    assert (reaped, len(tickets)) == (True, 1)


def test_reaped_lane_has_no_slot(store):
    """A reaped lane that wakes up is told so, and takes nothing."""
    lane = begin(store, open_batch(store, count=8)[0])
    reap(store, lane)
    reply = lane.claim(4)
    assert (reply.state, reply.why) == ("end", "reaped")


@pytest.mark.parametrize("which", ["generation", "slot", "batch", "ticket"])
def test_nobody_there(store, which):
    """Reaping a lane that is not there changes nothing but its stray lease."""
    (ticket,) = open_batch(store)
    lane = begin(store, ticket) if which != "ticket" else None
    key = {"generation": ("b", 0, 99), "slot": ("b", 7, 1), "batch": ("nobody", 0, 1), "ticket": ticket[:3]}[which]
    store.client.redis.zadd(store.keys.build("leases"), {f"{key[0]}\t{key[1]}\t{key[2]}": 1.0})
    assert store.scripts.reap_lane(*key, why="lost") == (False, [], [], [], [])
    assert [lease[:3] for lease in store.reads.leases()] == ([lane.ticket[:3]] if lane else [])
    assert lanes.audit(store, "lane.lost") == []


def test_reap_ends_the_batch_with_its_callbacks(store):
    """A batch that ends by a lost lane has its mark, its callbacks and no slot (fault A03)."""
    tickets = open_batch(store, count=1, parts=[lanes.part(max_lost=1)], callbacks=["success", "failure", "complete"])
    hidden = reap(store, begin(store, tickets[0]))
    assert sorted(ticket.batch for ticket in hidden) == ["b@complete.0", "b@failure.0"]
    assert len(lanes.ends(store)) == 1
    lanes.run_all(store, hidden)
    assert lanes.counters(store) == {}


def test_reap_under_a_cancelled_batch(store):
    """What a lost lane held in a cancelled batch is cancelled, and the batch ends (promise D8)."""
    lane = begin(store, open_batch(store, count=8, callbacks=["failure"])[0], 4)
    store.scripts.cancel_batch("b", reason="stop", actor="me", terminate=True)
    (hidden,) = reap(store, lane)
    assert hidden.batch == "b@failure.0"
    assert store.reads.status("b").cancelled == 8
    assert len(lanes.ends(store)) == 1


@pytest.fixture
def large(store):
    """A lane that holds 512 items of a cancelled batch, all others of which are settled."""
    lanes.offer(store, 1)
    first, second = open_batch(store, count=1024)
    lane = begin(store, first, 512)
    lanes.run_all(store, [second])
    assert (len(lane.holds), lanes.field_of(store, "pending")) == (512, 0)
    assert store.scripts.cancel_batch("b", reason="stop", actor="me", terminate=True)[b"left"] == 0
    return lane


def _keep(store):
    """What the keeper does for batches that want something."""
    while hungry := lanes.offer(store, 1)[b"hungry"]:
        for batch in hungry:
            store.scripts.promote_batch(batch.decode())


def test_large_claim_under_a_cancelled_batch(store, large):
    """When one call cannot settle all that came back to a cancelled batch, the keeper goes on (protocol 4)."""
    reap(store, large)
    _keep(store)
    assert store.reads.status("b").state is BatchState.CANCELLED
    assert len(lanes.ends(store)) == 1


def test_given_back_large_claim_under_a_cancelled_batch(store, large):
    """The same for a lane that gives all of a large claim back and leaves."""
    large.finish("free", give=list(large.holds))
    _keep(store)
    assert store.reads.status("b").state is BatchState.CANCELLED


def test_partition_of_returned_items(store):
    """What comes back stays in its partition and keeps its custom id (protocol 1)."""
    parts = [lanes.part("q1"), lanes.part("q2", max_lost=1)]
    tickets = open_batch(store, count=4, parts=parts, of=lambda position: position // 2, ids=list("wxyz"))
    lane = begin(store, next(ticket for ticket in tickets if ticket.queue == "q2"))
    reap(store, lane)
    assert (lanes.outcomes(store)[0].ids, lanes.outcomes(store)[0].ranges) == (["y"], [2, 3])
    assert lanes.holds_together(store)


def test_audit(store):
    """The loss of the lane and the end of an item by it are separate entries (invariant I5)."""
    reap(store, begin(store, open_batch(store, count=1, parts=[lanes.part(max_lost=1)])[0]))
    lane, item = lanes.audit(store, "lane.lost", "item.lost")
    assert (lane.header["why"], lane.positions, lane.header["failed"]) == ("lost", [0], 1)
    assert (item.header["type"], item.positions) == ("WorkerLost", [0])


def test_once(store):
    """The same request twice reaps once; a lower sequence is refused (protocol 4)."""
    lane = begin(store, open_batch(store, count=8)[0], 4)
    lanes.assert_once(store, lambda: reap(store, lane))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lane = begin(store, open_batch(store)[0])
    lanes.assert_layout(store, lambda: reap(store, lane))


def _pause_past_grace(store, *, terminate):
    """Pause so that the processes are to be ended by now."""
    store.pauses.pause_scope("w:w", reason="", actor="me", grace=0.0, terminate=terminate)
    key = store.keys.build("pauses")
    store.client.redis.hset(key, "w:w", f"1|1.5|{int(terminate)}")


@pytest.mark.parametrize("why", ["paused", "lost", "lease"])
def test_ended_by_a_pause(store, why):
    """A lane that a pause has ended blames nobody: its items are pending as if not begun, and the log says so."""
    lane = begin(store, open_batch(store, count=5)[0], 2)
    _pause_past_grace(store, terminate=True)
    assert lanes.reap(store, lane, why) == []
    assert lanes.audit(store, "lane.lost") == []
    (told,) = lanes.audit(store, "lane.stopped")
    assert told.positions == [0, 1]
    assert store.client.redis.hlen(store.keys.build("attempts", "b")) == 0
    assert lanes.holds_together(store)
    (ticket,) = store.pauses.resume_scope("w:w", reason="", actor="me").tickets
    assert list(begin(store, ticket, 2).holds) == [0, 1]


def test_lost_while_paused(store):
    """A process that dies under a pause which does not end it is a loss; what it held waits for the resume."""
    lane = begin(store, open_batch(store, count=5)[0])
    _pause_past_grace(store, terminate=False)
    assert lanes.reap(store, lane) == []
    assert len(lanes.audit(store, "lane.lost")) == 1
    assert store.client.redis.hlen(store.keys.build("attempts", "b")) == 1
