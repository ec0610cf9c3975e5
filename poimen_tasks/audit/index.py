"""The index beside the log: which lines are of a workflow, a task, a type, an actor, a status, a time.

An SQLite file, made from the lines alone and never ahead of the checkpoint: it can be thrown away and made again, and
is the same. Nothing waits for it: it catches up in bulk, by whoever looks first.

The tables: `facets` has every combination of type, actor and status that occurs, `events` a row a line (where it begins
in its segment, when it was, its facet), and `postings` the lines of a key, by facet: a key stands for a workflow, a
task, a task within a workflow, or the id of an event that somebody recorded, as 8 bytes of a hash. So any filters come
down to a few ranges of rows that are in order already. `blocks` has the first and last time of each 4,096 lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from poimen_tasks.audit.indexing import Batch
from poimen_tasks.audit.portions import portions
from poimen_tasks.audit.segments import line_at, sealed_size, segment_name, segments_in
from poimen_tasks.errors import AuditUnavailable

__all__ = ["VERSION", "AuditIndex", "IndexDamaged"]

#: The number of the tables' form; an index of another one is made again.
VERSION = 1
_NAME = "index.sqlite"
_LINES = 100_000
_SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE facets(
  id INTEGER PRIMARY KEY, type TEXT NOT NULL, actor TEXT NOT NULL, status TEXT NOT NULL,
  count INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL
);
CREATE TABLE events(
  seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, time INTEGER NOT NULL, facet INTEGER NOT NULL
);
CREATE INDEX by_facet ON events(facet);
CREATE TABLE postings(
  key INTEGER NOT NULL, facet INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(key, facet, seq)
) WITHOUT ROWID;
CREATE TABLE blocks(block INTEGER PRIMARY KEY, low INTEGER NOT NULL, high INTEGER NOT NULL);
CREATE TABLE epochs(first INTEGER PRIMARY KEY, epoch TEXT NOT NULL);
"""
_TABLES = ("meta", "facets", "events", "postings", "blocks", "epochs")


class IndexDamaged(Exception):
    """The index file is damaged, of another log, or of another form: it is made again."""


