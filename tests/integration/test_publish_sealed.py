"""`publish_sealed`: what is on disk leaves the stream, and what left by another way is noticed."""

from __future__ import annotations

import pytest

from poimen_tasks.store.audit_scripts import StreamChanged
from tests.integration.lanes import assert_layout
from tests.integration.sealers import Sealer, add, ids, meta


def test_trims_what_is_sealed(store):
    """Entries up to the published one leave, those behind it stay (protocol 10, fault H01)."""
    written = add(store, 7)
    sealer = Sealer(store)
    state = sealer.publish(written[:5])
    assert ids(store) == written[5:]
    assert (state.sealed, state.root, state.cursor, state.length) == (5, "root5", written[4], 2)
    assert (state.vanished, state.behind) == (0, 0)


def test_twice_is_once(store):
    """A repeated request, of which only the reply was lost, finds its work done."""
    written = add(store, 4)
    sealer = Sealer(store)
    sealer.publish(written[:2])
    before, was = meta(store), sealer.sealed
    again = store.audit.publish_sealed(
        "one", sealer.epoch, was=0, size=was, root="root2", cursor=written[1], count=2, told=(0, 0)
    )
    assert (again.sealed, again.vanished) == (2, 0)
    after = meta(store)
    assert {**before, "beat": ""} == {**after, "beat": ""}
    assert ids(store) == written[2:]


def test_by_the_registered_sealer_of_this_epoch_only(store):
    """Another token, another epoch, another published size: refused, nothing is trimmed (protocol 10)."""
    written = add(store, 3)
    sealer = Sealer(store)
    request = {"size": 3, "root": "r", "cursor": written[-1], "count": 3, "told": (0, 0)}
    with pytest.raises(StreamChanged, match="FENCED"):
        store.audit.publish_sealed("two", sealer.epoch, was=0, **request)
    with pytest.raises(StreamChanged, match="EPOCH"):
        store.audit.publish_sealed("one", "another", was=0, **request)
    with pytest.raises(StreamChanged, match="MOVED 0"):
        store.audit.publish_sealed("one", sealer.epoch, was=2, **request)
    assert ids(store) == written


def test_the_last_sealed_entry_must_be_there(store):
    """What was read but is not in the stream any more: the store lost it or somebody took it, so nothing is trimmed."""
    written = add(store, 3)
    sealer = Sealer(store)
    store.client.redis.xdel(store.keys.build("audit"), written[1])
    with pytest.raises(StreamChanged, match=f"BEHIND {written[1]}"):
        sealer.publish(written[:2])
    assert ids(store) == [written[0], written[2]]


@pytest.mark.parametrize("how", ["XADD MAXLEN", "XTRIM", "XDEL"])
def test_what_vanished_is_counted(store, how):
    """Entries that somebody removed before they were read are missing from the stream's own count."""
    written = add(store, 3)
    sealer, redis, key = Sealer(store), store.client.redis, store.keys.build("audit")
    sealer.publish(sealer.read())
    lost = add(store, 4)
    if how == "XADD MAXLEN":
        redis.xadd(key, {"t": "x"}, maxlen=1, approximate=False)
    elif how == "XTRIM":
        redis.xtrim(key, maxlen=0, approximate=False)
    else:
        redis.xdel(key, *lost[1:3])
    read = sealer.read()
    state = sealer.publish(read)
    assert state.vanished == (2 if how == "XDEL" else 4)
    assert state.vanished_at > 0
    assert sealer.publish([]).vanished == state.vanished, "counted once"
    assert written


def test_dropped_before_the_first_sealer_is_not_vanished(store):
    """The bounded stream's own dropping is counted apart."""
    redis, key = store.client.redis, store.keys.build("audit")
    add(store, 10)
    redis.xtrim(key, maxlen=4, approximate=False)
    redis.hincrby(store.keys.build("audit_meta"), "dropped", 6)
    sealer = Sealer(store)
    state = sealer.publish(sealer.read())
    assert (state.dropped, state.vanished, state.counted) == (6, 0, 6)


def test_a_stream_that_was_deleted(store):
    """Its count began anew, so the stream is short of what it had."""
    sealer = Sealer(store)
    sealer.publish(add(store, 5))
    store.client.redis.delete(store.keys.build("audit"))
    state = sealer.publish(add(store, 2))
    assert (state.behind, state.vanished) == (5, 0)


def test_told(store):
    """What events tell of is kept, so that none is told twice."""
    sealer = Sealer(store)
    state = sealer.publish(add(store), told=(3, 4))
    assert (state.dropped_told, state.vanished_told) == (3, 4)


def test_sign_of_life(store):
    """Publishing nothing new still tells that the sealer lives."""
    sealer = Sealer(store)
    store.client.redis.hset(store.keys.build("audit_meta"), "beat", 1)
    assert not store.audit.describe_audit().alive
    assert sealer.publish([]).alive


def test_layout(store):
    """Data of another layout is not touched."""
    sealer = Sealer(store)
    assert_layout(store, lambda: sealer.publish([]))
