"""What waits in the stream to be sealed, read in slices from either end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from poimen_tasks._checks import expected
from poimen_tasks.audit.expand import expand_entry

if TYPE_CHECKING:
    from poimen_tasks.store import AuditEntries

__all__ = ["START", "Edge", "Found", "Place", "Unsealed", "id_key"]

#: The cursor of the place before everything.
START = "start"
_SLICE = 500
_SEALED = re.compile(r"s(\d{1,19})", re.ASCII).fullmatch
_STREAM = re.compile(r"u([0-9a-f]{1,64})/(\d{1,20}-\d{1,20})/(\d{1,9})", re.ASCII).fullmatch
_OWN = re.compile(r"([0-9a-f]{1,12})-(\d{1,20}-\d{1,20})-(\d{1,9})", re.ASCII).fullmatch


class Edge(NamedTuple):
    """Where the sealed log ends in the stream."""

    epoch: str
    id: str


class Place(NamedTuple):
    """A place in the log: a sealed line's number, or an entry of the stream and a line of it."""

    seq: int | None = None
    epoch: str = ""
    id: str | None = None
    n: int = 0

    @classmethod
    def read(cls, cursor: object) -> Place:
        """From a cursor.

        Raises:
            InvalidArgument: it is none.
        """
        if isinstance(cursor, str):
            if cursor == START:
                return cls(seq=-1)
            if match := _SEALED(cursor):
                return cls(seq=int(match[1]))
            if match := _STREAM(cursor):
                return cls(epoch=match[1], id=match[2], n=int(match[3]))
        raise expected("after", f"the cursor of a page, or {START!r}", cursor)

    def __str__(self) -> str:
        if self.seq == -1:
            return START
        return f"s{self.seq}" if self.seq is not None else f"u{self.epoch}/{self.id}/{self.n}"


class Found(NamedTuple):
    """An event of the stream and its place."""

    place: Place
    event: dict[str, Any]


def id_key(stream_id: str) -> tuple[int, int]:
    """Stream ids in their order."""
    ms, _, sub = stream_id.partition("-")
    return int(ms), int(sub)


def own_place(event_id: str) -> tuple[str, str, int] | None:
    """Beginning of the epoch, entry and line of an event whose id says where it stands; None for other ids."""
    match = _OWN(event_id)
    return None if match is None else (match[1], match[2], int(match[3]))


class Unsealed:
    """The stream behind what is sealed."""

    def __init__(self, entries: AuditEntries, epoch: str, edge: Edge | None) -> None:
        self._entries = entries
        self.epoch = epoch
        self._edge = edge.id if edge is not None and edge.epoch == epoch else "0-0"

    @classmethod
    def open(cls, entries: AuditEntries, edge: Edge | None, *, patience: float | None) -> Unsealed:
        """Ask which stream it is.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        return cls(entries, entries.epoch(patience=patience), edge)

    def forth(self, start: Place | None) -> Iterator[Found]:
        """Oldest first, from behind a place on."""
        if not self.epoch:  # there was no stream yet: what came since has no place that a cursor could say
            return
        mine = start is not None and start.epoch == self.epoch and start.id is not None
        last, skip = self._edge, -1
        if mine and start is not None and start.id is not None and id_key(start.id) > id_key(last):
            # The place is within an entry: its later lines are still wanted.
            entry = self._entries.get(start.id)
            last, skip = start.id, start.n
            if entry is not None:
                yield from (found for found in self._expand(entry) if found.place.n > skip)
        while page := self._entries.after(last, count=_SLICE):
            for entry in page:
                yield from self._expand(entry)
            last = page[-1].id

    def back(self, start: Place | None) -> Iterator[Found]:
        """Newest first, from before a place on."""
        if not self.epoch:
            return
        top = ""
        if start is not None and start.id is not None and start.epoch == self.epoch:
            entry = self._entries.get(start.id) if id_key(start.id) > id_key(self._edge) else None
            top = start.id
            if entry is not None:
                yield from reversed([found for found in self._expand(entry) if found.place.n < start.n])
        while page := self._entries.before(top, least=self._edge, count=_SLICE):
            for entry in page:
                yield from reversed(self._expand(entry))
            top = page[-1].id

    def by_id(self, event_id: str) -> dict[str, Any] | None:
        """The event with an id."""
        place = own_place(event_id)
        if place is not None and self.epoch.startswith(place[0]):
            entry = self._entries.get(place[1])
            found = self._expand(entry) if entry is not None else []
            for one in found:
                if one.event["event_id"] == event_id:
                    return one.event
        return next((found.event for found in self.forth(None) if found.event["event_id"] == event_id), None)

    def _expand(self, entry: Any) -> list[Found]:
        return [
            Found(Place(None, self.epoch, entry.id, n), event)
            for n, event in enumerate(expand_entry(self.epoch, entry.id, entry.fields))
        ]
