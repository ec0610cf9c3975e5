"""The reads of a snapshot: what a batch holds, in slices, up to the lengths of its cut; and what is known of pauses.

Blobs pass through unread: a snapshot is what the store holds, in the store's own forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.client import Client

__all__ = ["BatchCut", "ChunkRow", "Hidden", "Pairs", "SnapshotReads", "as_entry", "as_pairs"]

_SLICE_CHUNKS = 7  # of 256 items: below 2,000
_SLICE = 1000
_BYTES = 1 << 20
_CHUNK = 256

Pairs = list[tuple[bytes, bytes]]


class Hidden(NamedTuple):
    """The hidden batch of a callback, whole."""

    batch: str
    record: dict[bytes, bytes]
    chunk: bytes
    outcomes: list[tuple[int, bytes, bool]]
    attempts: Pairs
    delayed: Pairs
    checkpoints: Pairs
    index: bytes  # type: ignore[assignment]  # hides tuple.index, which nobody asks of it


class BatchCut(NamedTuple):
    """One batch at one instant.

    Attributes:
        now: when, seconds since 1970 by the server's clock.
        record: its fields as they are stored.
        index: 4 bytes a position: the ordinal of its outcome, zeros for none.
        running: `(position, partition, since)` of the first item that each lane holds.
        attempts, delayed, checkpoints: what unfinished items carry, by position; `delayed` is
            `(position:partition, due)`.
    """

    batch: str
    now: float
    record: dict[bytes, bytes]
    index: bytes  # type: ignore[assignment]  # hides tuple.index
    running: list[tuple[int, int, float]]
    attempts: Pairs
    delayed: Pairs
    checkpoints: Pairs
    hidden: list[Hidden]

    def number(self, name: str) -> int:
        """A number of the record."""
        return int(self.record.get(name.encode()) or 0)

    def text(self, name: str) -> str:
        """A text of the record."""
        return (self.record.get(name.encode()) or b"").decode()


class ChunkRow(NamedTuple):
    """What is kept by chunk: the calls; the custom ids, the cache keys, or None."""

    number: int
    blob: bytes
    names: bytes | None
    digests: bytes | None


def as_pairs(flat: Sequence[bytes] | Mapping[bytes, bytes] | None) -> Pairs:
    """A reply's fields and values, in pairs."""
    if isinstance(flat, Mapping):
        return list(flat.items())
    row = list(flat or ())
    return list(zip(row[::2], row[1::2], strict=True))


def as_entry(row: Any) -> tuple[int, bytes, bool]:
    """An outcome entry: ordinal, blob, whether it ends the batch."""
    name, fields = row
    told = dict(as_pairs(fields))
    return int(name.partition(b"-")[0]), told[b"b"], b"o" in told


