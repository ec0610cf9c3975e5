"""Finds lines by the index: a few ranges of rows that are in order already, merged as far as they are asked for."""

from __future__ import annotations

import heapq
import os
import sqlite3
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from poimen_tasks.audit.filters import Filters
from poimen_tasks.audit.indexing import BLOCK, item_key, micros, own_id_key, task_key, workflow_key
from poimen_tasks.audit.lines import head_of, read_event
from poimen_tasks.audit.segments import segments_in
from poimen_tasks.errors import AuditCorrupt

__all__ = ["Finder", "Lines", "Span"]

_FIRST_PAGE, _MOST_PAGE = 16, 1024
_MOST_SPANS = 64
_GUESS = 4096


class Span(NamedTuple):
    """Lines from `low` to before `high`; `whole` when all of them are within the time that is asked for."""

    low: int
    high: int
    whole: bool


class Finder:
    """Asks one connection."""

    def __init__(self, db: sqlite3.Connection, filters: Filters) -> None:
        self._db = db
        self._filters = filters
        self._since = None if filters.since is None else micros(filters.since)
        self._until = None if filters.until is None else micros(filters.until)
        self.key = _key_of(filters)
        self.end = int(db.execute("SELECT value FROM meta WHERE name = 'lines'").fetchone()[0])

    def find(self, low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """The numbers of the lines from `low` to before `high` that the filters other than text leave, in order."""
        facets = self._facets()
        spans = self._spans(low, min(high, self.end))
        for span in reversed(spans) if newest_first else spans:
            yield from self._in_span(span, facets, newest_first=newest_first)

    def count(self) -> int:
        """How many lines the filters other than text leave."""
        facets, spans = self._facets(), self._spans(0, self.end)
        if self.key is None and len(spans) == 1 and spans[0] == Span(0, self.end, True):
            return sum(facet[3] for facet in facets)
        return sum(self._count_in(span, facet[0]) for facet in facets for span in spans)

    def _count_in(self, span: Span, facet: int) -> int:
        table, values = self._table(facet)
        sql, within = f"SELECT count(*) FROM {table} AND seq >= ? AND seq < ?", [*values, span.low, span.high]
        if not span.whole:
            times, limits = self._times()
            sql = (
                f"SELECT count(*) FROM {table} AND seq >= ? AND seq < ? "
                f"AND seq IN (SELECT seq FROM events WHERE seq >= ? AND seq < ?{times})"
            )
            within += [span.low, span.high, *limits]
        return int(self._db.execute(sql, within).fetchone()[0])

    # --- facets, spans -------------------------------------------------------------------------------------------

    def _facets(self) -> list[tuple[int, int, int, int]]:
        """Those that match: id, first line, last line, count; under a key only those that occur there."""
        conditions, values = ["1"], list[Any]()
        for column, allowed in (
            ("type", self._filters.types),
            ("actor", self._filters.actors),
            ("status", self._filters.statuses),
        ):
            if allowed:
                conditions.append(f"{column} IN ({','.join('?' * len(allowed))})")
                values += allowed
        sql = f"SELECT id, first, last, count FROM facets WHERE {' AND '.join(conditions)}"
        rows: list[tuple[int, int, int, int]] = self._db.execute(sql, values).fetchall()
        if self.key is None:
            return rows
        here = self._facets_of(self.key)
        return [row for row in rows if row[0] in here]

    def _facets_of(self, key: int) -> set[int]:
        """The facets under a key, each found by one step over all of its lines."""
        sql = (
            "WITH RECURSIVE f(id) AS (SELECT min(facet) FROM postings WHERE key = ?1 UNION ALL "
            "SELECT (SELECT min(facet) FROM postings WHERE key = ?1 AND facet > f.id) FROM f WHERE f.id IS NOT NULL) "
            "SELECT id FROM f WHERE id IS NOT NULL"
        )
        return {row[0] for row in self._db.execute(sql, (key,))}

    def _spans(self, low: int, high: int) -> list[Span]:
        """Where lines of the time asked for may be: runs of blocks."""
        if low >= high:
            return []
        if self._since is None and self._until is None:
            return [Span(low, high, True)]
        sql = "SELECT block, low, high FROM blocks WHERE block >= ? AND block <= ?"
        values: list[Any] = [low // BLOCK, (high - 1) // BLOCK]
        if self._since is not None:
            sql, values = f"{sql} AND high > ?", [*values, self._since]
        if self._until is not None:
            sql, values = f"{sql} AND low < ?", [*values, self._until]
        spans: list[Span] = []
        for block, least, most in self._db.execute(f"{sql} ORDER BY block", values):
            whole = (self._since is None or least > self._since) and (self._until is None or most < self._until)
            start, stop = max(low, block * BLOCK), min(high, (block + 1) * BLOCK)
            if spans and spans[-1].high == start and spans[-1].whole == whole:
                spans[-1] = Span(spans[-1].low, stop, whole)
            else:
                spans.append(Span(start, stop, whole))
        if len(spans) > _MOST_SPANS:
            return [Span(spans[0].low, spans[-1].high, False)]
        return spans

    def _times(self) -> tuple[str, list[int]]:
        sql, values = "", list[int]()
        if self._since is not None:
            sql, values = f"{sql} AND time > ?", [*values, self._since]
        if self._until is not None:
            sql, values = f"{sql} AND time < ?", [*values, self._until]
        return sql, values

    # --- merging -------------------------------------------------------------------------------------------------

    def _in_span(self, span: Span, facets: list[tuple[int, int, int, int]], *, newest_first: bool) -> Iterator[int]:
        """Merge the facets' lines; a facet is looked at only when its first one may be the next."""
        sign = -1 if newest_first else 1
        waiting = sorted(
            (sign * (min(last, span.high - 1) if newest_first else max(first, span.low)), facet)
            for facet, first, last, _ in facets
            if first < span.high and last >= span.low
        )
        waiting.reverse()
        heap: list[tuple[int, int, Iterator[int]]] = []
        while heap or waiting:
            while waiting and (not heap or waiting[-1][0] <= heap[0][0]):
                facet = waiting.pop()[1]
                _push(heap, sign, facet, self._rows(span, facet, newest_first=newest_first))
            if heap:
                seq, facet, rows = heapq.heappop(heap)
                yield sign * seq
                _push(heap, sign, facet, rows)

    def _rows(self, span: Span, facet: int, *, newest_first: bool) -> Iterator[int]:
        """The lines of one facet, in pages that grow."""
        table, values = self._table(facet)
        low, high, page = span.low, span.high, _FIRST_PAGE
        order = "DESC" if newest_first else "ASC"
        while True:
            if span.whole:
                sql = f"SELECT seq FROM {table} AND seq >= ? AND seq < ? ORDER BY seq {order} LIMIT {page}"
                rows = self._db.execute(sql, [*values, low, high]).fetchall()
                found = [row[0] for row in rows]
                last = found[-1] if found else 0
            else:
                sql = (
                    f"SELECT p.seq, e.time FROM (SELECT seq FROM {table} AND seq >= ? AND seq < ? "
                    f"ORDER BY seq {order} LIMIT {page}) p JOIN events e ON e.seq = p.seq ORDER BY p.seq {order}"
                )
                rows = self._db.execute(sql, [*values, low, high]).fetchall()
                found = [row[0] for row in rows if self._is_in_time(row[1])]
                last = rows[-1][0] if rows else 0
            yield from found
            if len(rows) < page:
                return
            low, high = (low, last) if newest_first else (last + 1, high)
            page = min(2 * page, _MOST_PAGE)

    def _is_in_time(self, time: int) -> bool:
        return (self._since is None or time > self._since) and (self._until is None or time < self._until)

    def _table(self, facet: int) -> tuple[str, list[int]]:
        if self.key is None:
            return "events WHERE facet = ?", [facet]
        return "postings WHERE key = ? AND facet = ?", [self.key, facet]

    # --- single lines --------------------------------------------------------------------------------------------

    def places(self, seqs: list[int]) -> dict[int, int]:
        """Where lines begin in their segments."""
        found: dict[int, int] = {}
        for at in range(0, len(seqs), 500):
            some = seqs[at : at + 500]
            marks = ",".join("?" * len(some))
            found.update(self._db.execute(f"SELECT seq, at FROM events WHERE seq IN ({marks})", some))
        return found

    def place_from(self, low: int, high: int) -> tuple[int | None, int]:
        """The first line of the index from `low` to before `high`, and where it begins; None when there is none."""
        sql = "SELECT seq, at FROM events WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT 1"
        row = self._db.execute(sql, (low, high)).fetchone()
        return (None, 0) if row is None else (row[0], row[1])

    def owned(self, event_id: str) -> list[int]:
        """The lines of events that were recorded under an id."""
        return [row[0] for row in self._db.execute("SELECT seq FROM postings WHERE key = ?", (own_id_key(event_id),))]


def _push(heap: list[tuple[int, int, Iterator[int]]], sign: int, facet: int, rows: Iterator[int]) -> None:
    seq = next(rows, None)
    if seq is not None:
        heapq.heappush(heap, (sign * seq, facet, rows))


def _key_of(filters: Filters) -> int | None:
    if filters.workflow is not None and filters.task is not None:
        return item_key(filters.workflow, filters.task)
    if filters.workflow is not None:
        return workflow_key(filters.workflow)
    return None if filters.task is None else task_key(filters.task)


class Lines:
    """Reads single lines of a log; segments are opened when they are needed, and closed at the end."""

    def __init__(self, directory: Path) -> None:
        self._segments = segments_in(directory)
        self._firsts = [segment.first for segment in self._segments]
        self._files: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def raw(self, seq: int, at: int) -> bytes:
        """The bytes of a line, without its newline.

        Raises:
            AuditCorrupt: there is no line at this place.
        """
        place = bisect_right(self._firsts, seq) - 1
        file = self._files.get(place)
        if file is None:
            file = self._files[place] = os.open(self._segments[place].path, os.O_RDONLY)
        size, line = _GUESS, b""
        while b"\n" not in line:
            line = os.pread(file, size, at)
            if len(line) < size and b"\n" not in line:
                raise AuditCorrupt(f"{self._segments[place].path}: line {seq} ends early")
            size *= 8
        return line[: line.index(b"\n")]

    def event(self, seq: int, at: int) -> dict[str, Any]:
        """The event of a line.

        Raises:
            AuditCorrupt: the line is damaged, or another one stands there.
        """
        return self.parse(seq, self.raw(seq, at))

    def parse(self, seq: int, line: bytes) -> dict[str, Any]:
        """The event in a line's bytes."""
        try:
            head = head_of(line)
            event: dict[str, Any] = read_event(head.event)
        except ValueError as error:
            raise AuditCorrupt(f"line {seq} of the log cannot be read: {error}") from None
        if head.seq != seq or zlib.crc32(head.event) != head.crc:
            raise AuditCorrupt(f"line {seq} of the log was changed: its number or its checksum does not fit")
        return event
