"""Brings one snapshot back: its pauses first, then its batches; and lets the workflow go on."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poimen_tasks.errors import NotPaused, PoimenError
from poimen_tasks.pause.restore import Publish, Restorer
from poimen_tasks.pause.snapshot import Snapshot
from poimen_tasks.pause.snapshot_file import SnapshotReader
from poimen_tasks.store import Store
from poimen_tasks.store.values import WaitingCall

__all__ = ["Revival"]

log = logging.getLogger(__name__)


class Revival:
    """The way back of one snapshot.

    Args:
        store: where to.
        snapshot: what.
        actor: who restores.
        reason: why.
        publish: takes tickets.
        publish_calls: takes plain calls that were held.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        *,
        actor: str,
        reason: str,
        publish: Publish,
        publish_calls: Callable[[Sequence[WaitingCall]], None],
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._told = {"actor": actor, "reason": reason}
        self._publish = publish
        self._publish_calls = publish_calls
        self._scope = f"w:{snapshot.workflow}"
        self._holder = secrets.token_hex(8)

    def run(self, reader: SnapshotReader, *, resume: bool, progress: Callable[[int], None]) -> None:
        """Restore all of it.

        Raises:
            PoimenError: see `Snapshots.restore`; what is written so far is known to nobody, and expires.
        """
        snapshot, scripts = self._snapshot, self._store.snapshots
        begin: dict[str, Any] = {
            "workflow": snapshot.workflow,
            "holder": self._holder,
            "batches": [str(batch["batch_id"]) for batch in snapshot.batches],
        }
        scripts.restore_begin(snapshot.id, **begin)
        try:
            for scope, state in snapshot.pauses.items():
                if scope != self._scope or not resume:
                    self._pause_again(scope, state)
            restorer = Restorer(
                self._store, reader, snapshot=snapshot.id, holder=self._holder, publish=self._publish,
                progress=progress, **self._told,
            )  # fmt: skip
            restorer.run()
            told = {"batches": restorer.batches, "items": restorer.items, "taken": snapshot.timestamp.timestamp()}
            scripts.restore_done(snapshot.id, holder=self._holder, workflow=snapshot.workflow, **told, **self._told)
        except BaseException:
            self._let_go(begin)
            raise
        if resume:
            self._resume()

    def _pause_again(self, scope: str, state: Mapping[str, str]) -> None:
        """A pause comes back with its batches, in front of them; one that stands here is newer, and stays as it is."""
        ends, grace = state.get("expires_at"), state.get("grace")
        self._store.pauses.pause_scope(
            scope,
            reason=state.get("reason", ""),
            actor=state.get("actor") or "unknown",
            grace=float(grace) if grace else None,
            terminate=state.get("terminate") == "1",
            standing=True,
            expires=max(0.0, float(ends) - self._store.reads.now()) if ends else None,
            request_id=f"{self._snapshot.id}.{self._holder}",
        )

    def _let_go(self, begin: dict[str, Any]) -> None:
        """Another one may go on at once."""
        try:
            self._store.snapshots.restore_begin(self._snapshot.id, **begin, hold=0.0)
        except PoimenError as error:
            log.warning("a restore that broke off can be taken up in half a minute: %s", error)

    def _resume(self) -> None:
        """The workflow may have been paused here before it came back."""
        try:
            reply = self._store.pauses.resume_scope(self._scope, reason="restored", actor=self._told["actor"])
        except NotPaused:
            return
        while True:
            self._publish(reply.tickets, {})
            self._publish_calls(reply.calls)
            if not reply.left or not reply.released:
                return
            reply = self._store.pauses.release_held(self._scope)
