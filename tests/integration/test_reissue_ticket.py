"""`reissue_ticket`: a ticket whose message seems lost is issued again, and the old message is void."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import Lane, begin, open_batch


def _due(store):
    return store.client.redis.zrange(store.keys.build("tickets"), 0, -1, withscores=True)[0][1] - store.reads.now()


def test_new_generation(store):
    """The new ticket works and the old message does not (protocol 2, fault C01)."""
    (old,) = open_batch(store)
    (new,) = store.scripts.reissue_ticket("b", 0, reissue=True)
    assert (new.slot, new.queue, new.partition) == (old.slot, old.queue, old.partition)
    assert new.generation > old.generation
    assert Lane(store, old).begin().why == "stale"
    begin(store, new)
    assert lanes.counters(store) == {"l:q": 1}


def test_backoff(store):
    """Each repetition waits longer before the next, up to 32 times the first (protocol 2)."""
    open_batch(store)
    waits = [_due(store)]
    for _ in range(7):
        store.scripts.reissue_ticket("b", 0, reissue=True)
        waits.append(_due(store))
    first = store.settings.ticket_overdue
    assert [round(wait / first) for wait in waits] == [1, 2, 4, 8, 16, 32, 32, 32]
    assert lanes.counters(store) == {"t:q": 1}


def test_looked_at_again_later(store):
    """A ticket whose message still waits keeps its generation and is looked at later."""
    (ticket,) = open_batch(store)
    store.client.redis.zadd(store.keys.build("tickets"), {"b\t0": 1.0})
    assert store.scripts.reissue_ticket("b", 0, reissue=False) == []
    assert _due(store) > 0
    begin(store, ticket)


def test_partition_of_the_queue(store):
    """The new ticket names a partition of its queue, whose priority the message gets."""
    tickets = open_batch(store, count=2, parts=[lanes.part("q1"), lanes.part("q2")], of=lambda position: position)
    (old,) = [ticket for ticket in tickets if ticket.queue == "q2"]
    (new,) = store.scripts.reissue_ticket("b", old.slot, reissue=True)
    assert (new.queue, new.partition) == ("q2", 1)


def test_no_ticket_there(store):
    """For a live slot, an idle one and a batch that is gone only the stray entry goes."""
    (ticket,) = open_batch(store)
    begin(store, ticket)
    store.client.redis.zadd(store.keys.build("tickets"), {"b\t0": 1.0, "b\t5": 1.0, "nobody\t0": 1.0})
    assert [store.scripts.reissue_ticket(*slot, reissue=True) for slot in (("b", 0), ("b", 5), ("nobody", 0))] == [
        [],
        [],
        [],
    ]
    assert store.client.redis.exists(store.keys.build("tickets")) == 0
    assert lanes.counters(store) == {"l:q": 1}


def test_audit(store):
    """A ticket that is issued again is audited with the number of tries (invariant I5)."""
    open_batch(store)
    for _ in range(2):
        store.scripts.reissue_ticket("b", 0, reissue=True)
    assert [told.header["tries"] for told in lanes.audit(store, "ticket.reissued")] == [1, 2]


def test_once(store):
    """The same request twice makes one new generation; a lower sequence is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_once(store, lambda: store.scripts.reissue_ticket("b", 0, reissue=True))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: store.scripts.reissue_ticket("b", 0, reissue=True))
