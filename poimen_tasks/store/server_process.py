"""A server program on loopback: its process, a port for it, and whether it is the one that answers there."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from poimen_tasks.errors import StoreUnavailable
from poimen_tasks.store.tether import tethered

__all__ = ["HOST", "ServerProcess", "free_port", "serving_pid"]

HOST = "127.0.0.1"
# Below the range from which systems take the local ports of clients: a client that retries a dead port inside that
# range can connect to itself and so keep the port from the server that restarts.
_PORTS = range(15_000, 32_000)
_STOP_GRACE = 5.0


class ServerProcess:
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


def free_port() -> int:
    """A port on which nobody listens.

    Raises:
        StoreUnavailable: there is none.
    """
    pick = random.SystemRandom()  # not the seeded generator: two seeded test runs would fight for the same port
    for _ in range(200):
        port = pick.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise StoreUnavailable(f"no free port for an embedded server between {_PORTS.start} and {_PORTS.stop - 1}")


def serving_pid(port: int, password: str | None = None) -> int | None:
    """Ask who answers on the port: it may be somebody else's. None while nobody does or the data is loading."""
    hello = _command("AUTH", password) if password else b""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(hello + _command("PING") + _command("INFO", "server") + _command("QUIT"))
            reply = b"".join(iter(lambda: connection.recv(65_536), b""))
    except OSError:
        return None
    found = re.search(rb"^process_id:(\d+)", reply, re.MULTILINE)
    return int(found[1]) if found and b"+PONG" in reply else None


def _command(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
