"""Payloads too large for a line: files named by their SHA-256 beside the log, `content/<hh>/<sha256>`.

The line that names a payload is sealed, and so the payload is: a file that was changed has another digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from poimen_tasks.audit.disk import Disk
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable, InvalidArgument

__all__ = ["ContentStore"]

_DIGEST = re.compile(r"[0-9a-f]{64}").fullmatch


class ContentStore:
    """The payloads of one log.

    Args:
        directory: that of the log.
        disk: how files are written.
    """

    def __init__(self, directory: Path, *, disk: Disk | None = None) -> None:
        self._place = directory / "content"
        self._disk = disk or Disk()

    def put(self, data: bytes) -> str:
        """Keep a payload; it is on the disk when this returns. One that is there is left alone.

        Returns:
            Its SHA-256, in hex.

        Raises:
            AuditDiskError: it cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if not path.is_file() or path.stat().st_size != len(data):
            self._disk.make_directory(path.parent)
            self._disk.replace(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """A payload, checked.

        Raises:
            InvalidArgument: `digest` is no SHA-256.
            AuditUnavailable: it is not there, or cannot be read.
            AuditCorrupt: the file holds something else.
        """
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise AuditUnavailable(f"{path}: {error.strerror or error}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise AuditCorrupt(f"{path}: it does not hold what its name says")
        return data

    def path(self, digest: str) -> Path:
        """Where a payload is, or would be.

        Raises:
            InvalidArgument: `digest` is no SHA-256.
        """
        if not _DIGEST(digest):
            raise InvalidArgument(f"digest: expected 64 hex digits, got {digest!r:.80}")
        return self._place / digest[:2] / digest

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Read every file, and tell which hold something else than their names say."""
        if not self._place.exists():
            return
        for path in sorted(self._place.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                continue
            if path.name.endswith(".tmp"):
                continue  # a write that a crash ended
            if not _DIGEST(path.name) or path != self.path(path.name):
                yield path, "a foreign file among the payloads; they are named <hh>/<sha256>"
            elif path.is_symlink() or _sha256(path) != path.name:
                yield path, "it does not hold what its name says"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
