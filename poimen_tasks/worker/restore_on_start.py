"""What a worker brings back at its start into a store that is empty: the workflows that are kept on disk."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from poimen_tasks.errors import PoimenError, SnapshotConflict

if TYPE_CHECKING:
    from poimen_tasks.pause.snapshot import Snapshot
    from poimen_tasks.pause.snapshots import Snapshots
    from poimen_tasks.store import Store

__all__ = ["begin_restore"]

log = logging.getLogger(__name__)

ACTOR = "worker"


def begin_restore(store: Store, snapshots: Snapshots) -> None:
    """Restore them in a thread of its own: the worker serves meanwhile."""
    threading.Thread(target=_restore_all, args=(store, snapshots), name="poimen-restore", daemon=True).start()


def _restore_all(store: Store, snapshots: Snapshots) -> None:
    """Restore the newest snapshot of each workflow, when the store is empty.

    What was paused stays so. Of several workers that begin at once one restores each of them.
    """
    if not snapshots.directory.is_dir() or not store.snapshots.is_empty():
        return
    for snapshot in snapshots.all():
        # Others may share the directory.
        if snapshot.namespace == store.settings.namespace and not _is_over(snapshot):
            _restore(snapshots, snapshot)


def _is_over(snapshot: Snapshot) -> bool:
    return all(
        batch.get("state") not in ("open", "cancelling") and not batch.get("callbacks_pending")
        for batch in snapshot.batches
    )


def _restore(snapshots: Snapshots, snapshot: Snapshot) -> None:
    """Restore one; errors are logged."""
    try:
        snapshots.restore(snapshot.workflow, resume=False, actor=ACTOR, reason="the store was empty")
        log.warning("workflow %s: restored from snapshot %s", snapshot.workflow, snapshot.id)
    except SnapshotConflict as error:
        log.info("workflow %s: not restored here: %s", snapshot.workflow, error)
    except PoimenError as error:
        log.error("workflow %s: not restored: %s", snapshot.workflow, error)  # noqa: TRY400 - an error in words