class SnapshotReads:
    """Reads of snapshots."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.keys = client.keys

    def _entries(self, batch: str) -> tuple[Pairs, Pairs, Pairs]:
        attempts = list(self._scan("attempts", batch))
        delayed: Pairs = []
        key = self.keys.build("delayed", batch)

        def some(redis: Any) -> Any:
            return redis.zrange(key, len(delayed), len(delayed) + _SLICE - 1, withscores=True)

        while rows := self.client.read(some):
            delayed.extend((member, repr(score).encode()) for member, score in rows)
        return attempts, delayed, list(self._scan("checkpoints", batch))

    def _scan(self, name: str, batch: str) -> Iterator[tuple[bytes, bytes]]:
        key, cursor, seen = self.keys.build(name, batch), 0, set[bytes]()
        while True:
            cursor, rows = self.client.read(lambda redis, at=cursor: redis.hscan(key, at, count=_SLICE))  # type: ignore[misc]
            for field, value in rows.items():
                if field not in seen:
                    seen.add(field)
                    yield field, value
            if cursor == 0:
                return

    def chunks(self, batch: str, total: int, *, named: bool, digests: bool) -> Iterator[list[ChunkRow]]:
        """The chunks of the first `total` items, less than 2,000 items at a time."""
        last = -(-total // _CHUNK)
        for first in range(0, last, _SLICE_CHUNKS):
            numbers = [str(number) for number in range(first, min(first + _SLICE_CHUNKS, last))]
            items = self._fields("items", batch, numbers)
            names = self._fields("names", batch, numbers) if named else [None] * len(numbers)
            keys = self._fields("digests", batch, numbers) if digests else [None] * len(numbers)
            yield [
                ChunkRow(int(number), blob, name, key)
                for number, blob, name, key in zip(numbers, items, names, keys, strict=True)
                if blob is not None
            ]

    def has_digests(self, batch: str) -> bool:
        """True when items of it have cache keys."""
        return bool(self.client.read(lambda redis: redis.exists(self.keys.build("digests", batch))))

    def big_calls(self, batch: str, positions: Sequence[int]) -> Iterator[list[tuple[int, bytes]]]:
        """Calls that are stored out of line, about a megabyte at a time."""
        key = self.keys.build("big", batch)

        def lengths(redis: Any) -> list[int]:
            pipeline = redis.pipeline(transaction=False)
            for position in positions:
                pipeline.hstrlen(key, str(position))
            return list(pipeline.execute())

        some: list[int] = []
        size = 0
        for position, length in zip(positions, self.client.read(lengths), strict=True):
            if some and size + length > _BYTES:
                yield self._some_big(batch, some)
                some, size = [], 0
            some.append(position)
            size += length
        if some:
            yield self._some_big(batch, some)

    def _some_big(self, batch: str, positions: list[int]) -> list[tuple[int, bytes]]:
        values = self._fields("big", batch, [str(position) for position in positions])
        return [(position, value) for position, value in zip(positions, values, strict=True) if value is not None]

    def _fields(self, name: str, batch: str, fields: list[str]) -> list[bytes | None]:
        values: list[bytes | None] = self.client.read(lambda redis: redis.hmget(self.keys.build(name, batch), fields))
        return values

    def outcomes(self, batch: str, upto: int) -> Iterator[list[tuple[int, bytes, bool]]]:
        """The outcome entries up to an ordinal: `(ordinal, blob, ends)`, in slices of about a quarter of a megabyte."""
        key, last, count = self.keys.build("outcomes", batch), 0, 64

        def some(redis: Any) -> Any:
            return redis.xrange(key, f"{last + 1}-0", f"{upto}-0", count=count)

        while last < upto:
            rows = self.client.read(some)
            if not rows:
                return
            found = [(int(name.partition(b"-")[0]), fields[b"b"], b"o" in fields) for name, fields in rows]
            yield found
            last = found[-1][0]
            size = sum(len(blob) for _, blob, _ in found)
            count = max(1, count // 2) if size > _BYTES // 4 else min(_SLICE, count * 2)

    def pause_states(self, scopes: Sequence[str]) -> dict[str, dict[str, str]]:
        """What is known of these scopes' pauses, of those that have a state."""

        def ask(redis: Any) -> list[Any]:
            pipeline = redis.pipeline(transaction=False)
            for scope in scopes:
                pipeline.hgetall(self.keys.build("pause_state", scope))
            return list(pipeline.execute())

        found = self.client.read(ask) if scopes else []
        return {
            scope: {name.decode(): value.decode(errors="replace") for name, value in state.items() if name[:2] != b"r:"}
            for scope, state in zip(scopes, found, strict=True)
            if state
        }

    def paused_workflows(self) -> dict[str, tuple[int, bool]]:
        """Workflow to the epoch of its pause, and whether what runs had time enough."""

        def ask(redis: Any) -> Any:
            return redis.pipeline(transaction=False).hgetall(self.keys.build("pauses")).time().execute()

        flags, (seconds, _) = self.client.read(ask)
        found = {}
        for scope, flag in flags.items():
            if scope.startswith(b"w:"):
                epoch, stop_at, _ = flag.split(b"|")
                found[scope[2:].decode()] = (int(epoch), stop_at != b"-" and float(stop_at) <= seconds)
        return found

    def is_restoring(self, workflow: str) -> bool:
        """True while a workflow is being restored, and where that broke off."""

        def ask(redis: Any) -> Any:
            return redis.pipeline(transaction=False).zscore(self.keys.build("restoring"), workflow).time().execute()

        until, (seconds, _) = self.client.read(ask)
        return until is not None and float(until) > seconds

    def is_empty(self) -> bool:
        """True when the namespace has no batch."""
        return not self.client.read(lambda redis: redis.exists(self.keys.build("batches")))
