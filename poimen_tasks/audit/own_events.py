"""The events that the sealer writes about itself and the stream; docs/events.md has the catalogue."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from poimen_tasks.audit.event import AuditEvent, moment_of
from poimen_tasks.audit.expand import encode_event
from poimen_tasks.audit.lines import Line
from poimen_tasks.store.audit_scripts import StreamState

__all__ = ["OwnEvents"]


class OwnEvents:
    """Makes lines of the sealer's own; each stands where the sealer was in the stream.

    Args:
        session: part of the events' ids: another one for each start of a sealer.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._count = 0

    def epoch(self, state: StreamState, before: tuple[str, str] | None) -> Line:
        """The stream began anew: what the store knew before is gone."""
        said = {"epoch": state.epoch, "before": None if before is None else {"epoch": before[0], "id": before[1]}}
        return self._line(state, "0-0", "audit.epoch", "the audit stream began anew", said)

    def rollback(self, state: StreamState, *, kept: str, lost: list[str], count: int, said: int) -> Line:
        """The store came back with an older state; `lost` are the ends of what it does not know any more."""
        told = {"lost": count, "first": lost[0], "last": lost[1], "kept": kept, "again": said}
        action = f"the store lost {count:,} entries that are sealed, with the changes that they tell of"
        return self._line(state, kept, "store.rollback", action, told, status="failure")

    def gap(self, state: StreamState, place: str, *, lost: int | None, total: int, until: str) -> Line:
        """Entries left the stream before they were sealed."""
        told = {"lost": lost, "total": total, "after": place, "until": until}
        count = "an unknown number of" if lost is None else f"{lost:,}"
        action = f"{count} entries were removed from the stream before they were sealed"
        return self._line(state, place, "audit.gap", action, told, status="failure")

    def dropped(self, state: StreamState, place: str, *, lost: int) -> Line:
        """The bounded stream had dropped entries while no sealer was registered."""
        action = f"{lost:,} entries were dropped while no sealer was registered"
        told = {"lost": lost, "total": state.dropped}
        return self._line(state, place, "audit.unsealed_dropped", action, told, status="failure")

    def forked(self, state: StreamState, place: str, *, size: int) -> Line:
        """This directory goes on although the stream was sealed elsewhere meanwhile."""
        told = {"sealed": state.sealed, "root": state.root, "cursor": state.cursor, "here": size}
        action = f"the stream was sealed elsewhere up to line {state.sealed:,}; this log goes on without what is there"
        return self._line(state, place, "audit.forked", action, told, status="failure")

    def recovered(self, state: StreamState, place: str, what: str) -> Line:
        """A crash had left something unfinished on the disk."""
        return self._line(state, place, "audit.recovered", "a write that a crash cut off was removed", {"what": what})

    @staticmethod
    def nothing(epoch: str, entry_id: str, kind: bytes) -> bytes:
        """The event of an entry that tells of nothing; always the same for the same entry."""
        event = AuditEvent(
            event_id=f"{epoch[:12]}-{entry_id}-0",
            event_type="audit.unreadable",
            actor="sealer",
            timestamp=moment_of(entry_id),
            action="an entry tells of nothing",
            status="failure",
            metadata={"stream_id": entry_id, "type": kind.decode("ascii", "backslashreplace")},
        )
        return encode_event(event.to_dict())

    def _line(
        self, state: StreamState, place: str, kind: str, action: str, said: dict[str, Any], *, status: str = "success"
    ) -> Line:
        self._count += 1
        event = AuditEvent(
            event_id=f"{state.epoch[:12]}-{place}-{self._session}{self._count}",
            event_type=kind,
            actor="sealer",
            timestamp=datetime.fromtimestamp(state.now, UTC),
            action=action,
            status=status,
            metadata=said,
        )
        return Line(state.epoch, place, 0, True, encode_event(event.to_dict()))
