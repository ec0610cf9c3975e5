"""Where `poimen run` puts outcomes: standard output, or a file that a later run goes on with.

The file grows by whole lines. Each line carries the cursor of its outcome, so the last one says where to go on, and a
line that a killed run left unfinished is cut. Beside it, `FILE.run` remembers which batch the outcomes are of.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from poimen_tasks.cli.strict_json import parse_object
from poimen_tasks.errors import InvalidArgument

__all__ = ["OutcomeFile", "RunNote"]

_BLOCK = 1 << 16


class RunNote:
    """The file `FILE.run`: the batch's id, and how it ended once every outcome of it is in the file.

    Attributes:
        path: where it is.
        batch_id: the batch; None when there is no note.
        ended: its last status as plain values; None until then.
    """

    def __init__(self, output: Path) -> None:
        """Read it.

        Raises:
            InvalidArgument: the file is not such a note.
        """
        self.path = output.with_name(f"{output.name}.run")
        self.batch_id: str | None = None
        self.ended: Mapping[str, Any] | None = None
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return
        try:
            found = parse_object(text)
            self.batch_id, self.ended = str(found["batch_id"]), found.get("ended")
        except (KeyError, ValueError):
            raise InvalidArgument(f"{str(self.path)!r} is not a note of `poimen run`; move it away") from None

    def write(self, batch_id: str, ended: Mapping[str, Any] | None = None) -> None:
        """Put it on disk, whole or not at all."""
        self.batch_id, self.ended = batch_id, ended
        draft = self.path.with_name(f"{self.path.name}.tmp")
        with draft.open("w", encoding="ascii") as file:
            file.write(json.dumps({"batch_id": batch_id, "ended": ended}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)


class OutcomeFile:
    """A file of outcomes, open for one run.

    Attributes:
        path: where it is.
        note: which batch it is about.
        cursor: the cursor of its last outcome; None while there is none.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Open it, and cut a torn last line.

        Args:
            path: the file; made when missing.
            resume: go on with what is there; else it has to be empty.

        Raises:
            InvalidArgument: it cannot be written, is in use or none of ours, or has content and `resume` is False.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise InvalidArgument(f"cannot write {str(path)!r}: {error.strerror}") from None
        try:
            self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
            self._lock()
            self.note = RunNote(path)
            self.cursor = self._prepare(resume=resume)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def begin(self, batch_id: str) -> None:
        """Remember the batch, before it is there."""
        if self._regular and (batch_id != self.note.batch_id or self.note.ended):
            self.note.write(batch_id)

    def write(self, line: bytes) -> None:
        """Append a line.

        Raises:
            OSError: it cannot be written, or only in part.
        """
        left = memoryview(line)
        while left:
            left = left[os.write(self._fd, left) :]

    def finish(self, ended: Mapping[str, Any]) -> None:
        """Every outcome is there: onto the disk with it, and remember how the batch ended."""
        if self._regular:
            os.fsync(self._fd)
            self.note.write(str(self.note.batch_id), ended)

    def _lock(self) -> None:
        try:
            if self._regular:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(f"{str(self.path)!r} is being written by another `poimen run`") from None

    def _prepare(self, *, resume: bool) -> int | None:
        if not self._regular and resume:
            raise InvalidArgument(f"{str(self.path)!r} is not a regular file, so --resume cannot go on with it")
        size = os.fstat(self._fd).st_size if self._regular else 0
        if size and not resume:
            raise InvalidArgument(
                f"{str(self.path)!r} has content already: --resume goes on with it, or choose another file"
            )
        end = self._back_to_newline(size)
        if end < size:
            os.ftruncate(self._fd, end)
        if not end:
            return None
        start = self._back_to_newline(end - 1)
        return self._cursor_of(os.pread(self._fd, end - start, start))

    def _back_to_newline(self, end: int) -> int:
        """Where the last line before `end` begins: behind the newline in front of it."""
        while end > 0:
            start = max(0, end - _BLOCK)
            at = os.pread(self._fd, end - start, start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
        return 0

    def _cursor_of(self, line: bytes) -> int:
        try:
            cursor = json.loads(line)["cursor"]
        except (ValueError, KeyError, TypeError):
            cursor = None
        if type(cursor) is not int:
            raise InvalidArgument(
                f"{str(self.path)!r} does not end with an outcome of `poimen run`; choose another file"
            )
        return cursor
