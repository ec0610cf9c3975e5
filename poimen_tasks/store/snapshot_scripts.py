"""What a snapshot reads and restores, one method a script, and the reads between them; see `lua/` for the scripts.

Blobs pass through unread: a snapshot is what the store holds, in the store's own forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.client import Client
from poimen_tasks.store.scripts import new_owner, tickets_of
from poimen_tasks.store.values import Ticket

__all__ = ["BatchCut", "ChunkRow", "Hidden", "Piece", "Restored", "SnapshotScripts"]

#: Entries that the cut itself brings; more are read in slices.
INLINE = 1000
_SLICE_CHUNKS = 7  # of 256 items: below 2,000
_SLICE = 1000
_BYTES = 1 << 20
_TRIES = 3
_CHUNK = 256
HOLD = 30.0
"""Seconds that a restorer may be silent before another one may go on in its place."""

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


class Piece(NamedTuple):
    """A part of a batch to be written back: what a script takes, and its payloads."""

    request: dict[str, Any]
    payloads: tuple[bytes, ...] = ()


class Restored(NamedTuple):
    """Reply of `restore_end`: `left` items of a cancelled batch wait for their outcome."""

    already: bool
    over: bool
    left: int
    tickets: list[Ticket]


def _pairs(flat: Sequence[bytes] | Mapping[bytes, bytes] | None) -> Pairs:
    if isinstance(flat, Mapping):
        return list(flat.items())
    row = list(flat or ())
    return list(zip(row[::2], row[1::2], strict=True))


def _entry(row: Any) -> tuple[int, bytes, bool]:
    name, fields = row
    told = dict(_pairs(fields))
    return int(name.partition(b"-")[0]), told[b"b"], b"o" in told


def _hidden(row: Sequence[Any]) -> Hidden:
    name, record, chunk, outcomes, attempts, delayed, checkpoints, index = row
    return Hidden(
        name.decode(),
        dict(_pairs(record)),
        chunk,
        [_entry(entry) for entry in outcomes or ()],
        _pairs(attempts),
        _pairs(delayed),
        _pairs(checkpoints),
        index,
    )


class SnapshotScripts:
    """Reads and verbs of snapshots."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.keys = client.keys
        settings = client.settings
        self._bounds = {"unsealed": settings.audit_unsealed_limit, "overdue": settings.ticket_overdue}

    def _call(self, name: str, request: dict[str, Any], payloads: tuple[bytes, ...] = ()) -> Any:
        return self.client.call(name, request | self._bounds, owner=new_owner(), sequence=1, payloads=payloads)

    # --- reading -------------------------------------------------------------------------------------------------

    def cut(self, batch: str) -> BatchCut | None:
        """A batch at one instant; None when it is not there.

        What unfinished items carry comes with the cut when it is little. Else it is read in slices while nothing
        changes, and after three changes in one call.
        """
        for _ in range(_TRIES):
            cut, inline = self._cut(batch, whole=False)
            if cut is None or inline:
                return cut
            entries = self._entries(batch)
            (changes,) = self.client.read(lambda redis: redis.hmget(self.keys.record(batch), ["changes"]))
            if changes == cut.record.get(b"changes"):
                return cut._replace(attempts=entries[0], delayed=entries[1], checkpoints=entries[2])
        return self._cut(batch, whole=True)[0]

    def _cut(self, batch: str, *, whole: bool) -> tuple[BatchCut | None, bool]:
        reply = self._call("snapshot_cut", {"b": batch, "most": INLINE, "whole": whole})
        if not reply:
            return None, False
        cut = BatchCut(
            batch,
            float(reply[b"now"]),
            dict(_pairs(reply[b"record"])),
            reply[b"index"],
            [(position, part, float(since)) for position, part, since in reply[b"running"] or ()],
            _pairs(reply.get(b"attempts")),
            _pairs(reply.get(b"delayed")),
            _pairs(reply.get(b"checkpoints")),
            [_hidden(row) for row in reply[b"hidden"] or ()],
        )
        return cut, reply[b"held"] is not False

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

    def is_empty(self) -> bool:
        """True when the namespace has no batch."""
        return not self.client.read(lambda redis: redis.exists(self.keys.build("batches")))

    # --- writing -------------------------------------------------------------------------------------------------

    def note_snapshot(self, workflow: str, **told: Any) -> bool:
        """A snapshot is on disk. Returns whether the workflow is paused."""
        return bool(self._call("note_snapshot", {"workflow": workflow, **told})[b"paused"])

    def note_failure(self, workflow: str, why: str) -> None:
        """A snapshot of a paused workflow was not taken; its pause tells so."""
        self._call("note_snapshot", {"workflow": workflow, "failed": why[:500]})

    def restore_begin(
        self, snapshot: str, *, workflow: str, holder: str, batches: Sequence[str], hold: float = HOLD
    ) -> None:
        """See that a snapshot can be restored here, and begin; with `hold` 0 another one may go on.

        Raises:
            SnapshotConflict: it was restored here, somebody restores it, or a batch is there already.
        """
        request = {"snapshot": snapshot, "workflow": workflow, "holder": holder, "hold": hold}
        for at in range(0, len(batches), 500):
            self._call("restore_begin", {**request, "batches": list(batches[at : at + 500]), "check": True})
        self._call("restore_begin", {**request, "batches": list(batches[-500:]), "check": False})

    def restore_slice(self, snapshot: str, batch: str, piece: Piece, *, holder: str) -> bool:
        """Write a piece of a batch. True when the whole batch is restored already."""
        request = {"snapshot": snapshot, "holder": holder, "hold": HOLD, "b": batch, **piece.request}
        return bool(self._call("restore_slice", request, piece.payloads)[b"done"])

    def restore_end(
        self, snapshot: str, batch: str, *, holder: str, fields: Sequence[Any], created: float, actor: str, reason: str
    ) -> Restored:
        """A batch is whole: from here on it is known, and claimable."""
        request = {"snapshot": snapshot, "holder": holder, "b": batch, "fields": list(fields), "created": created}
        reply = self._call("restore_end", request | {"actor": actor, "reason": reason})
        return Restored(bool(reply.get(b"already")), bool(reply.get(b"over")), int(reply[b"left"]), tickets_of(reply))

    def restore_done(self, snapshot: str, *, holder: str, workflow: str, **told: Any) -> bool:
        """All of it is restored. False when it was so already."""
        request = {"snapshot": snapshot, "holder": holder, "workflow": workflow, **told}
        return not self._call("restore_done", request)[b"already"]
