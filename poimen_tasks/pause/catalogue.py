"""Which snapshots there are, as far as they can be read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime

from poimen_tasks.errors import SnapshotCorrupt, SnapshotNotFound, SnapshotTooNew
from poimen_tasks.pause.snapshot import Snapshot, SnapshotStats
from poimen_tasks.pause.snapshot_shelf import Shelf

__all__ = ["Catalogue"]

log = logging.getLogger(__name__)


class Catalogue:
    """That of one directory. A file that cannot be read is told in the log and left out."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def find(self, workflow: str, generation: int) -> Snapshot:
        """The snapshot of a workflow.

        Raises:
            SnapshotNotFound: there is none.
            SnapshotCorrupt: its file is torn, was altered, or is no snapshot.
            SnapshotTooNew: a newer version of this package wrote it.
        """
        shelf = self._shelf
        path = shelf.path(workflow, generation)
        if not shelf.is_there(path):
            which = f" of generation {generation}" if generation else ""
            raise SnapshotNotFound(f"workflow {workflow!r} has no snapshot{which} in {str(shelf.directory)!r}")
        return shelf.value(path, generation)

    def all(self, *, generations: bool) -> list[Snapshot]:
        """The newest of each workflow, the newest first; with `generations` those before them too."""
        found = [one for one in self._readable() if generations or one.generation == 0]
        return sorted(found, key=lambda one: one.timestamp, reverse=True)

    def stats(self) -> SnapshotStats:
        """How many there are, and how large."""
        found, size, files = list(self._readable()), 0, 0
        for _, path in self._shelf.files():
            files += 1
            for one in (path, path.with_name(path.name + ".json")):
                size += one.lstat().st_size if one.exists() else 0
        times = [one.timestamp for one in found]
        return SnapshotStats(
            count=len(found),
            workflows=len({one.workflow for one in found}),
            bytes=size,
            corrupt=files - len(found),
            oldest=min(times, default=None),
            newest=max(times, default=None),
            directory=str(self._shelf.directory),
        )

    def remove_older(self, limit: datetime) -> int:
        """Remove those that were taken before a moment. Returns how many."""
        shelf, gone = self._shelf, 0
        for one in self.all(generations=True):
            if one.timestamp < limit:
                shelf.remove_one(shelf.path(one.workflow, one.generation))
                gone += 1
        return gone

    def _readable(self) -> Iterator[Snapshot]:
        for generation, path in self._shelf.files():
            if generation < 0:
                log.warning("left out: %s is no snapshot of ours: it is named otherwise, or a link", path)
                continue
            try:
                yield self._shelf.value(path, generation)
            except (SnapshotNotFound, SnapshotCorrupt, SnapshotTooNew) as error:
                log.warning("left out: %s", error)
