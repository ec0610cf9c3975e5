"""`read_audit`: entries for the registered sealer, bounded by count and bytes."""

from __future__ import annotations

import msgpack
import pytest

from poimen_tasks.store.audit_scripts import StreamChanged
from tests.integration.lanes import assert_layout, open_batch
from tests.integration.sealers import Sealer, add, ids


def test_in_order_behind_an_id(store):
    """Each entry once, in the order of the stream, with the fields as they are stored."""
    written = add(store, 250)
    sealer = Sealer(store)
    first = sealer.read(100)
    sealer.cursor = first[-1]
    assert first + sealer.read() == written
    sealer.cursor = written[-1]
    assert sealer.read() == []


def test_what_the_include_wrote(store):
    """The entries of the scripts: type, header, payload."""
    open_batch(store, count=1)
    sealer = Sealer(store)
    entries, full = store.audit.read_audit("one", sealer.epoch, after="0-0", count=500, size=1 << 20)
    assert [entry.fields[b"t"] for entry in entries] == [b"batch.opened", b"batch.appended", b"batch.sealed"]
    assert msgpack.unpackb(entries[1].fields[b"h"])["count"] == 1
    assert [entry.id for entry in entries] == ids(store)
    assert not full


def test_bounded_by_bytes(store):
    """No further entry is added once the bytes are reached; one that is larger by itself comes alone."""
    add(store, 6, b"x" * 100_000)
    sealer = Sealer(store)
    assert len(sealer.read(size=250_000)) == 3
    assert len(sealer.read(size=1)) == 1
    entries, full = store.audit.read_audit("one", sealer.epoch, after="0-0", count=2, size=1 << 20)
    assert (len(entries), full) == (2, True)


def test_none_behind_a_last_id(store):
    """`most` is the last id that is wanted."""
    written = add(store, 5)
    assert Sealer(store).read(most=written[2]) == written[:3]


def test_fenced(store):
    """Another token, another epoch: nothing is read."""
    add(store)
    sealer = Sealer(store)
    with pytest.raises(StreamChanged, match="FENCED sealer one"):
        store.audit.read_audit("two", sealer.epoch, after="0-0", count=1, size=1)
    with pytest.raises(StreamChanged, match=f"EPOCH {sealer.epoch}"):
        store.audit.read_audit("one", "another", after="0-0", count=1, size=1)


def test_the_server_was_emptied(store):
    """After FLUSHALL nobody is registered, and the sealer has to look anew."""
    sealer = Sealer(store)
    store.client.redis.flushdb()
    with pytest.raises(StreamChanged, match="FENCED"):
        sealer.read()


def test_waiting(store):
    """Waiting ends when an entry comes, and after its time when none does."""
    assert not store.audit.await_audit("0-0", seconds=0.01)
    add(store)
    assert store.audit.await_audit("0-0", seconds=30)


def test_layout(store):
    """Data of another layout is not touched."""
    sealer = Sealer(store)
    assert_layout(store, sealer.read)
