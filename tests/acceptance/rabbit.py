"""A private RabbitMQ node on loopback: its own ports, directory, cookie and port mapper (epmd).

It is tethered to the test run, as the embedded server is: whatever ends the run ends node and mapper too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

import amqp

from poimen_tasks.store.server_process import free_port
from poimen_tasks.store.tether import tethered
from tests.conftest import eventually

_HOST = "127.0.0.1"
# Debian's command on PATH changes the user; the one behind it runs as whoever calls it.
_PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server")
_CONFIG = """\
listeners.tcp.1 = {host}:{port}
# The node is reachable from this machine only.
loopback_users = none
# A full disk or little memory would block publishers; what is tested is not that.
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.relative = 0.9
"""


def find_rabbit() -> str:
    """The server program of an installed RabbitMQ; fails with what to do when there is none."""
    for place in (*_PLACES, shutil.which("rabbitmq-server")):
        if place and Path(place).exists():
            return place
    raise AssertionError("rabbitmq-server is not installed: run `make services`")


class Rabbit:
    """A node in `directory`; keeps its ports and its messages when it starts again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self._dist_port, self._epmd_port = free_port(), free_port(), free_port()
        self._name = f"poimen{secrets.token_hex(4)}@localhost"
        self._node: subprocess.Popen[bytes] | None = None
        self._mapper: subprocess.Popen[bytes] | None = None

    def url(self, vhost: str = "") -> str:
        """The URL of a virtual host; default: the one that a new node has."""
        return f"amqp://guest:guest@{_HOST}:{self.port}/{vhost}"

    def start(self) -> Self:
        """Start the port mapper and the node, and return when it takes connections."""
        program = find_rabbit()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "rabbitmq.conf").write_text(_CONFIG.format(host=_HOST, port=self.port))
        (self.directory / "plugins").write_text("[].\n")
        if self._mapper is None:
            self._mapper = self._spawn([_mapper_program(), "-port", str(self._epmd_port), "-address", _HOST])
            eventually(lambda: _listens(self._epmd_port))
        self._node = self._spawn([program])
        eventually(self._answers, timeout=60.0, interval=0.1)
        return self

    def stop(self) -> None:
        """Stop the node in order, then the mapper; both are gone afterwards."""
        self.stop_node()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None

    def stop_node(self) -> None:
        """Stop the node in order; durable queues and persistent messages stay in its directory."""
        self._end(signal.SIGTERM)

    def kill_node(self) -> None:
        """Kill the node as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the node: connections stay open and nothing answers."""
        assert self._node is not None
        os.kill(self._node.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen node go on."""
        assert self._node is not None
        os.kill(self._node.pid, signal.SIGCONT)

    @property
    def pids(self) -> list[int]:
        """Node and mapper."""
        return [process.pid for process in (self._node, self._mapper) if process is not None]

    def connect(self) -> amqp.Connection:
        """A plain connection, to look at queues from outside."""
        connection = amqp.Connection(f"{_HOST}:{self.port}", connect_timeout=5)
        try:
            connection.connect()
        except BaseException:
            connection.collect()
            raise
        return connection

    def _end(self, how: signal.Signals) -> None:
        node, self._node = self._node, None
        if node is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, signal.SIGCONT)
            node.send_signal(how)
        try:
            node.wait(20)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()

    def _answers(self) -> bool:
        assert self._node is not None
        if self._node.poll() is not None:
            raise RuntimeError(f"RabbitMQ ended with {self._node.returncode}: {self._tail()}")
        try:
            self.connect().close()
        except (OSError, amqp.AMQPError):
            return False
        return True

    def _tail(self) -> str:
        return (self.directory / "out.log").read_text(errors="replace")[-2000:]

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.directory / "out.log").open("ab") as out:
            return subprocess.Popen(
                tethered(command),
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        own = {
            "HOME": self.directory,
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": _HOST,
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._dist_port,
            "RABBITMQ_CONFIG_FILE": self.directory / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": self.directory / "none",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self.directory / "none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.directory / "plugins",
            "RABBITMQ_MNESIA_BASE": self.directory / "data",
            "RABBITMQ_LOG_BASE": self.directory / "log",
            "RABBITMQ_PID_FILE": self.directory / "node.pid",
            # The script becomes the node instead of staying beside it: one process to follow and to stop.
            "RUNNING_UNDER_SYSTEMD": "1",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return {**kept, **{name: str(value) for name, value in own.items()}}


def _mapper_program() -> str:
    found = shutil.which("epmd")
    assert found, "epmd, which comes with Erlang, is not installed: run `make services`"
    return found


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((_HOST, port), timeout=1.0):
        return True
    return False
