"""`release_held`: some more of what a resumed scope had held back."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import open_batch
from tests.integration.test_pause_scope import held, pause
from tests.integration.test_resume_scope import resume


def _many(store, count=230):
    """Many batches, held by one queue."""
    lanes.offer(store, 1000)
    pause(store, "q:q")
    for number in range(count):
        open_batch(store, f"b{number}", count=1)


def test_portions(store):
    """A hundred batches come with a portion; each gets its ticket once."""
    _many(store)
    replies = [resume(store, "q:q")]
    while replies[-1].left:
        replies.append(store.pauses.release_held("q:q"))
    assert [reply.released for reply in replies] == [100, 100, 30]
    assert len({ticket.batch for reply in replies for ticket in reply.tickets}) == 230
    assert not store.client.redis.exists(store.keys.build("releasing"), store.keys.build("held", "q:q"))


def test_the_keeper_goes_on(store):
    """Whoever resumed and died half-way is followed by the keeper, some seconds later."""
    _many(store, 120)
    resume(store, "q:q")
    assert lanes.offer(store, 1000)[b"releasing"] == []
    store.client.redis.zadd(store.keys.build("releasing"), {"q:q": 1.0})
    assert lanes.offer(store, 1000)[b"releasing"] == [b"q:q"]
    assert store.pauses.release_held("q:q").released == 20


def test_paused_again(store):
    """What is paused again meanwhile stays held."""
    _many(store, 120)
    resume(store, "q:q")
    pause(store, "q:q")
    assert store.pauses.release_held("q:q").released == 0
    assert len(held(store, "q:q")) == 20


def test_once(store):
    """The same request twice releases once; a lower sequence is refused (protocol 4)."""
    _many(store, 120)
    resume(store, "q:q")
    lanes.assert_once(store, lambda: store.pauses.release_held("q:q"))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    _many(store, 1)
    lanes.assert_layout(store, lambda: store.pauses.release_held("q:q"))
