"""`put_big`: calls too large for a slice are written ahead of it."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import open_batch

LARGE = b"x" * (1 << 19)


def _piece(offset=0, data=LARGE, count=4):
    return lanes.make_slice(offset, count, big=[(offset + i, data + b"%d" % i) for i in range(count)])


def _open(store, piece, *, seal=False):
    return store.scripts.open_batch("b", record=lanes.record(), parts=[lanes.PART], piece=piece, seal=seal)


def test_written_ahead_in_portions(store):
    """Large calls go to the store in portions of about a megabyte, and none stays in the slice (protocol 0)."""
    with lanes.listening(store) as calls:
        _open(store, _piece())
    assert [call.name for call in calls] == ["put_big"] * 4 + ["open_batch"]
    assert all(sum(map(len, call.options["payloads"])) <= 1 << 20 for call in calls)
    assert [store.reads.big_call("b", position) for position in range(4)] == [LARGE + b"%d" % i for i in range(4)]
    assert store.client.redis.ttl(store.keys.build("big", "b")) == -1


def test_expire_when_the_batch_is_never_opened(store):
    """What was written ahead of a batch that never came expires by itself."""
    store.scripts.put_big("b", _piece())
    assert store.client.redis.ttl(store.keys.build("big", "b")) > 0


def test_another_producer_does_not_change_calls(store):
    """A second producer of the same batch id changes no call of the items that are there (protocol 1)."""
    _open(store, _piece())
    assert _open(store, _piece(data=b"y" * (1 << 19)))[0].existed
    assert store.reads.big_call("b", 2) == LARGE + b"2"


def test_nothing_for_a_sealed_batch(store):
    """A sealed batch gets no calls, so nothing is left behind when it has expired (promise D8)."""
    open_batch(store, count=0)
    store.scripts.put_big("b", _piece())
    assert not store.client.redis.exists(store.keys.build("big", "b"))


def test_again(store):
    """Writing again is the same as writing once (protocol 4)."""
    store.scripts.put_big("b", _piece())
    before = lanes.snapshot(store)
    store.scripts.put_big("b", _piece())
    assert lanes.snapshot(store) == before


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store, seal=False)
    lanes.assert_layout(store, lambda: store.scripts.put_big("b", _piece(offset=256)))