class AuditIndex:
    """The index of a log's directory.

    Attributes:
        directory: that of the log.
        path: the file: in the directory, or elsewhere where that may not be written.
        rebuilt: why the file had to be made again, when it was; empty otherwise.
    """

    def __init__(self, directory: Path, path: Path, *, temporary: bool = False) -> None:
        self.directory, self.path = directory, path
        self.rebuilt = ""
        self._temporary = temporary

    @classmethod
    def open(cls, directory: Path) -> Self:
        """The index of a log; nothing is read yet.

        Raises:
            AuditUnavailable: there is no log, or it cannot be read.
        """
        segments_in(directory)
        if os.access(directory, os.W_OK):
            return cls(directory, directory / _NAME)
        handle, name = tempfile.mkstemp(prefix="poimen-audit-", suffix=".sqlite")
        os.close(handle)
        return cls(directory, Path(name), temporary=True)

    def close(self) -> None:
        """Remove the file if it is a temporary one."""
        if self._temporary:
            self._remove()

    def _remove(self) -> None:
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").unlink()

    def _put_aside(self) -> None:
        """Make room for a new file; the old one is kept, for whoever wants to know what it was."""
        with suppress(FileNotFoundError):
            self.path.replace(f"{self.path}.bad")
        self._remove()

    # --- catching up ---------------------------------------------------------------------------------------------

    def catch_up(
        self, stop: Callable[[], bool] | None = None, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Take in the lines up to the checkpoint. Returns how many are in it afterwards.

        Where another process catches up at this moment, nothing is done: what is there is returned.

        Args:
            stop: asked between portions of lines; True ends the call early.
            progress: told after each portion how many lines are in, of how many.

        Raises:
            AuditCorrupt: a line of the log cannot be read; it is named.
            AuditUnavailable: there is no log, or it cannot be read.
        """
        size = sealed_size(self.directory)
        try:
            with self.reading() as db:
                if self.is_whole(db, size):
                    return size
        except IndexDamaged:
            pass  # whoever may write looks again
        try:
            return self._catch_up(size, stop, progress)
        except IndexDamaged as damage:
            self.rebuilt = str(damage)
        self._put_aside()
        return self._catch_up(size, stop, progress)

    def is_whole(self, db: sqlite3.Connection, size: int) -> bool:
        """Whether it is this log's, and has so many lines."""
        return int(_meta(db, "lines") or 0) == size and _meta(db, "log") == self._fingerprint()

    def lines(self) -> int:
        """How many lines are in it; 0 also when it is damaged."""
        try:
            with self.reading() as db:
                return int(_meta(db, "lines") or 0)
        except IndexDamaged:
            return 0

    def rebuild(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Make it again from the lines. Returns how many there are.

        Raises:
            AuditCorrupt: a line of the log cannot be read; it is named.
            AuditUnavailable: there is no log, or it cannot be read, or another process keeps the index.
        """
        try:
            with self._writing(timeout=30.0) as db:
                for table in _TABLES:
                    db.execute(f"DROP TABLE IF EXISTS {table}")
                self._create(db)
                db.commit()
        except IndexDamaged:
            self._put_aside()
        return self._catch_up(sealed_size(self.directory), None, progress)

    def _catch_up(self, size: int, stop: Callable[[], bool] | None, progress: Callable[[int, int], None] | None) -> int:
        with self._writing() as db:
            if db.in_transaction:
                return self._extend(db, size, stop, progress)
        return self.lines()

    def _extend(
        self,
        db: sqlite3.Connection,
        size: int,
        stop: Callable[[], bool] | None,
        progress: Callable[[int, int], None] | None,
    ) -> int:
        if not _has_tables(db):
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise IndexDamaged(f"{self.path}: it has other tables")
            self._create(db)
        self._check(db, size)
        batch, first = Batch(db), int(_meta(db, "lines") or 0)
        for lines, starts, seq in portions(self.directory, first, int(_meta(db, "offset") or 0), size):
            batch.add(lines, starts, seq, same=self._same)
            if batch.lines - batch.written >= _LINES or batch.lines == size:
                batch.write()
                db.commit()
                if progress is not None:
                    progress(batch.lines, size)
                if batch.lines == size or (stop is not None and stop()):
                    return batch.lines
                db.execute("BEGIN IMMEDIATE")
        batch.write()
        db.commit()
        return batch.lines

    def _same(self, seq: int, event: bytes) -> bool:
        """Whether a line tells the same event as these bytes, but for its time: somebody recorded it twice."""
        before = json.loads(line_at(self.directory, seq))["event"]
        again = json.loads(event)
        return bool({**before, "timestamp": None} == {**again, "timestamp": None})

    # --- the file ------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that only reads.

        Raises:
            IndexDamaged: it is no index, or of another form.
        """
        if not self.path.exists():
            raise IndexDamaged("there is no index yet")
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True, timeout=10.0)) as db:
                if not _has_tables(db) or _meta(db, "version") != VERSION:
                    raise IndexDamaged(f"{self.path}: it is no index of this version")
                yield db
        except sqlite3.DatabaseError as error:
            raise self._in_words(error) from error

    @contextmanager
    def _writing(self, timeout: float = 0.0) -> Iterator[sqlite3.Connection]:
        """A connection that holds the one right to write; without a transaction where another process holds it."""
        try:
            with closing(sqlite3.connect(self.path, timeout=timeout, isolation_level=None)) as db:
                for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-65536"):
                    with suppress(sqlite3.OperationalError):
                        db.execute(f"PRAGMA {pragma}")
                try:
                    db.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):
                        raise
                    if timeout:
                        raise AuditUnavailable(f"{self.path}: another process keeps the index") from error
                yield db
        except sqlite3.DatabaseError as error:
            raise self._in_words(error) from error

    def _in_words(self, error: sqlite3.DatabaseError) -> Exception:
        """A file that is no index is made again; one that cannot be read or written now is not."""
        text = f"{self.path}: {error}"
        passing = isinstance(error, sqlite3.OperationalError) and not str(error).startswith(("no such", "table "))
        return AuditUnavailable(text) if passing else IndexDamaged(text)

    def _create(self, db: sqlite3.Connection) -> None:
        for statement in _SCHEMA.split(";\n"):
            if statement.strip():
                db.execute(statement)
        rows = {"version": VERSION, "lines": 0, "offset": 0, "epoch": "", "id": "0-0", "n": 0, "repeated": 0}
        db.executemany("INSERT INTO meta VALUES(?, ?)", [*rows.items(), ("log", self._fingerprint())])

    def _fingerprint(self) -> str:
        """What tells this log from others: the hash of its first line."""
        try:
            with (self.directory / "segments" / segment_name(0)).open("rb") as file:
                return hashlib.sha256(file.readline()).hexdigest()
        except FileNotFoundError:
            return ""

    def _check(self, db: sqlite3.Connection, size: int) -> None:
        if _meta(db, "version") != VERSION:
            raise IndexDamaged(f"{self.path}: it has another version")
        lines, mark = int(_meta(db, "lines") or 0), self._fingerprint()
        if not lines:  # made while the log was empty: it becomes that of the log's first line
            db.execute("UPDATE meta SET value = ? WHERE name = 'log'", (mark,))
        elif lines > size or _meta(db, "log") != mark:
            raise IndexDamaged(f"{self.path}: it is the index of another log")


def _has_tables(db: sqlite3.Connection) -> bool:
    names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return names.issuperset(_TABLES)


def _meta(db: sqlite3.Connection, name: str) -> Any:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]
