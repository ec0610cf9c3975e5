"""The elected keeper keeps each paused workflow on disk, once nothing of it runs or its grace is over.

Beside its other work: looking costs two reads a tick while something is paused, and writing has a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from poimen_tasks.errors import PoimenError

if TYPE_CHECKING:
    from poimen_tasks.pause.snapshots import Snapshots
    from poimen_tasks.store import Store

__all__ = ["PauseSnapshots"]

log = logging.getLogger(__name__)

_MOST_LOOKED = 20
_AGAIN = 30.0
ACTOR = "keeper"


class PauseSnapshots:
    """Those of one worker; only the elected one looks.

    Args:
        store: the keeper's.
        snapshots: where they are kept.
    """

    def __init__(self, store: Store, snapshots: Snapshots) -> None:
        self._store = store
        self._snapshots = snapshots
        # As patient as the fleet is: where leases are short somebody wants to know soon.
        self._again = min(_AGAIN, 2 * store.client.settings.lease)
        self._done: dict[str, int] = {}
        self._later: dict[str, float] = {}
        self._wanted: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Called at each tick of the elected keeper; it does not wait for a snapshot.

        Raises:
            StoreUnavailable: it does not answer.
        """
        paused = self._store.snapshots.paused_workflows()
        for gone in self._done.keys() - paused.keys():
            del self._done[gone]
            self._later.pop(gone, None)
        now = monotonic()
        new = [
            workflow
            for workflow, (epoch, _) in paused.items()
            if self._done.get(workflow) != epoch and self._later.get(workflow, 0.0) <= now
        ]
        for workflow in new[:_MOST_LOOKED]:
            epoch, over = paused[workflow]
            if self._is_taken(workflow, epoch) or not (over or self._is_quiet(workflow)):
                continue
            self._done[workflow] = epoch
            self._wanted.put((workflow, epoch))
        if not self._wanted.empty() and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._take, name="poimen-snapshots", daemon=True)
            self._thread.start()

    def _is_taken(self, workflow: str, epoch: int) -> bool:
        """Another keeper may have done it."""
        states = self._store.snapshots.pause_states([f"w:{workflow}"])
        taken = states.get(f"w:{workflow}", {}).get("snapshot_epoch") == str(epoch)
        if taken:
            self._done[workflow] = epoch
        return taken

    def _is_quiet(self, workflow: str) -> bool:
        return not self._store.pauses.scope_running(f"w:{workflow}").running

    def _take(self) -> None:
        while not self._wanted.empty():
            workflow, epoch = self._wanted.get()
            try:
                self._snapshots.create(workflow, actor=ACTOR, reason="paused")
            except PoimenError as error:
                log.warning("workflow %s is paused, and was not kept on disk: %s", workflow, error)
                self._failed(workflow, epoch, str(error))
            except Exception:
                log.exception("workflow %s is paused, and was not kept on disk", workflow)
                self._failed(workflow, epoch, "unexpected error, see the worker's log")

    def _failed(self, workflow: str, epoch: int, why: str) -> None:
        self._later[workflow] = monotonic() + self._again
        if self._done.get(workflow) == epoch:
            del self._done[workflow]
        try:
            self._store.snapshots.note_failure(workflow, why)
        except PoimenError as error:
            log.warning("workflow %s: that could not be noted: %s", workflow, error)
