"""Writing so that it stays written: every call that the log trusts to reach the disk, and what its failure means.

A write that fails leaves what was sealed as it is. A failed fsync is never tried again: the kernel may have dropped the
pages and a second call would report success (fsyncgate, 2018), so the one who meets it ends and reads the disk anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from poimen_tasks.errors import AuditDiskError

__all__ = ["Disk"]


class Disk:
    """The calls; a test that wants them to fail or to stop half-way takes a subclass.

    Raises:
        AuditDiskError: of every call: the disk is full, broken or read-only; the file is named.
    """

    def create(self, path: Path, *, mode: int = 0o644) -> int:
        """A new file, open for writing at its end; its directory is not synced.

        Raises:
            AuditDiskError: also when the file exists.
        """
        with _naming(path):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, mode)

    def write(self, fd: int, data: bytes, path: Path) -> None:
        """All of it, behind what is there; may leave a part when it fails."""
        with _naming(path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]

    def sync(self, fd: int, path: Path) -> None:
        """Return when the file's bytes and length are on the disk."""
        with _naming(path, "fsync of "):
            os.fdatasync(fd)

    def sync_path(self, path: Path) -> None:
        """The same for a file that is closed, or for the names in a directory."""
        with _naming(path, "fsync of "):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def put(self, path: Path, data: bytes) -> None:
        """Write a file that nobody reads before a checkpoint names it; not synced, replaced if it exists."""
        with _naming(path):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                self.write(fd, data, path)
            finally:
                os.close(fd)

    def replace(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        """Put a whole file in the place of another, synced: a reader, or a crash, finds the old or the new one."""
        beside = path.with_name(f"{path.name}.tmp")
        try:
            with _naming(path):
                beside.unlink(missing_ok=True)
            fd = self.create(beside, mode=mode)
            try:
                self.write(fd, data, beside)
                self.sync(fd, beside)
            finally:
                os.close(fd)
            self.rename(beside, path)
        except AuditDiskError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        self.sync_path(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name."""
        with _naming(target):
            source.replace(target)

    def cut(self, path: Path, size: int) -> None:
        """Keep the first `size` bytes of a file, synced; also where it is read-only."""
        with _naming(path):
            mode = path.stat().st_mode & 0o777
            path.chmod(mode | 0o200)
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, size)
                self.sync(fd, path)
            finally:
                os.close(fd)
                path.chmod(mode)

    def lock_up(self, path: Path) -> None:
        """Nobody writes to this file any more."""
        with _naming(path):
            path.chmod(0o444)

    def remove(self, path: Path) -> None:
        """Take a file away, if it is there."""
        with _naming(path):
            path.unlink(missing_ok=True)

    def make_directory(self, path: Path, *, mode: int = 0o755) -> None:
        """A directory and those above it, their names synced."""
        if path.is_dir():
            return
        with _naming(path):
            self.make_directory(path.parent)
            path.mkdir(mode=mode, exist_ok=True)
        self.sync_path(path.parent)


@contextlib.contextmanager
def _naming(path: Path, what: str = "") -> Iterator[None]:
    try:
        yield
    except AuditDiskError:
        raise
    except OSError as error:
        raise AuditDiskError(f"{what}{path}: {error.strerror or error}") from error
