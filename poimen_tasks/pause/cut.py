"""Takes a workflow as it is: each batch at one instant, written out section by section.

Sections of the body, in order:

```
pauses      {scope: state}
batch       id, record, when, total           then, as far as there are any, for this batch:
index       offset, bytes                     attempts, checkpoints, big   [[position, bytes], ...]
delayed     [[position:partition, due], ...]  chunks    [[number, calls, names, digests], ...]
outcomes    [[ordinal, bytes, ends], ...]     over      id
end         how many sections came before
```

The hidden batches of a batch's callbacks stand behind it, in the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from poimen_tasks.pause.portions import PIECE, portions
from poimen_tasks.pause.snapshot_file import SnapshotWriter
from poimen_tasks.pause.summary import StageSummary
from poimen_tasks.store import Store
from poimen_tasks.store.chunk_blob import CHUNK, ChunkView
from poimen_tasks.store.snapshot_reads import BatchCut, ChunkRow, Hidden

__all__ = ["Taker"]

_MOST_ROWS = 1000


class Taker:
    """Writes the batches of one workflow.

    Args:
        store: where they are.
        writer: takes its sections.
        progress: told of each portion how many items it had.
    """

    def __init__(self, store: Store, writer: SnapshotWriter, progress: Callable[[int], None]) -> None:
        self._reads = store.snapshots
        self._writer = writer
        self._progress = progress
        self._count = 0

    def write(self, kind: str, *values: Any) -> None:
        """Add a section."""
        self._count += 1
        self._writer.section(kind, *values)

    def end(self) -> None:
        """The last section: a body that breaks off in front of it is torn."""
        self._writer.section("end", self._count)

    def take(self, batch: str) -> StageSummary | None:
        """Write a batch and its callbacks; None when it is not there any more."""
        cut = self._reads.snapshot_cut(batch)
        if cut is None:
            return None
        summary = StageSummary(cut)
        total = cut.number("total")
        self._begin(cut.batch, cut.record, cut.now, total)
        self._index(cut.index[: 4 * total])
        self._carried(cut.attempts, cut.delayed, cut.checkpoints)
        self._items(cut, total, summary)
        for entries in self._reads.outcomes(batch, cut.number("ordinal")):
            summary.note_outcomes(entries)
            self.write("outcomes", [list(entry) for entry in entries])
        self.write("over", batch)
        for hidden in cut.hidden:
            self._hidden(hidden, cut.now)
        summary.close()
        return summary

    def _begin(self, batch: str, record: dict[bytes, bytes], now: float, total: int) -> None:
        self.write("batch", batch, [[name, value] for name, value in record.items()], now, total)

    def _index(self, index: bytes) -> None:
        for at in range(0, len(index), PIECE):
            self.write("index", at, index[at : at + PIECE])

    def _carried(self, attempts: Any, delayed: Any, checkpoints: Any) -> None:
        for kind, rows in (("attempts", attempts), ("delayed", delayed), ("checkpoints", checkpoints)):
            for some in portions(rows, lambda row: len(row[1]), most=_MOST_ROWS):
                self.write(kind, [_row(kind, row) for row in some])

    def _items(self, cut: BatchCut, total: int, summary: StageSummary) -> None:
        named, big = bool(cut.number("named")), self._reads.client.read(self._has_big(cut.batch))
        digests = self._reads.has_digests(cut.batch)
        for rows in self._reads.chunks(cut.batch, total, named=named, digests=digests):
            summary.note_chunks(rows)
            for some in portions(rows, lambda row: len(row.blob), most=_MOST_ROWS):
                self.write("chunks", [list(row) for row in some])
            if big:
                self._big(cut.batch, rows)
            self._progress(min(CHUNK * len(rows), total))

    def _has_big(self, batch: str) -> Callable[[Any], bool]:
        return lambda redis: bool(redis.exists(self._reads.keys.build("big", batch)))

    def _big(self, batch: str, rows: Sequence[ChunkRow]) -> None:
        for row in rows:
            view = ChunkView(row.blob)
            positions = [row.number * CHUNK + i for i in range(len(view)) if view.has_extras and view.is_big(i)]
            for some in self._reads.big_calls(batch, positions) if positions else ():
                self.write("big", [list(pair) for pair in some])

    def _hidden(self, hidden: Hidden, now: float) -> None:
        self._begin(hidden.batch, hidden.record, now, 1)
        self._index(hidden.index)
        self._carried(hidden.attempts, hidden.delayed, hidden.checkpoints)
        self.write("chunks", [[0, hidden.chunk, None, None]])
        if hidden.outcomes:
            self.write("outcomes", [list(entry) for entry in hidden.outcomes])
        self.write("over", hidden.batch)


def _row(kind: str, row: tuple[bytes, bytes]) -> list[Any]:
    name, value = row
    return [name.decode(), float(value)] if kind == "delayed" else [int(name), value]
