"""`cancel_items`: single items are revoked; waiting ones get their outcome, running ones are told."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import InvalidArgument
from poimen_tasks.model import BatchState
from poimen_tasks.store.ranges import expand_ranges
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def revoke(store, *positions, batch="b", reason="not wanted", signal=0):
    return store.scripts.cancel_items(batch, positions, reason=reason, actor="me", signal=signal)


def renewed(store, lane):
    (answer,) = store.scripts.renew_leases([lane.ticket[:3]], lease=60.0)
    return answer


def claim_all(store, tickets):
    """The positions that lanes run, until the batch is over."""
    ran = []
    for ticket in tickets:
        lane = lanes.Lane(store, ticket)
        reply = lane.begin(64)
        while reply.state == "go":
            ran += reply.positions
            reply = lane.claim(64, ok=list(lane.holds))
    return ran


def test_waiting_items_get_their_outcome(store):
    """Fresh, returned and delayed items are cancelled at once as `Revoked`; the others run (fault E06)."""
    tickets = open_batch(store, count=10, delayed={8: 9e9, 9: 9e9})
    tickets += lanes.reap(store, begin(store, tickets.pop(0), 2))
    reply = revoke(store, 1, 4, 8)
    assert (reply.settled, reply.running, reply.over) == ([1, 2, 4, 5, 8, 9], [], False)
    (columns,) = lanes.outcomes(store)
    assert columns.errors == [[at, "Revoked", "not wanted", ""] for at in range(3)]
    status = store.reads.status("b")
    assert (status.cancelled, status.pending, status.delayed) == (3, 6, 1)
    assert lanes.holds_together(store)
    assert sorted(claim_all(store, tickets)) == [0, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("positions", [(0,), (3,), (7,), (3, 4, 5), (0, 2, 4, 6), tuple(range(8))])
def test_every_place_of_a_range(store, positions):
    """An item is taken out of the middle or either end of a range, and what is left stays in order."""
    tickets = open_batch(store, count=8)
    revoke(store, *positions)
    assert lanes.holds_together(store)
    assert claim_all(store, tickets) == [position for position in range(8) if position not in positions]


def test_among_many_ranges(store):
    """Items of many partitions, also behind ranges that were given back out of order, are found."""
    parts = [lanes.part(activity=f"acts.{name}") for name in "xyz"]
    lanes.offer(store, 8)
    tickets = open_batch(store, count=600, parts=parts, of=lambda position: position % 3)
    first, second = (begin(store, ticket, 20) for ticket in tickets[:2])
    held = [*first.holds, *second.holds]
    first.finish("stay", give=list(first.holds))
    second.finish("stay", give=list(second.holds))
    wanted = [*held[::7], *range(100, 500, 13)]
    reply = revoke(store, *wanted)
    assert list(expand_ranges(reply.settled)) == sorted(set(wanted))
    assert lanes.holds_together(store)


def test_a_running_item_is_marked_and_may_end(store):
    """A lane keeps what it holds; the outcome that it reports counts, and the mark is gone with it."""
    lane = begin(store, open_batch(store, count=4)[0])
    reply = revoke(store, 0)
    assert (reply.settled, reply.running) == ([], [0, 1])
    assert store.reads.field("b", "marks") != [None]
    lane.claim(1, ok=[0])
    assert lanes.statuses_of(store) == {0: ["ok"]}
    assert store.reads.field("b", "marks") == [None]


@pytest.mark.parametrize("how", ["retry", "give", "forget", "reap", "lost"])
def test_a_marked_item_does_not_run_again(store, how):
    """Retried, given back, forgotten or reaped, a marked item gets its outcome; its neighbour goes on."""
    (ticket,) = open_batch(store, count=2, parts=[lanes.part(max_lost=1)], limit=1)
    lane = begin(store, ticket, 1 if how == "lost" else 2)
    if lane.holds.keys() == {0}:
        lane.claim(1, give=[0])
    both = {0, 1} <= lane.holds.keys()
    revoke(store, 0)
    match how:
        case "retry":
            lane.finish("free", retry={0: 60.0}, give=[1] if both else ())
        case "give":
            lane.finish("free", give=[0, 1] if both else [0])
        case "forget":
            lane.finish("free")
        case _:
            lanes.reap(store, lane)
    assert lanes.statuses_of(store) == {0: ["cancelled"]}
    assert lanes.outcomes(store)[0].errors[0][1] == "Revoked"
    status = store.reads.status("b")
    assert (status.pending, status.delayed, status.running) == (1, 0, 0)
    assert lanes.holds_together(store)
    assert store.reads.field("b", "marks") == [None]


def test_the_last_item_ends_the_batch(store):
    """Revoking what is left ends the batch as failed, opens its callbacks, and leaves nothing behind."""
    tickets = open_batch(store, count=3, callbacks=["success", "failure"], delayed={2: 9e9})
    lane = begin(store, tickets[0])
    lane.finish("stay", ok=[0])
    reply = revoke(store, 1, 2)
    assert reply.over
    assert [ticket.batch for ticket in reply.tickets] == ["b@failure.0"]
    status = store.reads.status("b")
    assert (status.state, status.succeeded, status.cancelled) == (BatchState.FAILED, 1, 2)
    assert len(lanes.ends(store)) == 1
    lanes.run_all(store, reply.tickets)
    redis = store.client.redis
    assert all(redis.ttl(key) > 0 for key in redis.keys(store.keys.record("b") + "*"))
    assert redis.exists(*(store.keys.build(name) for name in ("leases", "tickets", "due", "hungry"))) == 0


def test_a_marked_item_that_comes_back_last_ends_the_batch(store):
    """The outcome that a marked item gets when it comes back is the entry that ends the batch, once."""
    lane = begin(store, open_batch(store, count=2)[0], 2)
    lane.claim(1, ok=list(lane.holds)) if len(lane.holds) == 1 else None
    held = list(lane.holds)
    revoke(store, held[-1])
    assert lane.finish("free", ok=held[:-1], retry={held[-1]: 1.0}).why == "over"
    assert len(lanes.ends(store)) == 1
    assert lanes.ends(store)[0] == lanes.field_of(store, "ordinal")


def test_signal(store):
    """With a signal the lane that holds the item alone is to be ended; a lane that went on is not."""
    lane = begin(store, open_batch(store, count=4)[0])
    revoke(store, 0)
    assert renewed(store, lane) == "ok"
    assert revoke(store, 0, signal=15).running == [0, 1]
    assert renewed(store, lane) == "signal:15:0"
    assert revoke(store, 0, signal=15).running == []
    lane.claim(1, ok=[0])
    assert renewed(store, lane) == "ok"


def test_signal_waits_until_the_item_is_alone(store):
    """Nobody knows which of several items runs: the signal is due when the others were given back or are over."""
    lane = begin(store, open_batch(store, count=40)[0], 3)
    assert list(lane.holds) == [0, 1, 2]
    revoke(store, 1, signal=9)
    assert renewed(store, lane) == "ok"
    lane.finish("stay", ok=[0], give=[2])
    assert renewed(store, lane) == "signal:9:1"
    tickets = lanes.reap(store, lane)
    assert lanes.statuses_of(store) == {0: ["ok"], 1: ["cancelled"]}
    assert sorted(claim_all(store, tickets)) == list(range(2, 40))
    assert not [name for name in store.client.redis.hkeys(store.keys.record("b")) if name.startswith(b"kill:")]


def test_over_unknown_and_repeated(store):
    """What is over or never was is left alone, and so is what was revoked already."""
    lane = begin(store, open_batch(store, count=4, seal=False)[0])
    lane.claim(1, ok=[0])
    revoke(store, 2)
    before = lanes.snapshot(store)
    assert revoke(store, 0, 2, 4, 999, -1)[:2] == ([], [])
    assert lanes.snapshot(store) == before
    assert lanes.statuses_of(store) == {0: ["ok"], 2: ["cancelled"]}


def test_after_the_end(store):
    """A batch that is over says so and changes nothing."""
    lanes.run_all(store, open_batch(store, count=1))
    before = lanes.snapshot(store)
    assert revoke(store, 0) == ([], [], True, [])
    assert lanes.snapshot(store) == before


def test_in_a_cancelled_batch(store):
    """A running item of a cancelled batch is revoked all the same; no item gets two outcomes."""
    lane = begin(store, open_batch(store, count=3)[0])
    store.scripts.cancel_batch("b", reason="stop", actor="me", terminate=False)
    assert revoke(store, 0, 1).running == [0, 1]
    assert lane.finish("free", give=[0]).why == "over"
    assert lanes.statuses_of(store) == {position: ["cancelled"] for position in range(3)}


def test_audit(store):
    """Marking and settling each have an entry with actor and reason (invariant I5)."""
    lane = begin(store, open_batch(store, count=4)[0])
    revoke(store, 0, 2, signal=9)
    (told,) = lanes.audit(store, "item.revoking")
    assert (told.header["a"], told.header["reason"], told.header["signal"], told.positions) == (
        "me",
        "not wanted",
        9,
        [0],
    )
    lanes.reap(store, lane)
    assert [entry.positions for entry in lanes.audit(store, "item.revoked")] == [[2], [0]]
    assert {entry.header["a"] for entry in lanes.audit(store, "item.revoked")} == {"me"}


def test_custom_ids(store):
    """Outcomes of revoked items carry their ids."""
    open_batch(store, count=3, ids=["a", "b", "c"])
    revoke(store, 1)
    assert lanes.outcomes(store)[0].ids == ["b"]


def test_at_most_500_items(store):
    """More than 500 items at once are refused before anything is written (protocol 4)."""
    open_batch(store, count=600)
    before = lanes.snapshot(store)
    with pytest.raises(InvalidArgument, match="at most 500"):
        revoke(store, *range(501))
    assert lanes.snapshot(store) == before
    assert revoke(store, *range(500)).settled == [0, 500]


def test_once(store):
    """The same request twice changes things once; a lower sequence is refused (protocol 4)."""
    begin(store, open_batch(store, count=8)[0])
    lanes.assert_once(store, lambda: revoke(store, 0, 3, signal=9))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: revoke(store, 0))


def test_unknown_batch(store):
    """A batch that is not known is named."""
    lanes.assert_unknown(store, lambda: revoke(store, 0))
