"""What a snapshot needs of the store, one method a script; see `lua/` for the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.client import Client
from poimen_tasks.store.scripts import new_owner, tickets_of
from poimen_tasks.store.snapshot_reads import BatchCut, Hidden, SnapshotReads, as_entry, as_pairs
from poimen_tasks.store.values import Ticket

__all__ = ["Piece", "Restored", "SnapshotScripts"]

#: Entries that the cut itself brings; more are read in slices.
INLINE = 1000
_TRIES = 3
HOLD = 30.0
"""Seconds that a restorer may be silent before another one may go on in its place."""


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


def _hidden(row: Sequence[Any]) -> Hidden:
    name, record, chunk, outcomes, attempts, delayed, checkpoints, index = row
    return Hidden(
        name.decode(),
        dict(as_pairs(record)),
        chunk,
        [as_entry(entry) for entry in outcomes or ()],
        as_pairs(attempts),
        as_pairs(delayed),
        as_pairs(checkpoints),
        index,
    )


class SnapshotScripts(SnapshotReads):
    """Verbs of snapshots, and their reads."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        settings = client.settings
        self._bounds = {"unsealed": settings.audit_unsealed_limit, "overdue": settings.ticket_overdue}

    def _call(self, name: str, request: dict[str, Any], payloads: tuple[bytes, ...] = ()) -> Any:
        return self.client.call(name, request | self._bounds, owner=new_owner(), sequence=1, payloads=payloads)

    def snapshot_cut(self, batch: str) -> BatchCut | None:
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
            dict(as_pairs(reply[b"record"])),
            reply[b"index"],
            [(position, part, float(since)) for position, part, since in reply[b"running"] or ()],
            as_pairs(reply.get(b"attempts")),
            as_pairs(reply.get(b"delayed")),
            as_pairs(reply.get(b"checkpoints")),
            [_hidden(row) for row in reply[b"hidden"] or ()],
        )
        return cut, reply[b"held"] is not False

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
