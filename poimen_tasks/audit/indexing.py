"""Lines on their way into the index: read, sorted, and written in bulk."""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import count
from operator import itemgetter
from typing import Any

from poimen_tasks.errors import AuditCorrupt

__all__ = ["BLOCK", "Batch", "item_key", "micros", "moment", "own_id_key", "task_key", "workflow_key"]

#: Lines of which the index keeps the first and the last time together.
BLOCK = 4096
_KEPT = 200_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000
_NUMBER = struct.Struct(">q").unpack
# What the index takes of an event, where it is written as the sealer writes it and nothing nested stands before its
# status: most of a log, and read in a fifth of the time. A quote within a text is escaped, so none of it can pretend.
_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_PLAIN = re.compile(
    r'\{"event_id":"([^"\\]*)","event_type":"([^"\\]*)","workflow_id":(?:null|"([^"\\]*)"),'
    r'"task_id":(?:null|"([^"\\]*)"),"actor":"([^"\\]*)","timestamp":"([^"\\]*)",'
    rf'"action":{_TEXT},"reasoning":{_TEXT},"input":null,"output":null,"status":"([^"\\]*)",'
).match
_FIELDS = ("event_id", "event_type", "workflow_id", "task_id", "actor", "timestamp", "status")
_scan = json.JSONDecoder().decode


def _key(data: bytes) -> int:
    return _NUMBER(blake2b(data, digest_size=8).digest())[0]  # type: ignore[no-any-return]


def workflow_key(workflow: str) -> int:
    """What stands for a workflow."""
    return _key(b"w\0" + _utf8(workflow))


def task_key(task: str) -> int:
    """What stands for a task id, of whatever workflow."""
    return _key(b"t\0" + _utf8(task))


def item_key(workflow: str, task: str) -> int:
    """What stands for a task id within a workflow."""
    return _key(b"i\0%b\0%b" % (_utf8(workflow), _utf8(task)))


def own_id_key(event_id: str) -> int:
    """What stands for the id of an event that somebody recorded."""
    return _key(b"e\0" + _utf8(event_id))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def micros(moment: datetime) -> int:
    """Microseconds since 1970."""
    past = moment - _EPOCH
    return (past.days * 86_400 + past.seconds) * _SECOND + past.microseconds


def moment(micros: int) -> datetime:
    """The moment that so many microseconds since 1970 are."""
    return _EPOCH + timedelta(microseconds=micros)


def _no_event(seq: int, error: Exception) -> AuditCorrupt:
    return AuditCorrupt(f"line {seq} of the log holds no event: {type(error).__name__}: {error}")


def _parsed(text: str, seq: int) -> Sequence[Any]:
    try:
        event = _scan(text)
        event["event_id"].encode()
        return [event[name] for name in _FIELDS]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _no_event(seq, error) from error


