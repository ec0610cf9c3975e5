"""What a snapshot says in words about a batch: collected while the batch is written, never read twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poimen_tasks import codec
from poimen_tasks.errors import SerializationError
from poimen_tasks.pause.snapshot import MOST_TASKS
from poimen_tasks.store.chunk_blob import CHUNK, ChunkView
from poimen_tasks.store.outcome_blob import decode_outcomes
from poimen_tasks.store.ranges import expand_ranges
from poimen_tasks.store.scripts import unpack_parts
from poimen_tasks.store.snapshot_reads import BatchCut, ChunkRow

__all__ = ["StageSummary"]

_NONE = b"\0\0\0\0"
_COUNTS = ("total", "pending", "delayed", "waiting", "running", "failed", "cancelled", "skipped", "cached")


class StageSummary:
    """One batch: counters, some task ids of each kind, what ran.

    Attributes:
        completed, pending, failed: ids of items, at most `MOST_TASKS` each.
        error: the first failure that was met, as text; None without one.
    """

    def __init__(self, cut: BatchCut) -> None:
        self._cut = cut
        self._total = cut.number("total")
        self._bad = cut.number("failed") + cut.number("cancelled") + cut.number("skipped") > 0
        self._running = max(cut.running, key=lambda row: row[2], default=None)
        self._parts = unpack_parts(cut.record[b"parts"])
        self.completed: list[str] = []
        self.pending: list[str] = []
        self.failed: list[str] = []
        self.current: str | None = None
        self.error: str | None = None
        self._wanted: dict[int, str] = {}

    @property
    def created(self) -> float:
        """When it was dispatched."""
        return float(self._cut.record.get(b"created") or 0)

    @property
    def over(self) -> bool:
        """Whether every item has its outcome."""
        return self._cut.number("over") == 1

    @property
    def stage(self) -> str:
        """Its name in the workflow."""
        return self._cut.text("stage")

    @property
    def activity(self) -> str | None:
        """The task of the item that ran."""
        return None if self._running is None else self._parts[self._running[1]].activity

    @property
    def completed_count(self) -> int:
        """Items that succeeded."""
        return self._cut.number("ok")

    @property
    def failed_count(self) -> int:
        """Items that failed."""
        return self._cut.number("failed")

    @property
    def pending_count(self) -> int:
        """Items without an outcome."""
        return sum(self._cut.number(name) for name in ("pending", "delayed", "waiting", "running"))

    def note_chunks(self, rows: Sequence[ChunkRow]) -> None:
        """Look at some chunks, as long as ids are wanted of them."""
        current = -1 if self._running is None else self._running[0]
        for row in rows:
            first = row.number * CHUNK
            full = len(self.pending) >= MOST_TASKS and len(self.completed) >= MOST_TASKS
            if (full or self._says_nothing(first)) and not first <= current < first + CHUNK:
                continue
            ids = self._ids(row)
            if first <= current < first + len(ids):
                self.current = ids[current - first]
            self._sort(first, ids)

    def _says_nothing(self, first: int) -> bool:
        """All of a chunk is of a kind that has its fill."""
        marks = self._cut.index[4 * first : 4 * (first + CHUNK)]
        if len(self.completed) >= MOST_TASKS:
            return len(marks) == 4 * CHUNK and all(marks[at : at + 4] != _NONE for at in range(0, len(marks), 4))
        return len(self.pending) >= MOST_TASKS and not marks.strip(b"\0")

    @staticmethod
    def _ids(row: ChunkRow) -> list[str]:
        view, first = ChunkView(row.blob), row.number * CHUNK
        return [view.item_id(i, first + i) for i in range(len(view))]

    def _sort(self, first: int, ids: list[str]) -> None:
        index = self._cut.index
        for position, item_id in enumerate(ids[: max(0, self._total - first)], first):
            if index[4 * position : 4 * position + 4].strip(b"\0"):
                if not self._bad and len(self.completed) < MOST_TASKS:
                    self.completed.append(item_id)
            elif len(self.pending) < MOST_TASKS:
                self.pending.append(item_id)

    def note_outcomes(self, entries: Sequence[tuple[int, bytes, bool]]) -> None:
        """Look at outcomes, where not all of them are successes."""
        if not self._bad or (len(self.failed) >= min(MOST_TASKS, self.failed_count) and self._has_completed()):
            return
        for ordinal, blob, _ in entries:
            try:
                columns = decode_outcomes(blob)
            except SerializationError:
                continue
            if columns is not None:
                self._note_columns(ordinal, columns)

    def _has_completed(self) -> bool:
        return len(self.completed) >= min(MOST_TASKS, self.completed_count)

    def _note_columns(self, ordinal: int, columns: Any) -> None:
        mark = ordinal.to_bytes(4, "big")
        positions = expand_ranges(columns.ranges)
        statuses = columns.statuses or [0] * len(positions)
        for at, (position, status) in enumerate(zip(positions, statuses, strict=True)):
            if self._cut.index[4 * position : 4 * position + 4] != mark or status > 1:
                continue  # it ran again since, or neither succeeded nor failed
            kept = self.failed if status else self.completed
            if len(kept) < MOST_TASKS:
                kept.append(columns.ids[at] if columns.ids else str(position))
        if columns.errors and self.error is None and self.failed:
            _, kind, message, _ = columns.errors[0]
            self.error = f"{kind}: {message}"[:500]

    def close(self) -> None:
        """All is read: let go of what is large."""
        self._cut = self._cut._replace(index=b"", attempts=[], delayed=[], checkpoints=[], hidden=[])

    def counters(self) -> dict[str, Any]:
        """All counters."""
        found: dict[str, Any] = {name: self._cut.number(name) for name in _COUNTS}
        return {**found, "succeeded": self.completed_count}

    def described(self) -> dict[str, Any]:
        """What the snapshot tells of the batch."""
        cut = self._cut
        state = "cancelled" if cut.number("cancel") else "completed" if cut.number("ok") == self._total else "failed"
        return {
            "batch_id": cut.batch,
            "stage": self.stage,
            "state": state if self.over else "cancelling" if cut.number("cancel") else "open",
            **self.counters(),
            "round": cut.number("round"),
            "sealed": bool(cut.number("sealed")),
            "callbacks_pending": cut.number("callbacks"),
            "created_at": self.created,
            "started_at": float(cut.record.get(b"started") or 0) or None,
            "finished_at": float(cut.record.get(b"finished") or 0) or None,
            "taken_at": cut.now,
        }

    def configuration(self) -> dict[str, Any]:
        """Limit, queues, tasks and metadata."""
        stored = self._cut.record.get(b"metadata")
        try:
            metadata = codec.jsonable(codec.decode(stored)) if stored else {}
        except SerializationError:
            metadata = {}
        return {
            "concurrency": self._cut.number("limit") or None,
            "queues": sorted({part.queue for part in self._parts}),
            "activities": sorted({part.activity for part in self._parts}),
            "metadata": metadata,
        }
