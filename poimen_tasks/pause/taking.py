"""Takes a workflow into a new snapshot: what its caller tells of it, and all that is needed to go on."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Any

from poimen_tasks._version import __version__
from poimen_tasks.errors import SnapshotConflict
from poimen_tasks.pause.cut import Taker
from poimen_tasks.pause.snapshot import Snapshot
from poimen_tasks.pause.snapshot_file import SnapshotWriter
from poimen_tasks.pause.snapshot_words import live_fields
from poimen_tasks.store import Store
from poimen_tasks.store.keys import LAYOUT

__all__ = ["take"]


def take(
    file: IO[bytes],
    store: Store,
    workflow: str,
    *,
    own: dict[str, Any],
    actor: str,
    reason: str,
    progress: Callable[[int], None],
) -> Snapshot:
    """Write a workflow's snapshot into a new file.

    Args:
        file: open for writing.
        store: where the workflow is.
        workflow: its id.
        own: what the caller tells; it counts more than what the batches tell.
        actor: who takes it.
        reason: why.
        progress: told now and then how many more items were read.

    Raises:
        SnapshotConflict: a part of it is there only.
        StoreUnavailable: Redis does not answer.
    """
    told: dict[str, Any] = {
        "id": secrets.token_hex(8),
        "workflow": workflow,
        "timestamp": store.reads.now(),
        "actor": actor,
        "reason": reason,
        "version": __version__,
        "layout": str(LAYOUT),
        "namespace": store.settings.namespace,
    }
    _refuse_part(store, workflow)
    writer = SnapshotWriter(file, told)
    taker = Taker(store, writer, progress)
    names = store.reads.workflow_batches(workflow)
    pauses = _pauses(store, workflow, names)
    taker.write("pauses", pauses)
    stages = [found for batch in names if (found := taker.take(batch)) is not None]
    taker.end()
    _refuse_part(store, workflow)
    told |= live_fields(stages) | own | {"pauses": pauses, "batches": [one.described() for one in stages]}
    paused_at = pauses.get(f"w:{workflow}", {}).get("paused_at")
    told["paused_at"] = float(paused_at) if paused_at else None
    size = writer.finish(Snapshot.unpacked(told).packed())
    return replace(Snapshot.unpacked(told), size=size)


def _pauses(store: Store, workflow: str, batches: list[str]) -> dict[str, dict[str, str]]:
    states = store.snapshots.pause_states([f"w:{workflow}", *(f"b:{batch}" for batch in batches)])
    return {scope: state for scope, state in states.items() if state.get("state") == "paused"}


def _refuse_part(store: Store, workflow: str) -> None:
    """A part of a workflow would take the place of the whole."""
    if store.snapshots.is_restoring(workflow):
        raise SnapshotConflict(
            f"workflow {workflow!r} is being restored here, or that broke off: wait for it, or restore it again, "
            "before a new snapshot is taken"
        )
