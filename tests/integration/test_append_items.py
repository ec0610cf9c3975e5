"""`append_items`: one more slice at an expected offset."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import DuplicateItem
from poimen_tasks.model import BatchState
from poimen_tasks.store import Refusal
from tests.integration import lanes
from tests.integration.lanes import append, open_batch


@pytest.fixture
def opened(store):
    """An open batch with a full chunk of items, and its ticket."""
    return open_batch(store, count=256, seal=False)


def test_plain_slices_are_one_range(store, opened):
    """Slices that follow each other are one range: a pending item costs nothing (protocol 0)."""
    append(store, 256, 256)
    append(store, 512, 100)
    assert store.client.redis.lrange(store.keys.build("fresh", "b", 0), 0, -1) == [b"0:612"]
    assert store.reads.status("b").total == 612
    assert lanes.holds_together(store)


def test_given_back_items_do_not_stop_the_range(store, opened):
    """A range that was claimed to its end in between begins a new one."""
    lane = lanes.begin(store, opened[0], 1)
    store.client.redis.delete(store.keys.build("capacity"))
    while lanes.field_of(store, "pending"):
        lane.claim(512, ok=list(lane.holds))
    append(store, 256, 10)
    assert store.client.redis.lrange(store.keys.build("fresh", "b", 0), 0, -1) == [b"256:266"]
    assert lanes.holds_together(store)


@pytest.mark.parametrize("offset", [0, 100, 512])
def test_wrong_offset(store, opened, offset):
    """A wrong offset is refused and tells the right one, so a resumed append never doubles (protocol 1)."""
    before = lanes.snapshot(store)
    with pytest.raises(Refusal, match="OFFSET 256"):
        append(store, offset, 10)
    assert lanes.snapshot(store) == before


def test_sealed(store):
    """Nothing is appended to a sealed batch."""
    open_batch(store, count=256)
    with pytest.raises(Refusal, match="SEALED b"):
        append(store, 256, 10)


def test_cancelled(store, opened):
    """An append after the cancellation writes nothing and says so, and the items written before are cancelled."""
    store.scripts.cancel_batch("b", reason="stop", actor="me", terminate=False)
    before = lanes.snapshot(store)
    appended, cancelled = store.scripts.append_items(
        "b", offset=256, piece=lanes.make_slice(256, 10), parts=[lanes.PART]
    )
    assert (appended.total, appended.tickets, cancelled) == (256, [], True)
    assert lanes.snapshot(store) == before
    assert store.reads.status("b").cancelled == 256


def test_new_partition(store, opened):
    """A later slice may bring partitions that the first one did not have; their queue gets a ticket (protocol 1)."""
    parts = [lanes.PART, lanes.part("q2")]
    (ticket,) = append(store, 256, 4, all_parts=parts, parts=lambda position: position % 2)
    assert (ticket.queue, ticket.partition) == ("q2", 1)
    assert store.reads.parts("b") == parts
    assert lanes.holds_together(store)


def test_seal_with_the_last_slice(store, opened):
    """The last slice can seal the batch in the same step (protocol 1)."""
    append(store, 256, 4, seal=True)
    assert [told.kind for told in lanes.audit(store)][-2:] == ["batch.appended", "batch.sealed"]
    lanes.run_all(store, opened)
    assert store.reads.status("b").state is BatchState.COMPLETED
    assert len(lanes.ends(store)) == 1


def test_empty_last_slice_ends_the_batch(store, opened):
    """Sealing with an empty slice ends a batch whose items are all done."""
    lanes.run_all(store, opened)
    assert lanes.ends(store) == []
    append(store, 256, 0, seal=True)
    assert store.reads.status("b").state is BatchState.COMPLETED
    assert len(lanes.ends(store)) == 1


def test_idle_batch_gets_a_ticket_again(store, opened):
    """Items that come when all lanes have left bring a ticket (protocol 2)."""
    lanes.run_all(store, opened)
    assert lanes.counters(store) == {}
    (ticket,) = append(store, 256, 4)
    assert ticket.generation > opened[0].generation


def test_duplicate_id(store):
    """An id that an earlier slice used is named, and its slice is not written (fault A08)."""
    open_batch(store, count=256, ids=[f"i{number}" for number in range(256)], seal=False)
    before = lanes.snapshot(store)
    with pytest.raises(DuplicateItem, match="'i7'"):
        append(store, 256, 2, ids=["new", "i7"])
    assert lanes.snapshot(store) == before


def test_more_named_items_than_lua_can_unpack(store):
    """Nine thousand custom ids, slice by slice, are found, cancelled and named (protocol 0)."""
    names = [f"n{number}" for number in range(9216)]
    open_batch(store, count=512, ids=names[:512], seal=False)
    for offset in range(512, 9216, 512):
        append(store, offset, 512, ids=names[offset : offset + 512])
    assert [store.reads.position_of("b", name) for name in ("n0", "n8999", "n9216")] == [0, 8999, None]
    assert store.reads.names("b", [3, 9000]) == ["n3", "n9000"]
    left = 1
    while left:
        left = store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)[b"left"]
    assert sorted(name for columns in lanes.outcomes(store) for name in columns.ids) == sorted(names)


def test_delayed_items(store, opened, eventually):
    """A delayed item of a later slice is due in its time (fault C02)."""
    append(store, 256, 2, delayed={256: store.reads.now(), 257: store.reads.now() + 600})
    assert lanes.field_of(store, "delayed") == 2
    eventually(lambda: store.scripts.promote_batch("b") is not None and lanes.field_of(store, "delayed") == 1)
    assert lanes.field_of(store, "pending") == 257
    assert lanes.holds_together(store)


def test_producer_is_alive(store, opened):
    """An append says that the producer lives."""
    store.client.redis.hset(store.keys.record("b"), "producer", 1)
    assert store.reads.status("b").state is BatchState.STALLED
    append(store, 256, 4)
    assert store.reads.status("b").state is BatchState.OPEN


def test_audit(store, opened):
    """Each slice has its entry with offset and count (invariant I5)."""
    append(store, 256, 4)
    last = lanes.audit(store, "batch.appended")[-1].header
    assert (last["offset"], last["count"]) == (256, 4)


def test_once(store, opened):
    """The same append twice writes one slice; a lower sequence is refused (protocol 4)."""
    lanes.assert_once(store, lambda: append(store, 256, 10, delayed={256: 1.0}, ids=None, seal=True))


def test_other_layout(store, opened):
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: append(store, 256, 4))


def test_unknown_batch(store, opened):
    """A batch that is not known is named."""
    lanes.assert_unknown(store, lambda: append(store, 0, 4, "nobody"))
