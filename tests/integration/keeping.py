"""Snapshots of stores without any worker: taken from one namespace, restored into another."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

from poimen_tasks.pause import Snapshots
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.ranges import expand_ranges
from poimen_tasks.store.scripts import pack_parts
from poimen_tasks.store.snapshot_reads import BatchCut
from poimen_tasks.store.snapshot_scripts import Piece
from tests.integration import lanes


class Keeping:
    """Snapshots of a store; what they publish is collected."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tickets: list[Any] = []
        self.calls: list[Any] = []
        self.snapshots = Snapshots(
            lambda: store.settings, lambda: store, lambda tickets, _: self.tickets.extend(tickets), self.calls.extend
        )

    def elsewhere(self, **changes: Any) -> Keeping:
        """An empty store, another namespace, with copies of the snapshots."""
        name = {"namespace": f"r{secrets.token_hex(6)}"}
        settings = self.store.settings.model_copy(update=name | changes)
        there = Keeping(Store(settings, str(settings.redis_url)))
        if self.snapshots.directory.exists():
            shutil.copytree(self.snapshots.directory, there.snapshots.directory)
        return there


def keeping(settings: Settings) -> Keeping:
    """Those of a test's own store."""
    return Keeping(Store(settings, str(settings.redis_url)))


def moved(store: Store, workflow: str = "w", **options: Any) -> Keeping:
    """Take a workflow, and restore it elsewhere."""
    here = Keeping(store)
    here.snapshots.create(workflow)
    there = here.elsewhere()
    there.snapshots.restore(workflow, **options)
    return there


def finished(cut: BatchCut) -> set[int]:
    """The positions that have an outcome in a cut."""
    index = cut.index
    return {at // 4 for at in range(0, len(index), 4) if index[at : at + 4].strip(b"\0")}


def told(store: Store, batch: str = "b") -> dict[int, Any]:
    """Position to its outcome's results, by the outcome blobs; the newest counts."""
    found: dict[int, Any] = {}
    for columns in lanes.outcomes(store, batch):
        positions = expand_ranges(columns.ranges)
        results = columns.results or [None] * len(positions)
        found.update(zip(positions, results, strict=True))
    return found


def begin(store: Store, snapshot: str = "s1", *, holder: str = "h", batches: tuple[str, ...] = ("b",)) -> None:
    """Somebody begins to restore."""
    store.snapshots.restore_begin(snapshot, workflow="w", holder=holder, batches=batches)


def write(store: Store, piece: Piece, snapshot: str = "s1", *, holder: str = "h") -> bool:
    """And writes a piece."""
    return store.snapshots.restore_slice(snapshot, "b", piece, holder=holder)


def end(store: Store, snapshot: str = "s1", *, holder: str = "h", fields: Any = None, whole: bool = True) -> Any:
    """And ends an empty batch; without `whole` only its first piece is written."""
    if not whole:
        return write(store, Piece({}), snapshot, holder=holder)
    parts = {"parts": pack_parts([lanes.PART]), "workflow": "w", "stage": "s", "sealed": 1, "retention": 60}
    record = parts | {"limit": 0, "total": 1, "pending": 1, "c:0": 1, "ordinal": 0, "created": 1.0}
    given = [word for pair in record.items() for word in pair] if fields is None else fields
    return store.snapshots.restore_end(
        snapshot, "b", holder=holder, fields=given, created=1.0, actor="me", reason="why"
    )


def done(store: Store, snapshot: str = "s1", *, holder: str = "h") -> bool:
    """And says that it was all."""
    told_ = {"batches": 1, "items": 4, "taken": 10.5, "actor": "me", "reason": "why"}
    return store.snapshots.restore_done(snapshot, holder=holder, workflow="w", **told_)


def files(settings: Settings) -> list[Path]:
    """The snapshots on disk."""
    return sorted((settings.data_dir / "snapshots").glob("*/*.snapshot"))
