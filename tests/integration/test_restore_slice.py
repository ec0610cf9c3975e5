"""restore_slice: a piece of a batch that is on its way back."""

from __future__ import annotations

import msgpack
import pytest

from poimen_tasks.errors import BatchNotFound, SnapshotConflict
from poimen_tasks.store import Store
from poimen_tasks.store.snapshot_scripts import Piece
from tests.integration import lanes
from tests.integration.keeping import begin, end, write

PIECES = [
    Piece({"index": 0}, (b"\0\0\0\1\0\0\0\0",)),
    Piece({"chunks": [0], "names": [0], "digests": [0], "ids": [b"one", 0]}, (b"items", b"names", b"digests")),
    Piece({"big": [1]}, (b"call",)),
    Piece({"outcomes": [[1, False], [3, True]]}, (b"first", b"third")),
    Piece({"attempts": [1], "checkpoints": [1]}, (b"attempt", b"state")),
    Piece({"delayed": ["12.5", "1:0"]}),
    Piece({"lists": [["f", 0, 0, ["2:4", "5:6"]], ["k", 0, 0, ["4"]]]}),
]
KINDS = ("items", "names", "digests", "big", "ids", "index", "outcomes", "attempts", "checkpoints", "delayed")


def kept(store: Store) -> dict[str, object]:
    """What is stored of the batch so far."""
    redis = store.client.redis
    return {
        "items": redis.hgetall(store.keys.build("items", "b")),
        "ids": redis.hgetall(store.keys.build("ids", "b")),
        "big": redis.hgetall(store.keys.build("big", "b")),
        "outcomes": redis.xrange(store.keys.build("outcomes", "b")),
        "fresh": redis.lrange(store.keys.build("fresh", "b", 0), 0, -1),
        "back": redis.lrange(store.keys.build("back", "b", 0), 0, -1),
        "delayed": redis.zrange(store.keys.build("delayed", "b"), 0, -1, withscores=True),
        "index": redis.get(store.keys.build("index", "b")),
    }


def test_pieces_may_come_twice(store: Store) -> None:
    """Every piece is written as it was sent, and sent again changes nothing (protocol 9)."""
    begin(store)
    for piece in PIECES:
        assert write(store, piece) is False
        assert write(store, piece) is False
    assert kept(store) == {
        "items": {b"0": b"items"},
        "ids": {b"one": b"0"},
        "big": {b"1": b"call"},
        "outcomes": [(b"1-0", {b"b": b"first"}), (b"3-0", {b"b": b"third", b"o": b"1"})],
        "fresh": [b"2:4", b"5:6"],
        "back": [b"4"],
        "delayed": [(b"1:0", 12.5)],
        "index": b"\0\0\0\1\0\0\0\0",
    }
    assert all(store.client.redis.exists(store.keys.build(name, "b")) for name in KINDS)


def test_nobody_knows_it_yet(store: Store) -> None:
    """Until its last step the batch is known to no verb, is claimed by nobody, and expires by itself."""
    begin(store)
    for piece in PIECES:
        write(store, piece)
    with pytest.raises(BatchNotFound):
        store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)
    assert store.scripts.promote_batch("b") == []
    assert store.reads.batches() == []
    lives = [store.client.redis.ttl(key) for key in store.client.redis.scan_iter(match=f"{store.keys.root}b:b*")]
    assert len(lives) == 13
    assert all(0 < life <= 86_400 for life in lives)


def test_only_who_began_may_write(store: Store) -> None:
    """A restorer that was followed by another one writes nothing any more."""
    with pytest.raises(SnapshotConflict, match="somebody else"):
        write(store, PIECES[0])
    begin(store, holder="one")
    with pytest.raises(SnapshotConflict, match="somebody else"):
        write(store, PIECES[0], holder="two")
    assert kept(store)["index"] is None


def test_it_keeps_the_restorer_alive(store: Store) -> None:
    """Each piece prolongs the time for which others are kept out."""
    begin(store)
    key = store.keys.build("restored", "s1")
    store.client.redis.hset(key, "until", 1)
    write(store, PIECES[0])
    assert float(store.client.redis.hget(key, "until")) > store.reads.now()


def test_a_batch_that_came_meanwhile(store: Store) -> None:
    """A batch of that id that somebody dispatched meanwhile is not touched."""
    begin(store)
    lanes.open_batch(store, "b")
    before = lanes.snapshot(store)
    with pytest.raises(SnapshotConflict, match="is there already"):
        write(store, PIECES[0])
    assert lanes.snapshot(store) == before


def test_a_batch_that_is_restored_already(store: Store) -> None:
    """Where a restorer goes on that broke off, batches that are whole are left as they are."""
    begin(store)
    end(store)
    before = lanes.snapshot(store)
    assert write(store, PIECES[1]) is True
    after = lanes.snapshot(store)
    assert {key: after[key] for key in before if b"s:r:" not in key} == {
        key: value for key, value in before.items() if b"s:r:" not in key
    }


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    begin(store)
    lanes.assert_layout(store, lambda: write(store, PIECES[0]))


def test_numbers_are_names_of_fields(store: Store) -> None:
    """Large positions are written in full, not as a power of ten."""
    begin(store)
    write(store, Piece({"attempts": [99_999_999_999]}, (msgpack.packb([1]),)))
    assert store.client.redis.hkeys(store.keys.build("attempts", "b")) == [b"99999999999"]
