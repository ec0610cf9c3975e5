"""`save_checkpoint`: a running body saves its state."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch
from tests.integration.test_ask_item import ask
from tests.integration.test_pause_scope import held, pause


def save(store, lane, position=0, state=b"state"):
    """As a body in that lane."""
    return store.pauses.save_checkpoint(lane.ticket.batch, position, token=lane.token, state=state)


def saved(store, batch="b"):
    """Position to state."""
    return {int(k): v for k, v in store.client.redis.hgetall(store.keys.build("checkpoints", batch)).items()}


def test_saved_until_the_outcome(store):
    """The last state is kept, over a loss too, and goes with the item's outcome."""
    lane = begin(store, open_batch(store, count=8)[0], 2)
    save(store, lane, 0, b"one")
    assert save(store, lane, 0, b"two") == (False, False, False, True, None)
    save(store, lane, 1)
    (ticket, *_) = lanes.reap(store, lane)
    lane = begin(store, ticket)
    assert ask(store, lane, want=True).state == b"two"
    assert saved(store) == {0: b"two", 1: b"state"}
    lane.finish("stay", failed=[0])
    assert saved(store) == {1: b"state"}


def test_the_end_of_a_batch(store):
    """Nothing is left when the batch is over, however its items ended."""
    lane = begin(store, open_batch(store, count=2)[0], 2)
    save(store, lane, 0)
    lane.finish("free", retry={0: 60.0})
    assert saved(store) == {0: b"state"}
    store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)
    assert saved(store) == {}


def test_fenced(store):
    """A lane that holds the item no more saves nothing."""
    lane = begin(store, open_batch(store)[0])
    lanes.reap(store, lane)
    before = lanes.snapshot(store)
    assert save(store, lane).mine is False
    assert save(store, lane, 3).mine is False
    assert lanes.snapshot(store) == before


def test_told_to_stop(store):
    """Saving also tells whether to stop: one round trip for both."""
    lane = begin(store, open_batch(store)[0])
    pause(store, grace=0.0)
    assert save(store, lane).stop is True
    assert saved(store) == {0: b"state"}


def test_a_stopped_item_is_first_in_its_list(store):
    """An item that stopped goes back, is the first to run again, and its attempt does not count (promise P3)."""
    lane = begin(store, open_batch(store, count=6)[0])
    lane.claim(ok=[0])
    pause(store, grace=0.0)
    reply = lane.send("finish", {**lane.slot, "k": 0, "t": "free", "f": {"r": [], "g": [], "z": [1, 2]}}, (b"", b""))
    assert (reply.state, held(store)) == ("end", ["b b"])
    (told,) = lanes.audit(store, "item.stopped")
    assert told.positions == [1]
    (ticket,) = store.pauses.resume_scope("w:w", reason="", actor="me").tickets
    again = begin(store, ticket)
    assert list(again.holds) == [1]
    assert store.client.redis.hlen(store.keys.build("attempts", "b")) == 0


def test_stopped_without_a_pause(store):
    """A body that stops by itself while nothing is paused runs again a moment later, not at once."""
    lane = begin(store, open_batch(store, count=1)[0])
    lane.send("finish", {**lane.slot, "k": 0, "t": "free", "f": {"r": [], "g": [], "z": [0, 1]}}, (b"", b""))
    status = store.reads.status("b")
    assert (status.delayed, status.running) == (1, 0)
    assert lanes.holds_together(store)
    store.client.redis.zadd(store.keys.build("delayed", "b"), {"0:0": 1.0})
    (ticket,) = store.scripts.promote_batch("b")
    lane = lanes.Lane(store, ticket)
    assert lane.begin().entries[0][1] == 0, "no attempt was counted"


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lane = begin(store, open_batch(store)[0])
    lanes.assert_layout(store, lambda: save(store, lane))
