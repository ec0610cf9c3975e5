"""What is sealed, asked by the index."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Self

from poimen_tasks.audit.event import AuditEvent
from poimen_tasks.audit.filters import Filters
from poimen_tasks.audit.finding import Finder, Lines
from poimen_tasks.audit.index import AuditIndex, IndexDamaged
from poimen_tasks.audit.indexing import moment
from poimen_tasks.audit.lines import head_of
from poimen_tasks.audit.segments import sealed_size, segments_in
from poimen_tasks.audit.unsealed import Edge, Place, id_key, own_place
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable

__all__ = ["Sealed"]

_POLL = 0.02
_PATIENCE = 30.0
_GROUP = 200


class Sealed:
    """The sealed log in a directory, while a question is answered.

    Attributes:
        there: whether there is one.
        end: how many lines the index has.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.there = _is_there(directory)
        self.end = 0
        self._stack, self._held = ExitStack(), ExitStack()

    def __enter__(self) -> Self:
        if self.there:
            self._begin()
        return self

    def _begin(self) -> None:
        self._index = AuditIndex.open(self.directory)
        self._stack.callback(self._index.close)
        self._open()

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._stack.close()

    def _open(self) -> None:
        """Look at what is there now, after catching up where that is not all."""
        with suppress(IndexDamaged):
            if self._hold(sealed_size(self.directory)):
                return
        deadline = time.monotonic() + _PATIENCE
        while True:
            self._catch_up()
            try:
                self._hold(None)
            except IndexDamaged as damage:  # of an empty log: another process makes the index at this moment
                if time.monotonic() > deadline:
                    raise AuditUnavailable(str(damage)) from damage
                time.sleep(_POLL)
            else:
                return

    def _hold(self, size: int | None) -> bool:
        """Keep one state of the index, whoever goes on writing it; unless it lacks lines that are wanted."""
        with ExitStack() as stack:
            self._db: sqlite3.Connection = stack.enter_context(self._index.reading())
            self._db.execute("BEGIN")
            if size is not None and not self._index.is_whole(self._db, size):
                return False
            self._lines = stack.enter_context(Lines(self.directory))
            self.end = Finder(self._db, Filters()).end
            self._held = stack.pop_all()
        return True

    def _catch_up(self) -> None:
        """The index, as far as the checkpoint; another process may be at it."""
        size, before = sealed_size(self.directory), -1
        deadline = time.monotonic() + _PATIENCE
        while (lines := self._index.catch_up()) < size:
            if lines > before:
                before, deadline = lines, time.monotonic() + _PATIENCE
            if time.monotonic() > deadline:
                raise AuditUnavailable(f"{self._index.path}: another process keeps the index, and does not go on")
            time.sleep(_POLL)

    def refresh(self) -> int:
        """Look again. Returns how many lines there were before."""
        before = self.end
        if not self.there:
            self.there = _is_there(self.directory)
            if self.there:
                self._begin()
        elif sealed_size(self.directory) > before:
            self._held.close()
            self._open()
        return before

    def edge(self) -> Edge | None:
        """Where it ends in the stream."""
        if not self.there:
            return None
        meta = dict(self._db.execute("SELECT name, value FROM meta WHERE name IN ('epoch', 'id')"))
        return Edge(str(meta["epoch"]), str(meta["id"]))

    def events(self, filters: Filters, low: int, high: int, *, newest_first: bool) -> Iterator[AuditEvent]:
        """Events of the lines from `low` to before `high` that all filters leave, in order."""
        finder, hint = Finder(self._db, filters), filters.hint
        found, size = finder.find(low, high, newest_first=newest_first), 8
        while seqs := list(islice(found, size)):
            places = finder.places(seqs)
            for seq in seqs:
                event = self._event(seq, places[seq], filters, hint)
                if event is not None:
                    yield event
            size = min(2 * size, _GROUP)

    def _event(self, seq: int, at: int, filters: Filters, hint: bytes) -> AuditEvent | None:
        line = self._lines.raw(seq, at)
        if hint and hint not in line.lower():
            return None
        values = self._lines.parse(seq, line)
        # A key is a hash: that two names share one is next to impossible, and looked at all the same.
        return AuditEvent.from_dict(values, sequence=seq) if filters.match(values) else None

    def count(self, filters: Filters) -> int:
        """How many events all filters leave."""
        if filters.text:
            return sum(1 for _ in self.events(filters, 0, self.end, newest_first=False))
        return Finder(self._db, filters).count()

    def by_id(self, event_id: str) -> AuditEvent | None:
        """The event with an id."""
        if not self.there:
            return None
        finder = Finder(self._db, Filters())
        seqs = finder.owned(event_id)
        place = own_place(event_id)
        if place is not None:
            near = self._first_at(place[0], place[1], place[2])
            seqs = [*seqs, *range(near, min(near + 3, self.end))]
        for seq, at in sorted(finder.places(seqs).items()):
            values = self._lines.event(seq, at)
            if values["event_id"] == event_id:
                return AuditEvent.from_dict(values, sequence=seq)
        return None

    def behind(self, place: Place) -> int:
        """The first line behind a place; the end where all lines are before it."""
        if place.seq is not None:
            return place.seq + 1
        return self._first_at(place.epoch, place.id or "0-0", place.n + 1)

    def at(self, place: Place) -> int:
        """The first line at a place or behind it."""
        return place.seq if place.seq is not None else self._first_at(place.epoch, place.id or "0-0", place.n)

    def _first_at(self, epoch: str, stream_id: str, n: int) -> int:
        """The first line of an epoch at or behind a place, by bisection: ids of an epoch rise."""
        rows = self._db.execute("SELECT first, epoch FROM epochs ORDER BY first").fetchall()
        low = next((first for first, name in rows if name.startswith(epoch)), self.end)
        high = next((first for first, _ in rows if first > low), self.end)
        wanted = (*id_key(stream_id), n)
        finder = Finder(self._db, Filters())
        while low < high:
            middle = (low + high) // 2
            seq, at = finder.place_from(middle, high)
            if seq is None or self._place_of(seq, at) >= wanted:
                high = middle
            else:
                low = seq + 1
        return low

    def _place_of(self, seq: int, at: int) -> tuple[int, int, int]:
        place = head_of(self._lines.raw(seq, at)).place
        return place.ms, place.sub, place.n

    def by_seq(self, seq: int) -> AuditEvent | None:
        """The event on a line."""
        if not self.there:
            return None
        for found, at in Finder(self._db, Filters()).places([seq]).items():
            return AuditEvent.from_dict(self._lines.event(found, at), sequence=found)
        return None

    def facets(self) -> list[tuple[str, str, str, int]]:
        """Every combination of type, actor and status, and how many events have it."""
        return self._db.execute("SELECT type, actor, status, count FROM facets WHERE count > 0").fetchall()

    def times(self) -> tuple[datetime | None, datetime | None]:
        """The earliest and the latest moment of an event."""
        low, high = self._db.execute("SELECT min(low), max(high) FROM blocks").fetchone()
        return None if low is None else moment(low), None if high is None else moment(high)


def _is_there(directory: Path) -> bool:
    """Whether the directory holds a log; what lost its checkpoint is no empty place, and is told."""
    try:
        (directory / "checkpoint").stat()
    except FileNotFoundError:
        if not (directory / "segments").is_dir() or not segments_in(directory):
            return False
        raise AuditCorrupt(f"{directory / 'checkpoint'}: it is gone, but there are segments") from None
    except OSError as error:
        raise AuditUnavailable(f"{directory}: {error.strerror or error}") from error
    return True