class Batch:
    """Lines that are not written yet.

    Attributes:
        lines: how many lines of the log were added or written.
        written: how many of them were written.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        meta = dict(db.execute("SELECT name, value FROM meta"))
        self.lines = self.written = int(meta["lines"])
        self._offset, self._repeated = int(meta["offset"]), int(meta["repeated"])
        self._epoch, self._id, self._n = str(meta["epoch"]), str(meta["id"]), int(meta["n"])
        self._epoch_bytes = self._epoch.encode()
        rows = db.execute("SELECT id, type, actor, status, count, first, last FROM facets")
        self._facets: dict[tuple[str, ...], list[int]] = {tuple(row[1:4]): [row[0], *row[4:]] for row in rows}
        self._workflows: dict[str, tuple[int, bytes]] = {}
        self._seconds: dict[str, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._events: list[tuple[int, int, int, int]] = []
        self._postings: list[tuple[int, int, int]] = []
        self._own: dict[int, int] = {}
        self._epochs: list[tuple[int, str]] = []

    def add(
        self, lines: Sequence[Any], starts: Sequence[int], first: int, *, same: Callable[[int, bytes], bool]
    ) -> None:
        """Add consecutive lines, taken apart.

        Args:
            lines: the groups of `LINE`.
            starts: where each begins in its segment, and where the last one ends.
            first: the number of the first.
            same: whether an earlier line tells the same event.

        Raises:
            AuditCorrupt: an event cannot be read; its line is named.
        """
        events, owned = self._read(lines, first)
        known = self._known_ids(owned)
        note, post = self._events.append, self._postings.append
        for seq, start, line, event in zip(count(first), starts, lines, events, strict=False):
            _, kind, workflow, task, actor, timestamp, status = event
            try:
                facet = self._facet(kind, actor, status, seq)
                time = self._time(timestamp)
            except (ValueError, LookupError, TypeError) as error:
                raise _no_event(seq, error) from error
            if line[1] != self._epoch_bytes:
                self._begin_epoch(seq, line[1])
            if owned and seq in owned:
                key = owned[seq]
                earlier = self._own.get(key, known.get(key))
                if earlier is not None and same(earlier, line[-1]):
                    self._skip(facet)
                    continue
                self._own.setdefault(key, seq)
                post((key, facet, seq))
            note((seq, start, time, facet))
            if workflow is not None:
                key, within = self._workflows.get(workflow) or self._workflow(workflow)
                post((key, facet, seq))
            if task is not None:
                encoded = task.encode("utf-8", "surrogatepass")
                post((_key(b"t\0" + encoded), facet, seq))
                if workflow is not None:
                    post((_key(within + encoded), facet, seq))
        _, _, ms, sub, n, *_ = lines[-1]
        self._id, self._n = f"{ms.decode()}-{sub.decode()}", int(n)
        self.lines, self._offset = first + len(lines), starts[-1]

    def _read(self, lines: Sequence[Any], first: int) -> tuple[list[Sequence[Any]], dict[int, int]]:
        """What is taken of the events; and, by line, the keys of the ids that do not say where their line stands."""
        events, owned = list[Sequence[Any]](), dict[int, int]()
        for seq, (_, epoch, ms, sub, n, _, _, data) in enumerate(lines, first):
            text = data.decode("ascii")
            match = _PLAIN(text)
            event = _parsed(text, seq) if match is None else match.groups()
            if event[0] != f"{epoch[:12].decode()}-{ms.decode()}-{sub.decode()}-{n.decode()}":
                owned[seq] = own_id_key(event[0])
            events.append(event)
        return events, owned

    def _begin_epoch(self, seq: int, epoch: bytes) -> None:
        self._epoch_bytes, self._epoch = epoch, epoch.decode()
        self._epochs.append((seq, self._epoch))

    def _known_ids(self, owned: dict[int, int]) -> dict[int, int]:
        """The lines that have these keys already: none, but for what was recorded twice."""
        keys, known = list(owned.values()), dict[int, int]()
        for at in range(0, len(keys), 500):
            some = keys[at : at + 500]
            marks = ",".join("?" * len(some))
            known.update(
                self.db.execute(f"SELECT key, min(seq) FROM postings WHERE key IN ({marks}) GROUP BY key", some)
            )
        return known

    def _facet(self, kind: str, actor: str, status: str, seq: int) -> int:
        """The number of a combination, counted."""
        facet = self._facets.get((kind, actor, status))
        if facet is None:
            facet = self._facets[kind, actor, status] = [len(self._facets) + 1, 0, seq, seq]
        facet[1] += 1
        facet[3] = seq
        return facet[0]

    def _skip(self, facet: int) -> None:
        """A repetition counts nowhere."""
        self._repeated += 1
        for values in self._facets.values():
            if values[0] == facet:
                values[1] -= 1

    def _workflow(self, workflow: str) -> tuple[int, bytes]:
        """Its key, and what the key of a task within it is made of."""
        if len(self._workflows) > _KEPT:
            self._workflows.clear()
        found = self._workflows[workflow] = (workflow_key(workflow), b"i\0%b\0" % _utf8(workflow))
        return found

    def _time(self, text: str) -> int:
        form = text[:20] + text[26:]  # as the sealer writes it: all but the six digits behind the second
        second = self._seconds.get(form)
        if second is not None:
            return second + int(text[20:26])
        moment = micros(datetime.fromisoformat(text))
        if len(text) == 32 and text.endswith("+00:00"):
            if len(self._seconds) > _KEPT:
                self._seconds.clear()
            self._seconds[form] = moment - moment % _SECOND
        return moment

    def write(self) -> None:
        """Write what was added; the caller commits."""
        db = self.db
        db.executemany("INSERT INTO events VALUES(?, ?, ?, ?)", self._events)
        # In the order of the tree: neighbours go to the same page. By the first number alone it takes half the time.
        self._postings.sort(key=itemgetter(0))
        db.executemany("INSERT INTO postings VALUES(?, ?, ?)", self._postings)
        db.executemany(
            "INSERT INTO blocks VALUES(?, ?, ?) ON CONFLICT(block) DO UPDATE SET low = min(low, excluded.low), "
            "high = max(high, excluded.high)",
            list(self._blocks()),
        )
        db.executemany(
            "INSERT OR REPLACE INTO facets(id, type, actor, status, count, first, last) VALUES(?, ?, ?, ?, ?, ?, ?)",
            [(values[0], *name, *values[1:]) for name, values in self._facets.items() if values[3] >= self.written],
        )
        db.executemany("INSERT INTO epochs VALUES(?, ?)", self._epochs)
        meta = {
            "lines": self.lines, "offset": self._offset, "epoch": self._epoch, "id": self._id, "n": self._n,
            "repeated": self._repeated,
        }  # fmt: skip
        db.executemany("UPDATE meta SET value = ? WHERE name = ?", [(value, name) for name, value in meta.items()])
        self.written = self.lines
        self._clear()

    def _blocks(self) -> Iterator[tuple[int, int, int]]:
        """The number of each block of lines, its first time and its last."""
        rows, at = self._events, 0
        while at < len(rows):
            block = rows[at][0] // BLOCK
            end = bisect_left(rows, ((block + 1) * BLOCK,), at)
            times = [row[2] for row in rows[at:end]]
            yield block, min(times), max(times)
            at = end
