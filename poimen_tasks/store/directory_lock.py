"""Which embedded server uses a directory: a lock that lives as long as who started it, and says where it listens."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from poimen_tasks.errors import SettingsError

__all__ = ["DirectoryLock", "running_url"]

_LOCK = "server.lock"


class DirectoryLock:
    """Of one server; may be taken again after its release."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Take it; nothing happens when it is ours already.

        Raises:
            SettingsError: another embedded server uses the directory.
        """
        if self._file is not None:
            return
        file = (self._directory / _LOCK).open("a+")
        if not _take(file):
            with file:
                owner, url = _described(file)
            raise SettingsError(
                f"directory {str(self._directory)!r} is in use by another embedded server (started by process {owner}, "
                f"{url}); stop that one, use it (POIMEN_REDIS_URL={url}), or choose another directory (POIMEN_DATA_DIR)"
            )
        file.truncate(0)  # the URL of the run before: nobody answers there yet
        self._file = file

    def describe(self, url: str) -> None:
        """Leave in it who we are, and where the server listens."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.write(f"{os.getpid()} {url}\n")
            self._file.flush()

    def release(self) -> None:
        """Free the directory; harmless when it is not ours."""
        if self._file is not None:
            self._file.close()
            self._file = None


def running_url(directory: str | os.PathLike[str]) -> str | None:
    """Tell the URL of the embedded server that uses this directory now; None when there is none."""
    try:
        with (Path(directory) / _LOCK).open("r+") as lock:
            if _take(lock):
                return None
            url = _described(lock)[1]
            return url if "://" in url else None
    except OSError:
        return None


def _take(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _described(lock: IO[str]) -> tuple[str, str]:
    lock.seek(0)
    owner, _, url = lock.read().strip().partition(" ")
    return owner or "unknown", url or "still starting"
