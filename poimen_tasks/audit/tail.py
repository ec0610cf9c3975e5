"""The files that a log holds open while it is written: its lock, and the segment at its end.

Both are looked at again before every seal, by inode and length: a rotator, a restored backup, or a second writer that
removed the lock is found before anything of it is signed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.segments import Segment, segment_name
from poimen_tasks.errors import AuditCorrupt, AuditDiskError, AuditUnavailable, SealerConflict

__all__ = ["Lock", "Tail", "identity"]


def identity(file: Path | int) -> tuple[int, int] | None:
    """Which file it is, whatever its name; None: it is gone."""
    try:
        status = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Lock:
    """The right to write a log: a lock on its file `lock`, which ends with the process.

    Args:
        path: the file; it is made, and holds the number of the process for people.

    Raises:
        SealerConflict: another process has it.
        AuditUnavailable: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise AuditUnavailable(f"{path}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            self.close()
            raise SealerConflict(
                f"{path.parent}: another sealer writes this log, process {holder}; stop that one first"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def check(self) -> None:
        """Whether the file is still there: who finds another one locks that.

        Raises:
            SealerConflict: it is not.
        """
        if identity(self._path) != identity(self._fd):
            raise SealerConflict(f"{self._path}: the file was removed or replaced; another sealer may write the log")

    def close(self) -> None:
        """Let others have it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Tail:
    """The segment at the end of a log.

    Attributes:
        path: the file.
        size: its bytes, as this process wrote or found them.
        day: the UTC day of its first line; empty while there is none.
        closed: nothing may be added to it.
    """

    def __init__(self, path: Path, size: int, day: str, fd: int | None, disk: Disk) -> None:
        self.path, self.size, self.day = path, size, day
        self._fd, self._disk = fd, disk

    @classmethod
    def begin(cls, directory: Path, first: int, day: str, disk: Disk) -> Tail:
        """A new segment, which must not exist.

        Raises:
            AuditDiskError: it cannot be made.
        """
        path = directory / "segments" / segment_name(first)
        fd = disk.create(path)
        disk.sync_path(path.parent)
        return cls(path, 0, day, fd, disk)

    @classmethod
    def resume(cls, segment: Segment, day: str, disk: Disk) -> Tail:
        """The last segment of a log that is opened again; one that was closed is read-only and stays so.

        Raises:
            AuditDiskError: it cannot be opened.
        """
        try:
            closed = not segment.path.stat().st_mode & 0o200
            fd = None if closed else os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise AuditDiskError(f"{segment.path}: {error.strerror or error}") from error
        return cls(segment.path, segment.size, day, fd, disk)

    @property
    def closed(self) -> bool:
        """Whether nothing may be added."""
        return self._fd is None

    def write(self, data: bytes) -> None:
        """Add lines.

        Raises:
            AuditDiskError: the disk is full or broken.
        """
        if self._fd is None:
            raise ValueError(f"{self.path} is closed")
        self.size += len(data)
        self._disk.write(self._fd, data, self.path)

    def sync(self) -> None:
        """Return when all lines are on the disk.

        Raises:
            AuditDiskError: they may not be.
        """
        if self._fd is None:
            self._disk.sync_path(self.path)
        else:
            self._disk.sync(self._fd, self.path)

    def check(self) -> None:
        """Whether it is still the file that was opened, as long as it was made.

        Raises:
            AuditCorrupt: it is not.
        """
        if self._fd is None:
            return
        if identity(self.path) != identity(self._fd):
            raise AuditCorrupt(f"{self.path}: it was renamed, removed or replaced while the log was open")
        if (size := os.fstat(self._fd).st_size) != self.size:
            raise AuditCorrupt(
                f"{self.path}: somebody else wrote to it: it has {size} bytes, the sealer wrote {self.size}"
            )

    def lock_up(self) -> None:
        """Close it for ever: it becomes read-only.

        Raises:
            AuditDiskError: it cannot.
        """
        self.close()
        self._disk.lock_up(self.path)

    def close(self) -> None:
        """Let the file go."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
