"""`record_one`: an event that is recorded alone, as nearly all are, in two commands of the store."""

from __future__ import annotations

import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from poimen_tasks.errors import LayoutMismatch, StoreRefused
from poimen_tasks.store import Refusal, audit_entries
from poimen_tasks.store.direct import pack_parts

EVENT = b'{"event_type":"note"}'


@pytest.fixture(autouse=True)
def begun(store):
    """A stream with an entry, and a caller that was looked at: its next events go this way."""
    store.entries.record_event("first", EVENT)


def entries(store):
    return store.entries.after("0-0")[1:]


def send(store, sequence, header=b"h", owner="owner"):
    """One call of the script as an owner of that name; returns its reply."""
    prepared = store.entries._calls(owner).one
    return store.client.direct(prepared, 3, pack_parts(b"%d" % sequence, header, EVENT)).decode()


def count_of(store, owner="owner"):
    return int(store.client.redis.get(store.keys.build("recorder", owner)) or 0)


def test_entry(store):
    """An event is one entry that carries its own id; the reply is the entry's stream id (promise A3)."""
    made = [store.entries.record_event(f"e{at}", EVENT) for at in range(3)]
    assert store.client.redis.keys(store.keys.build("recorder", "*")) != []
    assert [(entry.id, dict(entry.fields)) for entry in entries(store)] == [
        (made[at], {b"t": b"audit.recorded", b"h": b"\x81\xa1i\xd9\x02e%d" % at, b"d": EVENT}) for at in range(3)
    ]


def test_once(store):
    """A request that is sent again, or comes late, writes nothing twice; its reply is a time (fault H07)."""
    assert send(store, 2) == entries(store)[0].id
    seconds, _ = store.client.redis.time()
    for _ in range(2):
        reply = send(store, 2)
        assert abs(int(reply.removesuffix("-0")) - 1000 * seconds) < 60_000
    send(store, 3)
    with pytest.raises(Refusal, match="STALE 2 is behind 3"):
        send(store, 2)
    send(store, 4)
    assert len(entries(store)) == 3


def test_replies_that_are_lost(store, monkeypatch):
    """Whichever reply is lost, each event is written once, in order (fault H07)."""
    kind, seen = store.client.redis.connection_pool.connection_class, []
    read = kind.read_response

    def lose(connection, *args, **kwargs):
        reply = read(connection, *args, **kwargs)
        seen.append(isinstance(reply, bytes) and b"-" in reply)  # what opens a connection has other replies
        if seen[-1] and sum(seen) % 3 == 0:
            connection.disconnect()
            raise RedisConnectionError("lost")
        return reply

    monkeypatch.setattr(kind, "read_response", lose)
    ids = [f"e{at}" for at in range(40)]
    for own in ids:
        store.entries.record_event(own, EVENT)
    monkeypatch.undo()
    assert sum(seen) >= 50
    assert [entry.fields[b"h"][5:].decode() for entry in entries(store)] == ids


def test_a_caller_is_remembered_for_an_hour(store):
    """A first call, and one after another that never came, renew the memory; one that was forgotten begins it anew."""
    redis, key = store.client.redis, store.keys.build("recorder", "owner")
    send(store, 1)
    assert 3590 < redis.ttl(key) <= 3600
    redis.expire(key, 100)
    send(store, 2)
    assert redis.ttl(key) <= 100
    send(store, 4)
    assert 3590 < redis.ttl(key) <= 3600
    redis.delete(key)
    send(store, 5)
    assert (count_of(store), redis.ttl(key) > 3590) == (5, True)
    assert len(entries(store)) == 4


def test_no_stream(store):
    """Where there is no stream nothing is done, and the event goes the other way, which gives the stream its epoch."""
    store.client.redis.delete(store.keys.build("audit"), store.keys.build("audit_meta"))
    assert send(store, 2) == "none"
    assert count_of(store) == 1
    store.entries.record_event("e", EVENT)
    assert store.entries.epoch()
    assert [entry.fields[b"h"][5:] for entry in store.entries.after("0-0")] == [b"e"]


def test_refused(store):
    """A refused entry is not counted: the same request is taken once the cause is gone (fault H07)."""
    redis, key = store.client.redis, store.keys.build("audit")
    redis.rename(key, "aside")
    redis.set(key, "x")
    with pytest.raises(StoreRefused, match="is of type string, where a stream belongs"):
        send(store, 7)
    assert count_of(store) == 6
    redis.rename("aside", key)
    assert send(store, 7) == entries(store)[0].id


def test_a_stranger_wrote_over_what_a_caller_is_remembered_by(store):
    """One clear error names the key, by whichever way the event goes, and no entry is written."""
    for name in ("recorder", "owner"):
        key = store.keys.build(name, name)
        store.client.redis.set(key, "mine now")
        calls = store.entries._calls(name)
        for way, first in ((calls.one, []), (calls.many, [b"1000"]))[name == "owner" :]:
            with pytest.raises(StoreRefused, match=f"key '{key}' holds something that this package did not write"):
                store.client.direct(way, 3 + len(first), pack_parts(b"2", *first, b"h", EVENT))
        assert store.client.redis.get(key) == b"mine now"
    key = store.keys.build("owner", "me")
    store.client.redis.set(key, "no number")
    with pytest.raises(StoreRefused, match=f"key '{key}' holds something"):
        store.client.call("seal_batch", {"b": "b"}, owner="me", sequence=1)
    assert entries(store) == []


def test_the_stream_is_looked_at(store, monkeypatch):
    """The layout is looked at with a caller's first call, one in sixteen, and one in a minute (protocol 4)."""
    store.client.redis.set(store.keys.build("layout"), "2")
    with pytest.raises(LayoutMismatch):
        [store.entries.record_event(f"e{at}", EVENT) for at in range(16)]
    store.client.redis.delete(store.keys.build("layout"))
    monkeypatch.setattr(audit_entries, "_LOOK_SECONDS", 0.05)
    caller = store.entries._callers.take()
    while caller.next() % 16:
        pass
    store.entries._callers.give_back(caller)
    store.entries.record_event("looks", EVENT)
    store.entries.record_event("not yet", EVENT)
    time.sleep(0.1)
    store.client.redis.set(store.keys.build("layout"), "2")
    with pytest.raises(LayoutMismatch):
        store.entries.record_event("looks", EVENT)
