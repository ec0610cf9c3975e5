"""The file of a snapshot: written whole or not at all, checked whole before anything of it is used.

```
magic (8) · version (2) · length of the header (4) · header: msgpack map
body: one zstd stream of msgpack sections
summary: msgpack map · length of the summary (4) · sha256 of all before it (32)
```

Numbers are big-endian. The body is compressed by [RFC 8878](https://www.rfc-editor.org/rfc/rfc8878) and is read and
written as a stream, so memory does not grow with it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgpack
import zstandard

from poimen_tasks.errors import SnapshotCorrupt, SnapshotNotFound, SnapshotTooNew

__all__ = ["VERSION", "SnapshotReader", "SnapshotWriter", "read_summary"]

MAGIC = b"\x89PSNAP\r\n"
VERSION = 1
"""The number of the file's format; a larger one is of a newer version of this package."""

_HEAD = struct.Struct(">8sHI")
_TAIL = struct.Struct(">I32s")
_PIECE = 1 << 20
_MOST = (1 << 31) - 1
_LEVEL = 3
_MOST_HEADER = 1 << 16


class _Hashed:
    """A file that is written, and its hash so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sum = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Write all of it."""
        self._file.write(data)
        self.sum.update(data)
        self.size += len(data)
        return len(data)


class SnapshotWriter:
    """Writes one file from its beginning to its end.

    Args:
        file: opened for writing, empty.
        header: what can be known at the beginning; read without reading the body.
    """

    def __init__(self, file: IO[bytes], header: dict[str, Any]) -> None:
        self._out = _Hashed(file)
        packed = msgpack.packb(header)
        self._out.write(_HEAD.pack(MAGIC, VERSION, len(packed)) + packed)
        self._press: Any = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).chunker(chunk_size=_PIECE)
        self._packer = msgpack.Packer(autoreset=True)

    def section(self, kind: str, *values: Any) -> None:
        """Add a section to the body."""
        for piece in self._press.compress(self._packer.pack([kind, *values])):
            self._out.write(piece)

    def finish(self, summary: dict[str, Any]) -> int:
        """End the body, and write what is known at the end. Returns the size of the file in bytes."""
        for piece in self._press.finish():
            self._out.write(piece)
        packed = msgpack.packb(summary)
        self._out.write(packed)
        self._out.write(struct.pack(">I", len(packed)))
        self._out.write(self._out.sum.digest())
        return self._out.size


def _corrupt(path: Path, why: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"snapshot {str(path)!r}: {why}; take an older one, or remove it")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, not what a link leads to."""
    try:
        # A pipe in its place would be waited for.
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SnapshotNotFound(f"snapshot {str(path)!r}: there is no such file") from None
    except OSError as error:
        raise _corrupt(path, f"it cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise _corrupt(path, "it is no file")
    with os.fdopen(number, "rb") as file:
        yield file


class SnapshotReader:
    """Reads one file whose checksum is right.

    Attributes:
        header: what was known when it was begun.
        summary: what was known at its end.
        size: bytes.

    Raises:
        SnapshotNotFound: there is no such file.
        SnapshotCorrupt: it is torn, was altered, or is no snapshot.
        SnapshotTooNew: its format is newer than this version's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            try:
                self._read(file)
            except (struct.error, ValueError, msgpack.exceptions.UnpackException, OSError) as error:
                raise _corrupt(path, f"it cannot be read ({error})") from error

    def _read(self, file: IO[bytes]) -> None:
        self.size = os.fstat(file.fileno()).st_size
        magic, version, length = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
        if magic != MAGIC:
            raise _corrupt(self.path, "it is no snapshot")
        if not self._is_whole(file):
            raise _corrupt(self.path, "it is torn or was altered: its checksum is wrong")
        if version > VERSION:
            raise SnapshotTooNew(
                f"snapshot {str(self.path)!r} has format {version}, this version reads formats up to {VERSION}: "
                "restore it with the version that wrote it, or a newer one"
            )
        file.seek(_HEAD.size)
        self.header: dict[str, Any] = self._map(file.read(min(length, _MOST_HEADER)))
        self._begin = _HEAD.size + length
        file.seek(-_TAIL.size, os.SEEK_END)
        (count, _) = _TAIL.unpack(file.read(_TAIL.size))
        self._end = self.size - _TAIL.size - count
        if not self._begin <= self._end:
            raise _corrupt(self.path, "its parts overlap")
        file.seek(self._end)
        self.summary: dict[str, Any] = self._map(file.read(count))

    def _is_whole(self, file: IO[bytes]) -> bool:
        left = self.size - 32
        if left < _HEAD.size:
            return False
        file.seek(0)
        found = hashlib.sha256()
        while left:
            piece = file.read(min(_PIECE, left))
            if not piece:
                return False
            found.update(piece)
            left -= len(piece)
        return hmac.compare_digest(file.read(32), found.digest())

    def _map(self, packed: bytes) -> dict[str, Any]:
        value = msgpack.unpackb(packed)
        if not isinstance(value, dict):
            raise _corrupt(self.path, "a part of it has another form")
        return value

    def sections(self) -> Iterator[tuple[str, list[Any]]]:
        """The sections of the body in order: kind and values.

        Raises:
            SnapshotCorrupt: the file was changed since it was checked.
        """
        unpacker = msgpack.Unpacker(max_buffer_size=_MOST, strict_map_key=False)
        with _opened(self.path) as file:
            file.seek(self._begin)
            part: Any = _Part(file, self._end - self._begin)
            body = zstandard.ZstdDecompressor().stream_reader(part, closefd=False)
            try:
                # Read by what comes out, not by what goes in: a little file may hold much.
                while piece := body.read(_PIECE):
                    unpacker.feed(piece)
                    for kind, *values in unpacker:
                        yield kind, values
            except (zstandard.ZstdError, ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
                raise _corrupt(self.path, f"its body cannot be read ({error})") from error


class _Part:
    """The next bytes of a file, and not those behind them."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(piece)
        return piece


def read_summary(path: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Header, summary and size of a file; the whole of it is checked.

    Raises:
        SnapshotNotFound, SnapshotCorrupt, SnapshotTooNew: as `SnapshotReader`.
    """
    reader = SnapshotReader(path)
    return reader.header, reader.summary, reader.size
