"""One question: the sealed part and the part that waits, put together so that nothing is missing or told twice.

Entries leave the stream only when they are sealed. So the stream is read first and the sealed part looked at again
afterwards: whatever was sealed in between is found there, and told from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from poimen_tasks.audit.event import AuditEvent
from poimen_tasks.audit.filters import Filters
from poimen_tasks.audit.sealed import Sealed
from poimen_tasks.audit.unsealed import Edge, Found, Place, Unsealed, id_key

__all__ = ["AuditPage", "Look"]


class AuditPage(list[AuditEvent]):
    """Events that a question found, as a list.

    Attributes:
        source: `index`: from the sealed log; `stream`: from what is not sealed; `index+stream`: from both.
        cursor: give it to the same question as `after=` for what comes behind this page; None for an empty page that
            has nothing before it, and for the last one of a question with the newest first.
        more: whether the page ended at its limit.
        newest: the cursor of its newest event, whichever come first: what is written later is behind it.
    """

    def __init__(
        self, events: list[AuditEvent], *, source: str, cursor: str | None, more: bool, newest: str | None = None
    ) -> None:
        super().__init__(events)
        self.source, self.cursor, self.more, self.newest = source, cursor, more, newest

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "events": [{**event.to_dict(), "sequence": event.sequence} for event in self],
            "source": self.source,
            "cursor": self.cursor,
            "more": self.more,
        }


class Look:
    """A question and where it is asked."""

    def __init__(self, sealed: Sealed, unsealed: Unsealed | None, filters: Filters, limit: int | None) -> None:
        self._sealed, self._unsealed = sealed, unsealed
        self._filters, self._limit = filters, limit

    def forth(self, start: Place | None) -> AuditPage:
        """A page, oldest first."""
        events = self._from_index(self._low(start), self._sealed.end)
        if self._is_full(events) or self._unsealed is None:
            return self._page(events, [], start, source="index")
        waiting, last = self._from_stream(self._unsealed.forth(start), len(events))
        before = self._sealed.refresh()
        if self._sealed.there:
            # The place to go on from may have been sealed in between, among the lines that are new.
            events += self._from_index(max(self._low(start), before), self._sealed.end, len(events))
            waiting = _behind(waiting, self._sealed.edge())
        if self._limit is not None:
            waiting = waiting[: self._limit - len(events)]
        return self._page(events, waiting, last or start)

    def _low(self, start: Place | None) -> int:
        """The first line behind a place."""
        return 0 if start is None or not self._sealed.there else self._sealed.behind(start)

    def back(self, start: Place | None) -> AuditPage:
        """A page, newest first."""
        waiting: list[Found] = []
        if self._unsealed is not None and (start is None or start.seq is None):
            waiting, _ = self._from_stream(self._unsealed.back(start), 0)
            self._sealed.refresh()
            waiting = _behind(waiting, self._sealed.edge())
        high = self._sealed.end if start is None or not self._sealed.there else self._sealed.at(start)
        events = self._from_index(0, high, len(waiting), newest_first=True)
        found = [AuditEvent.from_dict(one.event) for one in waiting] + events
        full = self._is_full(found)
        newest, oldest = _ends(waiting, events)
        return AuditPage(
            found, source=self._source(), cursor=_text(oldest) if full else None, more=full, newest=_text(newest)
        )

    def _page(
        self, events: list[AuditEvent], waiting: list[Found], last: Place | None, *, source: str = ""
    ) -> AuditPage:
        found = events + [AuditEvent.from_dict(one.event) for one in waiting]
        full, newest = self._is_full(found), _ends(events, waiting)[1]
        place = newest if full else self._edge(last)
        return AuditPage(found, source=source or self._source(), cursor=_text(place), more=full, newest=_text(newest))

    def _edge(self, last: Place | None) -> Place | None:
        """The last place that was looked at: of the stream, where it is not sealed by now."""
        edge = self._sealed.edge()
        if edge is None or self._sealed.end == 0:
            return last
        ahead = last is not None and last.id is not None and _is_behind(last, edge)
        return last if ahead else Place(seq=self._sealed.end - 1)

    def _source(self) -> str:
        if not self._sealed.there:
            return "stream"
        return "index" if self._unsealed is None else "index+stream"

    def count(self) -> int:
        """How many there are."""
        # Their places alone: a stream may hold millions.
        waiting = [one.place for one in self._wanted(self._unsealed.forth(None))] if self._unsealed else []
        self._sealed.refresh()
        if not self._sealed.there:
            return len(waiting)
        edge = self._sealed.edge()
        return self._sealed.count(self._filters) + sum(edge is None or _is_behind(place, edge) for place in waiting)

    # --- parts -----------------------------------------------------------------------------------------------------

    def _from_index(self, low: int, high: int, have: int = 0, *, newest_first: bool = False) -> list[AuditEvent]:
        if not self._sealed.there or low >= high:
            return []
        room = None if self._limit is None else self._limit - have
        return list(islice(self._sealed.events(self._filters, low, high, newest_first=newest_first), room))

    def _from_stream(self, found: Iterable[Found], have: int) -> tuple[list[Found], Place | None]:
        """What is wanted of the stream, and the last place that was looked at."""
        looked = _Looked(found)
        room = None if self._limit is None else self._limit - have
        wanted = list(islice(self._wanted(looked), room))
        return wanted, looked.last

    def _wanted(self, found: Iterable[Found]) -> Iterator[Found]:
        told: dict[str, dict[str, Any]] = {}
        for one in found:
            if self._filters.match(one.event) and not _repeats(one, told):
                yield one

    def _is_full(self, events: list[Any]) -> bool:
        return self._limit is not None and len(events) >= self._limit


def _ends(first: Sequence[AuditEvent | Found], then: Sequence[AuditEvent | Found]) -> tuple[Place | None, Place | None]:
    """The places of the first and the last of what was found."""
    found = [part for part in (first, then) if part]
    return (_place_of(found[0][0]), _place_of(found[-1][-1])) if found else (None, None)


def _place_of(one: AuditEvent | Found) -> Place:
    return one.place if isinstance(one, Found) else Place(seq=one.sequence)


def _text(place: Place | None) -> str | None:
    return None if place is None else str(place)


def _is_behind(place: Place, edge: Edge) -> bool:
    return place.epoch != edge.epoch or id_key(place.id or "0-0") > id_key(edge.id)


def _behind(waiting: list[Found], edge: Edge | None) -> list[Found]:
    """Those that are not sealed."""
    return waiting if edge is None else [one for one in waiting if _is_behind(one.place, edge)]


def _repeats(one: Found, told: dict[str, dict[str, Any]]) -> bool:
    """Whether an event was told already: somebody recorded it twice, as after a reply that was lost."""
    event, place = one.event, one.place
    if event["event_id"] == f"{place.epoch[:12]}-{place.id}-{place.n}":
        return False  # the system's own: its id says where it stands
    before = told.setdefault(event["event_id"], event)
    return before is not event and {**before, "timestamp": None} == {**event, "timestamp": None}


class _Looked:
    """Found events as they pass by, and the place of the last of them."""

    def __init__(self, found: Iterable[Found]) -> None:
        self._found = found
        self.last: Place | None = None

    def __iter__(self) -> Iterator[Found]:
        for one in self._found:
            self.last = one.place
            yield one
