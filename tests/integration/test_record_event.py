"""`record_event`: events that somebody records, each an entry of the audit stream."""

from __future__ import annotations

import json

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from poimen_tasks.errors import InvalidArgument
from poimen_tasks.store import Refusal
from poimen_tasks.store.direct import pack_parts
from tests.integration import lanes

EVENT = json.dumps({"event_type": "note", "workflow_id": None}).encode()


def entries(store):
    return store.entries.after("0-0")


def record(store, ids, payloads):
    """Record many; returns the stream ids."""
    made = []
    store.entries.record_events(ids, payloads, made.extend)
    return made


def send(store, owner, *arguments):
    """One call of the script as an owner of that name; returns its reply."""
    prepared = store.entries._calls(owner).many
    return store.client.direct(prepared, len(arguments), pack_parts(*arguments))


def test_entry(store):
    """An event is one entry that carries its own id; the reply is the entry's stream id (promise A3)."""
    made = record(store, ["e1", "e2"], [EVENT, b"{}"])
    assert [(entry.id, dict(entry.fields)) for entry in entries(store)] == [
        (made[0], {b"t": b"audit.recorded", b"h": b"\x81\xa1i\xd9\x02e1", b"d": EVENT}),
        (made[1], {b"t": b"audit.recorded", b"h": b"\x81\xa1i\xd9\x02e2", b"d": b"{}"}),
    ]
    assert store.entries.epoch()


def test_neither_way_overtakes_the_other(store):
    """What arrives late, one way or the other, is refused where its caller went on: the order stays (fault H07)."""
    calls = store.entries._calls("owner")

    def one(sequence):
        return store.client.direct(calls.one, 3, pack_parts(sequence, b"h", EVENT))

    send(store, "owner", b"17", b"100", b"h", EVENT)
    for late in (b"15", b"16"):
        with pytest.raises(Refusal, match=f"STALE {late.decode()} is behind 17"):
            one(late)
    one(b"18")
    one(b"20")
    for late in (b"18", b"19"):
        with pytest.raises(Refusal, match=f"STALE {late.decode()} is behind 20"):
            send(store, "owner", late, b"100", b"h", EVENT)
    assert len(entries(store)) == 3
    assert 3590 < store.client.redis.ttl(store.keys.build("recorder", "owner")) <= 3600


@pytest.mark.parametrize("count", [1, 3])
def test_once(store, count):
    """A request that is sent again, because its reply was lost, writes nothing twice (fault H07)."""
    sent = (b"100", *(b"header", EVENT) * count)
    made = send(store, "owner", b"10", *sent)
    assert send(store, "owner", b"10", *sent) == made
    with pytest.raises(Refusal, match="STALE 9 is behind 10"):
        send(store, "owner", b"9", *sent)
    assert [entry.id for entry in entries(store)] == made.decode().split(" ")


def test_replies_that_are_lost(store, monkeypatch):
    """Whichever reply of a bulk is lost, each event is written once and told of once, in order (fault H07)."""
    store.entries.record_event("before", EVENT)
    kind, seen = store.client.redis.connection_pool.connection_class, []
    read = kind.read_response

    def lose(connection, *args, **kwargs):
        reply = read(connection, *args, **kwargs)
        seen.append(reply)
        if len(seen) in {1, 3, 4}:
            connection.disconnect()
            raise RedisConnectionError("lost")
        return reply

    monkeypatch.setattr(kind, "read_response", lose)
    ids = [f"e{at}" for at in range(1500)]
    told = []
    store.entries.record_events(ids, [EVENT] * 1500, told.append)
    monkeypatch.undo()
    assert [len(some) for some in told] == [500, 500, 500]
    assert len(seen) >= 6
    found = [entry for some in told for entry in store.entries.after(before_of(some[0]))]
    assert [entry.id for entry in found] == [stream_id for some in told for stream_id in some]
    assert [entry.fields[b"h"][5:].decode() for entry in found] == ids
    assert store.client.redis.xlen(store.keys.build("audit")) == 1501


def before_of(stream_id):
    """The id just before one."""
    ms, _, sub = stream_id.partition("-")
    return f"{ms}-{int(sub) - 1}" if sub != "0" else f"{int(ms) - 1}-{(1 << 64) - 1}"


def test_one_memory_a_caller(store):
    """What the store keeps for retries does not grow with what one thread records."""
    for at in range(50):
        store.entries.record_event(f"e{at}", EVENT)
    assert len(store.client.redis.keys(store.keys.build("owner", "*"))) == 2  # as one that comes alone, and otherwise


def test_portions(store):
    """Many events go out in calls of at most 500, or about a megabyte; their order is kept."""
    payloads = [b"x" * (400_000 if at % 100 == 0 else 10) for at in range(1200)]
    made = record(store, [f"e{at}" for at in range(1200)], payloads)
    assert len(set(made)) == 1200
    found, last = [], "0-0"
    while page := store.entries.after(last, count=500):
        found += page
        last = page[-1].id
    assert [entry.fields[b"d"] for entry in found] == payloads
    assert [entry.id for entry in found] == made


def test_bad_requests(store):
    """More than 500 events, or other counts of ids and events, are refused before anything is written."""
    with pytest.raises(InvalidArgument, match="501"):
        send(store, "o", b"1", b"100", *(b"h", EVENT) * 501)
    for parts in ((), (b"h",), (b"h", EVENT, b"h")):
        with pytest.raises(Refusal, match="COUNT"):
            send(store, "o", b"2", b"100", *parts)
    assert entries(store) == []


def test_unsealed_limit(store):
    """While no sealer was ever registered the stream is bounded, and what was dropped is counted (protocol 10)."""
    store.entries._limit = pack_parts(b"10")
    for at in range(0, 40, 2):
        record(store, [f"e{at}", f"e{at + 1}"], [EVENT] * 2)
    state = store.audit.describe_audit()
    assert 10 <= state.length <= 20
    assert state.length + state.dropped == 40


def test_unsealed_limit_one_by_one(store):
    """Recorded one by one the length is looked at with one call in sixteen; a caller's first one is among them."""
    store.entries._limit = pack_parts(b"10")
    for at in range(100):
        store.entries.record_event(f"e{at}", EVENT)
    state = store.audit.describe_audit()
    assert 10 <= state.length <= 20 + 15
    assert state.length + state.dropped == 100
    while state.length <= 20:
        store.entries.record_event("more", EVENT)
        state = store.audit.describe_audit()
    send(store, "another", b"1", b"10", b"h", EVENT)
    assert store.audit.describe_audit().length == 10


def test_the_stream_begins_anew(store):
    """Where the server came back empty, the next event begins a stream with an epoch of its own (promise A9)."""
    for at in range(3):
        store.entries.record_event(f"e{at}", EVENT)
    before = store.entries.epoch()
    store.client.redis.delete(store.keys.build("audit"), store.keys.build("audit_meta"))
    store.entries.record_event("e3", EVENT)
    assert store.entries.epoch() not in ("", before)
    assert len(entries(store)) == 1


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: store.entries.record_event("e1", EVENT))


def test_reading_backwards(store):
    """Entries are read from either end in slices, within bounds that are not part of them."""
    made = record(store, [f"e{at}" for at in range(5)], [EVENT] * 5)
    assert [entry.id for entry in store.entries.before(count=2)] == made[:2:-1]
    assert [entry.id for entry in store.entries.before(made[3], least=made[0])] == [made[2], made[1]]
    assert [entry.id for entry in store.entries.after(made[2])] == made[3:]
    assert store.entries.get(made[1]).id == made[1]
    assert store.entries.get("1-1") is None
