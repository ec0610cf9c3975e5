"""Writes a snapshot's batches back, section by section; see `cut.py` for what the sections are.

Every piece may be written twice, and a batch is known to nobody before its last step: so a restorer that dies half-way
leaves nothing that runs, and another one goes on from the beginning of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack

from poimen_tasks.errors import SnapshotCorrupt
from poimen_tasks.pause.portions import portions
from poimen_tasks.pause.snapshot_file import SnapshotReader
from poimen_tasks.store import Store
from poimen_tasks.store.chunk_blob import CHUNK
from poimen_tasks.store.snapshot_scripts import Piece
from poimen_tasks.store.values import Ticket

__all__ = ["Restorer"]

_SOME = 500
_NONE = b"\0\0\0\0"
#: Tickets from before may still be in a broker that was not replaced: those of now have larger numbers.
_LATER = 1_000_000
_RECOUNTED = frozenset({b"pending", b"delayed", b"waiting", b"running", b"restored", b"restoring", b"generation"})
_GONE = (b"c:", b"qt:", b"ql:", b"kill:")
_CAME_BACK, _DELAYED = 1, 2
Publish = Callable[[Sequence[Ticket], dict[str, Any]], None]


class _Lists:
    """The claimable items of a batch, by partition: ranges that were never claimed, positions that came back."""

    def __init__(self) -> None:
        self.count: dict[int, int] = {}
        self._open: dict[int, tuple[int, int]] = {}
        self._full: dict[tuple[str, int], list[str]] = {}
        self._written: dict[tuple[str, int], int] = {}

    def fresh(self, part: int, low: int, high: int) -> None:
        """Items from low to high wait."""
        self.count[part] = self.count.get(part, 0) + high - low
        first, stop = self._open.get(part, (low, low))
        if stop == low:
            self._open[part] = (first, high)
        else:
            self._full.setdefault(("f", part), []).append(f"{first}:{stop}")
            self._open[part] = (low, high)

    def back(self, part: int, position: int) -> None:
        """An item waits that was claimed before."""
        self.count[part] = self.count.get(part, 0) + 1
        self._full.setdefault(("k", part), []).append(str(position))

    def pieces(self, *, all_: bool) -> Iterator[Piece]:
        """What is to be written: full portions, at the end all of it."""
        if all_:
            for part, (low, high) in self._open.items():
                self._full.setdefault(("f", part), []).append(f"{low}:{high}")
            self._open.clear()
        for key, entries in self._full.items():
            while len(entries) >= (1 if all_ else _SOME):
                some, entries[:] = entries[:_SOME], entries[_SOME:]
                written = self._written.get(key, 0)
                self._written[key] = written + len(some)
                yield Piece({"lists": [[key[0], key[1], written, some]]})


class _Batch:
    """One batch on its way back."""

    def __init__(self, path: Path, batch: str, record: list[list[bytes]], total: int) -> None:
        self.batch = batch
        self.record = {bytes(name): bytes(value) for name, value in record}
        self.total = total
        self.skipped = False
        self._path = path
        self._index = bytearray(4 * total)
        self._flags = bytearray(total)
        self._lists = _Lists()
        self._delayed = 0

    def pieces(self, kind: str, values: list[Any]) -> Iterator[Piece]:
        """A section as what is to be written."""
        if kind == "index":
            at, data = values
            self._index[at : at + len(data)] = data
            yield Piece({"index": at}, (data,))
        elif kind == "delayed":
            yield from self._put_delayed(values[0])
        elif kind == "chunks":
            yield from self._put_chunks(values[0])
        elif kind == "outcomes":
            for some in portions(values[0], lambda row: len(row[1]), most=_SOME):
                yield Piece({"outcomes": [[row[0], bool(row[2])] for row in some]}, tuple(row[1] for row in some))
        elif kind in ("attempts", "checkpoints", "big"):
            rows = values[0] if kind == "big" else [row for row in values[0] if self._is_open(row[0])]
            if kind == "attempts":
                for position, _ in rows:
                    self._flags[position] |= _CAME_BACK
            for some in portions(rows, lambda row: len(row[1]), most=_SOME):
                yield Piece({kind: [row[0] for row in some]}, tuple(row[1] for row in some))

    def _is_open(self, position: int) -> bool:
        return position < self.total and self._index[4 * position : 4 * position + 4] == _NONE

    def _put_delayed(self, rows: list[list[Any]]) -> Iterator[Piece]:
        kept = []
        for member, due in rows:
            position = int(member.partition(":")[0])
            if self._is_open(position):
                self._flags[position] |= _DELAYED
                kept.append((member, due))
        self._delayed += len(kept)
        for some in portions(kept, lambda _row: 1, most=_SOME):
            yield Piece({"delayed": [word for member, due in some for word in (repr(float(due)), member)]})

    def _put_chunks(self, rows: list[list[Any]]) -> Iterator[Piece]:
        for some in portions(rows, lambda row: len(row[1]), most=2 if any(row[2] for row in rows) else 7):
            request: dict[str, Any] = {"chunks": [row[0] for row in some]}
            payloads = [row[1] for row in some]
            for name, column in (("names", 2), ("digests", 3)):
                found = [row for row in some if row[column] is not None]
                if found:
                    request[name] = [row[0] for row in found]
                    payloads += [row[column] for row in found]
            request["ids"] = [word for row in some if row[2] is not None for word in self._ids(row[0], row[2])]
            yield Piece(request, tuple(payloads))
            for row in some:
                self._sort(row[0] * CHUNK, row[1])
            yield from self._lists.pieces(all_=False)

    def _ids(self, number: int, packed: bytes) -> Iterator[Any]:
        names = msgpack.unpackb(packed, raw=True)
        for position, name in enumerate(names[: self.total - number * CHUNK], number * CHUNK):
            yield name
            yield position

    def _sort(self, first: int, blob: bytes) -> None:
        """Where the unfinished items of a chunk wait."""
        stop = min(first + CHUNK, self.total)
        parts = self._parts(blob)
        marks, flags = self._index[4 * first : 4 * stop], self._flags[first:stop]
        if isinstance(parts, int) and not any(marks) and not any(flags):
            self._lists.fresh(parts, first, stop)
            return
        for at in range(stop - first):
            if marks[4 * at : 4 * at + 4] != _NONE or flags[at] & _DELAYED:
                continue
            part = parts if isinstance(parts, int) else parts[at]
            if flags[at] & _CAME_BACK:
                self._lists.back(part, first + at)
            else:
                self._lists.fresh(part, first + at, first + at + 1)

    def _parts(self, blob: bytes) -> int | list[int]:
        """A chunk's second column, behind the list's head and a float; see `encode_chunk`."""
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(memoryview(blob)[10 : 10 + 10 * CHUNK])
        parts = unpacker.unpack()
        if not isinstance(parts, int | list):
            raise SnapshotCorrupt(f"snapshot {str(self._path)!r}: batch {self.batch!r} has calls of another form")
        return parts

    def last_pieces(self) -> Iterator[Piece]:
        """What is left to be written when all sections were seen."""
        yield from self._lists.pieces(all_=True)

    def fields(self) -> list[Any]:
        """The record as it begins again: nothing runs, what waited or ran is pending."""
        kept: list[Any] = []
        for name, value in self.record.items():
            if name not in _RECOUNTED and not name.startswith(_GONE):
                kept += (name, value)
        generation = int(self.record.get(b"generation") or 0) + _LATER
        kept += ("pending", sum(self._lists.count.values()), "delayed", self._delayed, "generation", generation)
        for part, count in self._lists.count.items():
            kept += (f"c:{part}", count)
        return kept

    @property
    def created(self) -> float:
        """When it was dispatched."""
        return float(self.record.get(b"created") or 0)


class Restorer:
    """Restores the body of one file.

    Args:
        store: where to.
        reader: the file.
        snapshot: its id.
        holder: a random id of this restorer.
        actor: who restores.
        reason: why.
        publish: takes the tickets of batches that go on.
        progress: told of items that were written.
    """

    def __init__(
        self,
        store: Store,
        reader: SnapshotReader,
        *,
        snapshot: str,
        holder: str,
        actor: str,
        reason: str,
        publish: Publish,
        progress: Callable[[int], None],
    ) -> None:
        self._store = store
        self._reader = reader
        self._snapshot = snapshot
        self._holder = holder
        self._told = {"actor": actor, "reason": reason}
        self._publish = publish
        self._progress = progress
        self.batches = 0
        self.items = 0

    def run(self) -> None:
        """Write everything back.

        Raises:
            SnapshotCorrupt: the body breaks off, or has another form.
            SnapshotConflict: somebody else goes on with it, or a batch is there already.
        """
        open_: _Batch | None = None
        ended = False
        for seen, (kind, values) in enumerate(self._reader.sections()):
            if kind == "end":
                ended = values == [seen]
            elif kind == "batch":
                batch, record, _when, total = values
                open_ = _Batch(self._reader.path, batch, record, total)
                open_.skipped = self._write(open_, Piece({}))
            elif kind == "over" and open_ is not None:
                self._end(open_)
                open_ = None
            elif open_ is not None and not open_.skipped:
                self._section(open_, kind, values)
        if not ended:
            raise SnapshotCorrupt(f"snapshot {str(self._reader.path)!r}: its body breaks off")

    def _section(self, batch: _Batch, kind: str, values: list[Any]) -> None:
        for piece in batch.pieces(kind, values):
            if self._write(batch, piece):
                batch.skipped = True
                return
        if kind == "chunks":
            self._progress(CHUNK * len(values[0]))

    def _write(self, batch: _Batch, piece: Piece) -> bool:
        return self._store.snapshots.restore_slice(self._snapshot, batch.batch, piece, holder=self._holder)

    def _end(self, batch: _Batch) -> None:
        if not batch.skipped:
            for piece in batch.last_pieces():
                self._write(batch, piece)
        fields = [] if batch.skipped else batch.fields()
        reply = self._store.snapshots.restore_end(
            self._snapshot, batch.batch, holder=self._holder, fields=fields, created=batch.created, **self._told
        )
        tickets = reply.tickets
        for _ in range(-(-reply.left // _SOME)):
            tickets += self._store.scripts.promote_batch(batch.batch)
        if tickets:
            self._publish(tickets, {})
        if "@" not in batch.batch:
            self.batches += 1
            self.items += batch.total
