"""What is only read: status, outcomes, items, the fleet. Each is a constant number of round trips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from poimen_tasks.errors import BatchNotFound
from poimen_tasks.model import BatchStatus
from poimen_tasks.store.chunk_blob import CHUNK, ChunkView
from poimen_tasks.store.client import Client
from poimen_tasks.store.scripts import unpack_parts
from poimen_tasks.store.status import read_statuses
from poimen_tasks.store.values import Part

__all__ = ["LIVE", "Entry", "Reads", "WorkerInfo"]

#: Seconds after its last sign of life for which a worker counts as alive.
LIVE = 6.0

_READ_BYTES = 1 << 18


class Entry(NamedTuple):
    """One entry of a batch's outcome stream; `ends` marks the end of the batch (of this round)."""

    ordinal: int
    blob: bytes
    ends: bool


class WorkerInfo(NamedTuple):
    """A worker as its last tick told it: `seen` in seconds since 1970, `offers` as queue and slots.

    `leaving`: it is asked to leave, by a drain.
    """

    name: str
    seen: float
    offers: tuple[tuple[str, int], ...]
    details: dict[str, Any]
    leaving: bool = False


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


class Reads:
    """Reads of one namespace."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.keys = client.keys

    def now(self) -> float:
        """The server's clock, seconds since 1970; asked for when it was not heard of for half a minute."""
        known = self.client.clock.get()
        if known is None:
            seconds, micros = self.client.read(lambda redis: redis.time())
            known = float(seconds + micros / 1e6)
            self.client.clock.set(known)
        return known

    def status(self, batch: str) -> BatchStatus:
        """A batch at this instant.

        Raises:
            BatchNotFound: it is not known.
        """
        (found,) = read_statuses(self.client, [batch])
        if found is None:
            raise BatchNotFound(f"batch {batch!r} is not known: it was never dispatched, or its retention is over")
        return found

    def statuses(self, batches: Sequence[str]) -> list[BatchStatus | None]:
        """Many batches, 500 a round trip; None for one that is not known."""
        found: list[BatchStatus | None] = []
        for at in range(0, len(batches), 500):
            found += read_statuses(self.client, batches[at : at + 500])
        return found

    def field(self, batch: str, *names: str) -> list[bytes | None]:
        """Raw fields of a batch's record."""
        values: list[bytes | None] = self.client.read(lambda redis: redis.hmget(self.keys.record(batch), list(names)))
        return values

    def parts(self, batch: str) -> list[Part]:
        """The partitions of a batch."""
        (blob,) = self.field(batch, "parts")
        if blob is None:
            raise BatchNotFound(f"batch {batch!r} is not known: it was never dispatched, or its retention is over")
        return unpack_parts(blob)

    def outcomes(
        self, batch: str, *, after: int, block: float | None, count: int, patience: float | None = None
    ) -> list[Entry]:
        """Entries of the outcome stream behind an ordinal; waits `block` seconds for the first (None: not at all)."""
        key = self.keys.build("outcomes", batch)
        # A wait longer than the socket's patience would look like a server that does not answer.
        longest = self.client.settings.socket_timeout / 2
        wait = None if block is None else max(1, round(min(block, longest) * 1000))
        reply = self.client.read(
            lambda redis: redis.xread({key: f"{after}-0"}, count=count, block=wait), patience=patience
        )
        if not reply:
            return []
        return [Entry(int(entry.partition(b"-")[0]), fields[b"b"], b"o" in fields) for entry, fields in reply[0][1]]

    def news(self, seen: Mapping[str, int], *, block: float) -> list[str]:
        """Which of these batches have entries behind the ordinal seen; waits `block` seconds for the first."""
        wait = max(1, round(min(block, self.client.settings.socket_timeout / 2) * 1000))
        streams = {self.keys.build("outcomes", batch): f"{after}-0" for batch, after in seen.items()}
        names = dict(zip((key.encode() for key in streams), seen, strict=True))
        reply = self.client.read(lambda redis: redis.xread(streams, count=1, block=wait))
        return [names[key] for key, _entries in reply or ()]

    def entries(self, batch: str, *, after: int = 0) -> Iterator[list[Entry]]:
        """All entries there are, in slices whose size follows the entries' bytes."""
        count = 64
        while found := self.outcomes(batch, after=after, block=None, count=count):
            yield found
            after = found[-1].ordinal
            count = next_count(count, found)

    def entry(self, batch: str, ordinal: int) -> Entry | None:
        """One entry by its ordinal."""
        key, wanted = self.keys.build("outcomes", batch), f"{ordinal}-0"
        reply = self.client.read(lambda redis: redis.xrange(key, wanted, wanted))
        return Entry(ordinal, reply[0][1][b"b"], b"o" in reply[0][1]) if reply else None

    def index(self, batch: str) -> bytes:
        """The ordinals of all outcomes, 4 bytes a position, read in slices."""
        key, step = self.keys.build("index", batch), 1 << 20
        pieces: list[bytes] = []

        def piece(redis: Any) -> Any:
            return redis.getrange(key, len(pieces) * step, len(pieces) * step + step - 1)

        while not pieces or len(pieces[-1]) == step:
            pieces.append(self.client.read(piece))
        return b"".join(pieces)

    def ordinal_of(self, batch: str, position: int) -> int:
        """The ordinal of an item's outcome; 0 when there is none yet."""
        mark = self.client.read(
            lambda redis: redis.getrange(self.keys.build("index", batch), position * 4, position * 4 + 3)
        )
        return int.from_bytes(mark, "big")

    def position_of(self, batch: str, item_id: str) -> int | None:
        """The position of an item, or None when the batch has no such item."""
        parts, total, named = self.field(batch, "parts", "total", "named")
        if parts is None:
            raise BatchNotFound(f"batch {batch!r} is not known: it was never dispatched, or its retention is over")
        if int(named or 0) & 1:
            found = self.client.read(lambda redis: redis.hget(self.keys.build("ids", batch), item_id))
            if found is not None:
                return int(found)
        if not (
            item_id.isascii() and item_id.isdigit() and str(int(item_id)) == item_id and int(item_id) < int(total or 0)
        ):
            return None
        return int(item_id) if not int(named or 0) & 1 or self._is_unnamed(batch, int(item_id)) else None

    def _is_unnamed(self, batch: str, position: int) -> bool:
        """True when the item's slice came before the first custom id: only from there on the store knows ids."""
        return not self.client.read(
            lambda redis: redis.hexists(self.keys.build("names", batch), str(position // CHUNK))
        )

    def chunks(self, batch: str, numbers: Sequence[int]) -> dict[int, ChunkView]:
        """Chunks by number."""
        if not numbers:
            return {}
        blobs = self.client.read(lambda redis: redis.hmget(self.keys.build("items", batch), [str(n) for n in numbers]))
        return {n: ChunkView(blob) for n, blob in zip(numbers, blobs, strict=True) if blob is not None}

    def names(self, batch: str, positions: Sequence[int]) -> list[str]:
        """The ids of these positions."""
        views = self.chunks(batch, sorted({position // CHUNK for position in positions}))
        return [
            views[position // CHUNK].item_id(position % CHUNK, position)
            if position // CHUNK in views
            else str(position)
            for position in positions
        ]

    def big_call(self, batch: str, position: int) -> bytes:
        """A call that is stored out of line."""
        data = self.client.read(lambda redis: redis.hget(self.keys.build("big", batch), str(position)))
        if data is None:
            raise BatchNotFound(f"batch {batch!r}: the call of item {position} is gone")
        return bytes(data)

    def batches(self, *, workflow: str | None = None, newest: int = 1000) -> list[str]:
        """Batch ids, newest first."""
        key = self.keys.build("batches") if workflow is None else self.keys.build("workflow", workflow)
        return [_text(name) for name in self.client.read(lambda redis: redis.zrevrange(key, 0, newest - 1))]

    def count_open(self) -> int:
        """How many batches are not over, callbacks included."""
        return int(self.client.read(lambda redis: redis.zcard(self.keys.build("open"))))

    def workflow_batches(self, workflow: str) -> list[str]:
        """All batches of a workflow, oldest first, read in slices."""
        key, names = self.keys.build("workflow", workflow), list[bytes]()

        def some(redis: Any) -> Any:
            return redis.zrange(key, len(names), len(names) + 4999)

        while found := self.client.read(some):
            names += found
        return [_text(name) for name in dict.fromkeys(names)]

    def workers(self) -> list[WorkerInfo]:
        """The workers that said they live."""

        def ask(redis: Any) -> list[Any]:
            pipeline = redis.pipeline(transaction=False)
            pipeline.hgetall(self.keys.build("workers"))
            pipeline.hkeys(self.keys.build("drains"))
            return list(pipeline.execute())

        rows, drains = self.client.read(ask)
        leaving = set(drains)
        found = []
        for name, blob in rows.items():
            entry = msgpack.unpackb(blob, raw=True, strict_map_key=False)
            offers = tuple((_text(queue), slots) for queue, slots in entry.get(b"q") or ())
            details = msgpack.unpackb(entry[b"d"])
            found.append(WorkerInfo(_text(name), float(entry[b"t"]), offers, details, name in leaving))
        return sorted(found)

    def ticket_queue(self, batch: str, slot: int) -> str | None:
        """The queue that a slot's ticket went to, or None when the slot has none."""
        value = self.client.read(lambda redis: redis.hget(self.keys.build("slots", batch), str(slot)))
        if value is None or not value.startswith(b"T|"):
            return None
        return _text(value).split("|", 3)[3]

    def tickets_out(self, queue: str) -> int:
        """Tickets out on a queue, of all batches."""
        value = self.client.read(lambda redis: redis.hget(self.keys.build("queues"), f"t:{queue}"))
        return int(value or 0)

    def leases(self) -> list[tuple[str, int, int, float]]:
        """All live lanes: batch, slot, generation, end of the lease in seconds since 1970."""
        found = []
        for member, score in self.client.read(
            lambda redis: redis.zrange(self.keys.build("leases"), 0, -1, withscores=True)
        ):
            batch, slot, generation = _text(member).split("\t")
            found.append((batch, int(slot), int(generation), float(score)))
        return found


def next_count(count: int, found: Sequence[Entry]) -> int:
    """How many entries to ask for next, so that one reply stays about a quarter of a megabyte."""
    size = sum(len(entry.blob) for entry in found)
    if size > _READ_BYTES:
        return max(1, count // 2)
    return min(4096, count * 2) if len(found) == count else count
