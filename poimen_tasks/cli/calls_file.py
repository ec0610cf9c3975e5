"""Reads the calls of `poimen run`: a JSON object a line, from a file or a pipe, one line in memory at a time.

A regular file is read twice: first to check every line before anything is written, then to dispatch it. A pipe can be
read once, so its lines are checked as they come.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import select
import stat
import threading
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from celery.canvas import Signature

from poimen_tasks import codec
from poimen_tasks.cli.strict_json import parse_object
from poimen_tasks.dispatch.calls import CallReader
from poimen_tasks.dispatch.routing import Router
from poimen_tasks.errors import DuplicateItem, InvalidArgument, PoimenError, UnknownTask
from poimen_tasks.ids import check_label
from poimen_tasks.model import Item

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.app import Poimen

__all__ = ["KEYS", "CallsFile", "Stopped"]

_LABELS = ("id", "task_id", "model_id", "tags", "limit_key")
_OPTIONS = ("queue", "priority", "countdown", "eta", "expires", "time_limit", "soft_time_limit")
KEYS = ("task", "args", "kwargs", *_LABELS, *_OPTIONS)
"""What a call may say; null means the same as nothing."""

_BLOCK = 1 << 16
_POLL = 0.2
_GRACE = 0.1
_BOM = b"\xef\xbb\xbf"
_MOST_SHAPES = 10_000
_KINDS = {
    dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number",
    type(None): "null",
}  # fmt: skip


class Stopped(BaseException):
    """Reading was asked to stop before the end of the calls."""


class CallsFile:
    """The calls of one file or pipe.

    Attributes:
        name: names it in messages.
        argument: names it on a command line.
        is_file: a regular file, which can be read twice.
        count: calls that were read in the last pass.
        digest: the sha256 of a file that was checked, in hex; None of a pipe.
    """

    def __init__(self, path: Path | None, poimen: Poimen, *, queue: str | None, priority: str) -> None:
        """Open it.

        Args:
            path: the file; None or `-` is standard input.
            poimen: whose tasks are called, and whose settings bound the size of arguments.
            queue: the queue of calls that name none.
            priority: the priority of calls that have none.

        Raises:
            InvalidArgument: it cannot be read.
            InvalidId: the queue's name breaks the rule.
        """
        stdin = path is None or str(path) == "-"
        self.name, self.argument = ("stdin", "-") if stdin else (str(path), str(path))
        self.count = 0
        self.digest: str | None = None
        self._app = poimen.celery
        self._limit = poimen.settings.max_argument_bytes
        self._router = Router(self._app, queue=queue, priority=priority)
        self._stop = threading.Event()
        try:
            self._fd = 0 if path is None or stdin else os.open(path, os.O_RDONLY)
            self.is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        except OSError as error:
            raise InvalidArgument(f"cannot read {self.name}: {error.strerror}") from None
        self._start = os.lseek(self._fd, 0, os.SEEK_CUR) if self.is_file else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd:
            os.close(self._fd)

    def stop(self) -> None:
        """Let whoever reads stop, with `Stopped`."""
        self._stop.set()

    def check(self) -> None:
        """Read a regular file to its end and check every line.

        Raises:
            PoimenError: a line is not a call; names the file and the line.
        """
        digest = hashlib.sha256()
        check = _Check(self._app, self._router, self._limit)
        for place, line in self._lines(digest.update):
            check.line(place, _parse(place, line), self.count)
            self.count += 1
        self.digest = digest.hexdigest()

    def members(self) -> Iterator[Signature[Any] | Item]:
        """The calls, as a dispatch takes them. Those of a pipe are checked as they come.

        Raises:
            PoimenError: a line is not a call; names the file and the line.
            Stopped: `stop` was called.
        """
        check = None if self.digest else _Check(self._app, self._router, self._limit)
        for place, line in self._lines(None):
            row = _parse(place, line)
            if check is not None:
                check.line(place, row, self.count)
            self.count += 1
            yield _member(self._app, row)

    def _lines(self, seen: Any) -> Iterator[tuple[str, bytes]]:
        """Place and text of every line that is not blank."""
        self.count = 0
        if self.is_file:
            os.lseek(self._fd, self._start, os.SEEK_SET)
        # An escaped character takes six letters, and a line has more than its arguments.
        for number, line in enumerate(_split(self._blocks(seen), 6 * self._limit + _BLOCK, self.name), 1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if not text.isspace() and text:
                yield f"{self.name} line {number}", text

    def _blocks(self, seen: Any) -> Iterator[bytes]:
        while True:
            self._wait()
            try:
                block = os.read(self._fd, _BLOCK)
            except OSError as error:
                raise InvalidArgument(f"cannot read {self.name}: {error.strerror}") from None
            if not block:
                break
            if seen is not None:
                seen(block)
            yield block
        # Ctrl-C also ends the program that writes into the pipe: then this end is none, and the calls are not whole.
        if not self.is_file and self._stop.wait(_GRACE):
            raise Stopped

    def _wait(self) -> None:
        """Until there is something to read."""
        while not self._stop.is_set():
            if self.is_file or select.select([self._fd], [], [], _POLL)[0]:
                return
        raise Stopped


def _split(blocks: Iterator[bytes], most: int, name: str) -> Iterator[bytes]:
    """Cut blocks into lines; the last one need not end."""
    pieces: list[bytes] = []
    size = number = 0
    for block in blocks:
        first, *more = block.split(b"\n")
        pieces.append(first)
        size += len(first)
        if size > most:
            raise InvalidArgument(f"{name} line {number + 1}: longer than {most:,} bytes, more than a call may take")
        if more:
            yield b"".join(pieces)
            yield from more[:-1]
            number += len(more)
            pieces, size = [more[-1]], len(more[-1])
    yield b"".join(pieces)


def _parse(place: str, line: bytes) -> dict[str, Any]:
    """One line as an object of known keys, without those that are null."""
    try:
        row = parse_object(line)
    except ValueError as error:
        raise InvalidArgument(f"{place}: {error}") from None
    for key in row.keys() - _ALLOWED:
        raise InvalidArgument(f"{place}: unknown key {key!r:.60}{_near(key, KEYS)}; a call has {', '.join(KEYS)}")
    given = {key: value for key, value in row.items() if value is not None}
    if not isinstance(given.get("task"), str):
        said = f"got {_KINDS[type(row['task'])]}" if "task" in row else "there is none"
        raise InvalidArgument(f'{place}: "task" has to be the name of a task, {said}')
    for key, kind in (("args", list), ("kwargs", dict), ("tags", list)):
        if key in given and type(given[key]) is not kind:
            raise InvalidArgument(f'{place}: "{key}" has to be {_KINDS[kind]}, got {_KINDS[type(given[key])]}')
    return given


_ALLOWED = frozenset(KEYS)


def _near(word: str, known: Any) -> str:
    found = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {found[0]!r}?" if found else ""


def _member(app: Celery, row: Mapping[str, Any]) -> Signature[Any] | Item:
    """A call as a dispatch takes it: an `Item` only where there is more to say than a signature holds."""
    options = {name: row[name] for name in _OPTIONS if name in row}
    whole: Any = {
        "task": row["task"], "args": row.get("args", []), "kwargs": row.get("kwargs", {}), "options": options,
        "subtask_type": None, "immutable": False,
    }  # fmt: skip
    signature = Signature(whole, app=app)
    labels = {name: row[name] for name in _LABELS if name in row}
    return Item(signature, **labels) if labels else signature


class _Check:
    """Finds in a line, before it is dispatched, whatever a dispatch would find, and says where it is."""

    def __init__(self, app: Celery, router: Router, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._reader = CallReader(app, router, {})
        self._tasks = app.tasks
        self._shapes: set[tuple[Any, ...]] = set()
        self._ids = _Ids()
        self._first_custom: int | None = None

    def line(self, place: str, row: Mapping[str, Any], position: int) -> None:
        """Check one call."""
        if row["task"] not in self._tasks:
            near = _near(row["task"], self._tasks.keys())
            raise UnknownTask(f"{place}: task {row['task']!r:.120} is not one of app {self._app.main!r}{near}")
        if "id" in row:
            check_label(row["id"], f'{place}: "id"')
        args, kwargs = row.get("args", []), row.get("kwargs", {})
        shape = (row["task"], len(args), *kwargs)
        # Calls of one task that say nothing else fit it, or not, by the number and names of their arguments.
        if shape not in self._shapes or not row.keys() <= _PLAIN:
            self._call(place, row, position, shape)
        for name, values in (("args", args), ("kwargs", kwargs)):
            if values:
                codec.encode(values, what=f"{place}: {name}", limit=self._limit)
        self._unique(place, row.get("id"), position)

    def _call(self, place: str, row: Mapping[str, Any], position: int, shape: tuple[Any, ...]) -> None:
        member = _member(self._app, row)
        try:
            self._reader.read(member, position, 0.0)
        except PoimenError as error:
            name = f'item "{row.get("id", position)}": '
            raise type(error)(f"{place}: {str(error).removeprefix(name)}") from None
        if row.keys() <= _PLAIN and self._reader.is_plain(self._tasks[row["task"]]):
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes.add(shape)

    def _unique(self, place: str, own: str | None, position: int) -> None:
        """Refuse an id that an earlier call has; a call without one is known by its position."""
        if self._first_custom is None:
            if own is None:
                return
            self._first_custom = position
        first = self._first_custom
        said = own if own is not None else str(position)
        taken = said.isascii() and said.isdecimal() and str(int(said)) == said and int(said) < first
        if taken or not self._ids.add(said):
            raise DuplicateItem(f'{place}: an earlier call has the id "{said}" already; ids are unique in a batch')


_PLAIN = frozenset({"task", "args", "kwargs", "id"})


class _Ids:
    """A set that only grows, of texts by their 64-bit hashes, in at most 32 bytes each: there may be many millions."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 1024))
        self._count = 0

    def add(self, text: str) -> bool:
        """Add one; False when it was there."""
        if not self._put(hash(text) & _MASK or 1):
            return False
        self._count += 1
        if 2 * self._count > len(self._table):
            marks, self._table = self._table, array("Q", bytes(2 * 8 * len(self._table)))
            for mark in filter(None, marks):
                self._put(mark)
        return True

    def _put(self, mark: int) -> bool:
        table, last = self._table, len(self._table) - 1
        at = mark & last
        while table[at]:
            if table[at] == mark:
                return False
            at = (at + 1) & last
        table[at] = mark
        return True


_MASK = (1 << 64) - 1
