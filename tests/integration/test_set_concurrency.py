"""`set_concurrency`: another limit while the batch runs."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def test_up(store):
    """A higher limit brings the missing tickets at once (promise D2)."""
    lanes.offer(store, 10)
    assert len(open_batch(store, count=50, limit=2)) == 2
    assert len(store.scripts.set_concurrency("b", 5, actor="me")) == 3
    assert store.reads.status("b").concurrency == 5


def test_no_limit(store):
    """Without a limit the batch takes what the fleet has."""
    lanes.offer(store, 10)
    open_batch(store, count=50, limit=2)
    assert len(store.scripts.set_concurrency("b", 0, actor="me")) == 18
    assert store.reads.status("b").concurrency is None


def test_down_withdraws_tickets_first(store):
    """A lower limit voids tickets before it sends lanes away (protocol 2)."""
    lanes.offer(store, 10)
    first, second, *others = open_batch(store, count=50, limit=5)
    held = [begin(store, ticket) for ticket in (first, second)]
    assert store.scripts.set_concurrency("b", 2, actor="me") == []
    assert lanes.counters(store) == {"l:q": 2}
    assert {lanes.Lane(store, ticket).begin().why for ticket in others} == {"stale"}
    assert [lane.claim(ok=list(lane.holds)).state for lane in held] == ["go", "go"]


def test_down_sends_surplus_lanes_away(store):
    """Surplus lanes leave at their next claim, with their outcomes recorded (protocol 2, invariant I1)."""
    lanes.offer(store, 10)
    held = [begin(store, ticket) for ticket in open_batch(store, count=50, limit=3)]
    store.scripts.set_concurrency("b", 1, actor="me")
    replies = [lane.claim(ok=list(lane.holds)) for lane in held]
    assert [(reply.state, reply.why) for reply in replies] == [("end", "surplus"), ("end", "surplus"), ("go", "")]
    assert [reply.tickets for reply in replies] == [[], [], []]
    assert lanes.field_of(store, "ok") == 3
    assert lanes.counters(store) == {"l:q": 1}


def test_surplus_lane_does_not_yield_its_slot(store):
    """A surplus lane that gives way gets no new ticket."""
    lanes.offer(store, 10)
    held = [begin(store, ticket) for ticket in open_batch(store, count=50, limit=2)]
    store.scripts.set_concurrency("b", 1, actor="me")
    assert held[0].finish("yield", ok=list(held[0].holds)).tickets == []
    assert len(held[1].finish("yield", ok=list(held[1].holds)).tickets) == 1


def test_batch_that_is_over(store):
    """The limit of a batch that is over does not change."""
    open_batch(store, count=0)
    before = lanes.snapshot(store)
    assert store.scripts.set_concurrency("b", 5, actor="me") == []
    assert lanes.snapshot(store) == before


def test_audit(store):
    """A change is audited with actor, old and new limit; setting the same limit is none (invariant I5)."""
    open_batch(store, limit=2)
    for limit in (7, 7):
        store.scripts.set_concurrency("b", limit, actor="me")
    (told,) = lanes.audit(store, "batch.concurrency_changed")
    assert [told.header[name] for name in ("a", "from", "to")] == ["me", 2, 7]


def test_once(store):
    """The same request twice issues its tickets once; a lower sequence is refused (protocol 4)."""
    lanes.offer(store, 10)
    open_batch(store, count=50, limit=2)
    lanes.assert_once(store, lambda: store.scripts.set_concurrency("b", 5, actor="me"))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: store.scripts.set_concurrency("b", 5, actor="me"))


def test_unknown_batch(store):
    """A batch that is not known is named."""
    lanes.assert_unknown(store, lambda: store.scripts.set_concurrency("b", 5, actor="me"))
