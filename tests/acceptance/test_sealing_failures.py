"""What can go wrong between the stream and the disk, each thing done for real: docs/sealing.md has them in a table."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.sealer import Sealer
from poimen_tasks.audit.verify import verify
from poimen_tasks.errors import AuditDiskError, SealerConflict
from poimen_tasks.health import Level, check_audit
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.sealing import SealProcess, events, kinds, numbers, record, seal_all, sealing


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that this test may kill and rob."""
    with EmbeddedServer(tmp_path / "server") as running:
        yield running


@pytest.fixture
def store(own_server: EmbeddedServer, settings: Settings) -> Iterator[Store]:
    """A store on that server."""
    made = Store(settings.model_copy(update={"redis_url": own_server.url}), own_server.url)
    yield made
    made.client.close()


@pytest.fixture
def seal(own_server: EmbeddedServer, settings: Settings, tmp_path: Path) -> Iterator[Callable[..., SealProcess]]:
    """Starts sealers as processes; none is left behind."""
    started: list[SealProcess] = []
    env = {
        "POIMEN_REDIS_URL": own_server.url,
        "POIMEN_NAMESPACE": settings.namespace,
        "POIMEN_LEASE": "2.0",
        "POIMEN_CONNECT_TIMEOUT": "0.5",
    }

    def start(*words: str, name: str = "log") -> SealProcess:
        started.append(SealProcess(env, tmp_path / name, tmp_path / f"sealer-{len(started)}.log", *words))
        return started[-1]

    start.server = own_server
    yield start
    for process in started:
        process.kill()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log"


def sealed(directory: Path, count: int) -> Callable[[], bool]:
    """Whether so many events of the test are sealed."""
    return lambda: (directory / "checkpoint").exists() and len(numbers(directory)) >= count


def taken(store: Store, directory: Path, count: int) -> Callable[[], bool]:
    """Whether they are sealed, and published and off the stream, which is the sealer's step behind that."""
    return lambda: sealed(directory, count)() and store.audit.describe_audit().length == 0


def findings(store: Store) -> dict[str, Level]:
    """What health says of the stream."""
    return {found.subject: found.level for found in check_audit(store.audit.describe_audit(), store.settings)}


def older_state(server: EmbeddedServer) -> Callable[[], None]:
    """Keep the server's data as they are now; the result makes it come back with them."""
    data, kept = server.directory / "appendonlydir", server.directory.with_name("older")
    server._run.end(signal.SIGTERM)  # its port and its lock stay ours
    shutil.copytree(data, kept)
    server.start()

    def back() -> None:
        server._run.end(signal.SIGTERM)
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        server.start()

    return back


# ------------------------------------------------------------------------------------------ the server
def test_the_server_is_killed(store, own_server, seal, log, eventually) -> None:
    """A server that is killed and comes back with its data costs nothing: the sealer waits for it and goes on."""
    process = seal()
    record(store, range(200))
    eventually(sealed(log, 200), timeout=90)
    own_server.kill()
    own_server.restart()
    record(store, range(200, 400))
    eventually(sealed(log, 400), timeout=90)
    assert process.stop() == 0
    assert numbers(log) == list(range(400))
    assert kinds(log) == {"step": 400}


def test_the_server_comes_back_empty(store, own_server, seal, log, eventually) -> None:
    """A stream that begins anew is marked by one `audit.epoch` that names where the old one ended (promise A9)."""
    process = seal()
    record(store, range(100))
    eventually(taken(store, log, 100), timeout=90)
    last = store.audit.describe_audit().last
    store.client.redis.flushall()
    record(store, range(100, 150))
    eventually(sealed(log, 150), timeout=90)
    assert process.stop() == 0
    assert numbers(log) == list(range(150))
    assert kinds(log) == {"step": 150, "audit.epoch": 1}
    (mark,) = [event for event in events(log) if event["event_type"] == "audit.epoch"]
    assert events(log).index(mark) == 100
    assert mark["metadata"]["before"]["id"] == last
    assert verify(log).ok


def test_it_comes_back_empty_while_no_sealer_runs(store, log) -> None:
    """The next sealer finds the other stream; what the old one held unsealed is lost with it, and that is said."""
    record(store, range(10))
    seal_all(store, log)
    record(store, range(10, 20))
    store.client.redis.flushall()
    record(store, range(20, 30))
    seal_all(store, log)
    assert numbers(log) == [*range(10), *range(20, 30)]
    assert kinds(log)["audit.epoch"] == 1
    seal_all(store, log)
    assert kinds(log)["audit.epoch"] == 1, "said once"


@pytest.mark.parametrize("noticed", ["running", "stopped"])
def test_an_older_append_only_file(store, seal, log, eventually, noticed) -> None:
    """A store with an older state: `store.rollback` names what it lost, nothing is sealed twice (promise A9)."""
    own_server = seal.server
    process = seal()
    record(store, range(50))
    eventually(taken(store, log, 50), timeout=90)
    back = older_state(own_server)
    record(store, range(50, 120))
    eventually(sealed(log, 120), timeout=90)
    if noticed == "stopped":
        assert process.stop() == 0
    back()
    if noticed == "stopped":
        process = seal()
    record(store, range(120, 150))
    eventually(sealed(log, 150), timeout=90)
    assert process.stop() == 0, process.text()
    assert numbers(log) == list(range(150))
    (mark,) = [event for event in events(log) if event["event_type"] == "store.rollback"]
    assert mark["metadata"]["lost"] == 70
    assert mark["status"] == "failure"
    assert verify(log).ok
    assert store.audit.describe_audit().length == 0


def test_ids_that_are_given_again(store, log, own_server) -> None:
    """An older state and a clock that was set back: an entry with the id of another, sealed one is sealed as well."""
    record(store, range(5))
    seal_all(store, log)
    back = older_state(own_server)
    record(store, range(5, 10))
    key = store.keys.build("audit")
    lost = store.client.redis.xrange(key)
    seal_all(store, log)
    back()
    name, fields = lost[2]
    store.client.redis.xadd(key, {**fields, b"d": fields[b"d"].replace(b'"7"', b'"700"')}, id=name)
    record(store, range(10, 15))
    seal_all(store, log)
    assert numbers(log) == [*range(10), 700, *range(10, 15)]
    (mark,) = [event for event in events(log) if event["event_type"] == "store.rollback"]
    assert (mark["metadata"]["lost"], mark["metadata"]["again"]) == (5, 1)
    assert verify(log).ok


# ------------------------------------------------------------------------------------------ the clock
def test_the_clock_steps_back(store, log) -> None:
    """Ids never fall: entries that come after one of the far future stand behind it, in order, and nothing waits."""
    record(store, range(5))
    key = store.keys.build("audit")
    future = 4_000_000_000_000
    store.client.redis.xadd(key, {"t": "test.future", "h": b"\x80", "d": b""}, id=f"{future}-7")
    record(store, range(5, 10))
    seal_all(store, log)
    record(store, range(10, 15))
    seal_all(store, log)
    assert numbers(log) == list(range(15))
    assert verify(log).ok
    assert store.audit.describe_audit().last == f"{future}-17"
    assert findings(store)["sealer"] is Level.WARNING  # it stopped; what waits is not from the future


def test_a_stream_whose_id_was_set(store, log) -> None:
    """XSETID into the future, as after a promotion with another clock, loses and repeats nothing."""
    record(store, range(5))
    seal_all(store, log)
    store.client.redis.execute_command("XSETID", store.keys.build("audit"), "4000000000000-0")
    record(store, range(5, 10))
    seal_all(store, log)
    assert numbers(log) == list(range(10))
    assert kinds(log) == {"step": 10}


def test_a_beat_of_the_future_is_no_life(store, log, tmp_path) -> None:
    """A sealer whose last word is dated in the future, by a clock that went back since, does not block the next one."""
    record(store, range(5))
    with sealing(store, log) as sealer:
        sealer._round()  # as if it was killed then
    store.client.redis.hset(store.keys.build("audit_meta"), "beat", 4_000_000_000)
    assert not store.audit.describe_audit().alive
    shutil.copytree(log, tmp_path / "moved")
    seal_all(store, tmp_path / "moved")


# ------------------------------------------------------------------------------------------ the sealer
def test_it_catches_up(store, seal, log, eventually) -> None:
    """A sealer that was away while work went on seals everything that waited, once and in order."""
    process = seal()
    record(store, range(100))
    eventually(taken(store, log, 100), timeout=90)
    process.kill()
    for start in range(100, 20_100, 500):
        record(store, range(start, start + 500))
    lag = store.audit.describe_audit()
    assert lag.length == 20_000
    process = seal()
    eventually(sealed(log, 20_100), timeout=60)
    assert process.stop() == 0
    assert numbers(log) == list(range(20_100))
    assert store.audit.describe_audit().length == 0


def test_it_seals_what_is_there_when_it_stops(store, seal, log, eventually) -> None:
    """SIGTERM seals what the stream holds, and the next sealer, in any directory that follows, need not wait."""
    process = seal()
    record(store, range(1))
    eventually(sealed(log, 1), timeout=90)
    record(store, range(1, 2_000))
    assert process.stop() == 0
    assert numbers(log) == list(range(2_000))
    assert not store.audit.describe_audit().alive


def test_two_in_one_directory(store, seal, log, eventually) -> None:
    """The second one ends at once, and names the process that has the directory."""
    first = seal()
    record(store, range(1))
    eventually(sealed(log, 1), timeout=90)
    second = seal()
    assert second.process.wait(90) == 1
    assert f"another sealer writes this log, process {first.process.pid}" in second.text()
    record(store, range(1, 10))
    eventually(taken(store, log, 10), timeout=90)


def test_two_on_one_stream(store, seal, log, eventually) -> None:
    """One in another directory ends at once and names the living one; nothing is taken from that."""
    seal()
    record(store, range(10))
    eventually(taken(store, log, 10), timeout=90)
    second = seal(name="other")
    assert second.process.wait(90) == 1
    assert "sealed up to line 10 in another directory" in second.text()
    assert not list(log.with_name("other").glob("*"))  # nothing there looks like a log
    copy = log.with_name("copy")
    shutil.copytree(log, copy)
    third = seal(name="copy")
    assert third.process.wait(90) == 1
    assert f"has a living sealer: {os.uname().nodename}:{log}" in third.text()


def test_a_frozen_sealer_is_fenced(store, seal, log, eventually) -> None:
    """One that was frozen beyond its lease, and replaced, takes nothing when it wakes, and ends (promise A9)."""
    first = seal()
    record(store, range(10))
    eventually(taken(store, log, 10), timeout=90)
    first.process.send_signal(signal.SIGSTOP)
    shutil.copytree(log, log.with_name("copy"))
    eventually(lambda: not store.audit.describe_audit().alive, timeout=90)
    second = seal(name="copy")
    record(store, range(10, 20))
    eventually(sealed(log.with_name("copy"), 20), timeout=90)
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(90) == 1
    assert "the stream was sealed up to line 20; this log has other lines there or only 10" in first.text()
    record(store, range(20, 30))
    eventually(sealed(log.with_name("copy"), 30), timeout=90)
    assert second.stop() == 0
    assert numbers(log.with_name("copy")) == list(range(30))
    assert store.audit.describe_audit().vanished == 0


def test_a_copy_that_went_on(store, log, tmp_path) -> None:
    """Once a copy sealed the stream, the first directory is refused; `--fork` goes on, and is told (promise A9)."""
    record(store, range(10))
    seal_all(store, log)
    copy = tmp_path / "copy"
    shutil.copytree(log, copy)
    record(store, range(10, 20))
    seal_all(store, copy)
    record(store, range(20, 30))
    with pytest.raises(SealerConflict, match=r"sealed up to line 20; .* `poimen audit seal --fork`"):
        seal_all(store, log)
    assert store.audit.describe_audit().length == 10
    seal_all(store, log, fork=True)
    assert numbers(log) == [*range(10), *range(20, 30)]
    (mark,) = [event for event in events(log) if event["event_type"] == "audit.forked"]
    assert mark["metadata"]["here"] == 10
    assert verify(log).ok
    with pytest.raises(SealerConflict):
        seal_all(store, copy)


def test_an_empty_directory(store, log, tmp_path) -> None:
    """A new directory does not quietly go on where another one holds the log."""
    record(store, range(3))
    seal_all(store, log)
    with pytest.raises(SealerConflict, match="another log"):
        seal_all(store, tmp_path / "new")


# ------------------------------------------------------------------------------------------ the disk
def test_the_disk_is_full(store, seal, log, eventually) -> None:
    """It ends with exit code 1 and says what to do; the stream keeps everything, later it goes on (promise A9)."""
    process = seal()
    record(store, range(100))
    eventually(taken(store, log, 100), timeout=90)
    room = next((log / "segments").iterdir()).stat().st_size + 1_000
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (room, room))
    record(store, range(100, 300))
    assert process.process.wait(90) == 1
    assert "Nothing was tried again, and what is not sealed stays in Redis" in process.text()
    assert "File too large" in process.text()
    assert store.audit.describe_audit().length >= 190
    process = seal()
    eventually(sealed(log, 300), timeout=90)
    assert process.stop() == 0
    assert numbers(log) == list(range(300))
    assert kinds(log)["audit.recovered"] == 1
    assert verify(log).ok


class Failing(Disk):
    """A disk whose n-th sync fails, and that counts what is asked of it afterwards."""

    def __init__(self, at: int, code: int = errno.EIO) -> None:
        self.at, self.code, self.after = at, code, 0

    def sync(self, fd: int, path: Path) -> None:
        """Fail once."""
        self.at -= 1
        if self.at < 0:
            self.after += 1
        if self.at == 0:
            raise AuditDiskError(f"fsync of {path}: {os.strerror(self.code)}")
        super().sync(fd, path)


def go_on(store: Store, sealer: Sealer) -> None:
    """Ten rounds of ten events."""
    for start in range(0, 100, 10):
        record(store, range(start, start + 10))
        sealer._round()


@pytest.mark.parametrize("at", range(1, 8))
def test_an_fsync_that_fails(store, log, at) -> None:
    """No fsync is tried again: the sealer ends, and nothing leaves the stream (promise A9)."""
    disk = Failing(at + 5)
    with pytest.raises(AuditDiskError, match="fsync"), sealing(store, log, disk=disk) as sealer:
        go_on(store, sealer)
    assert disk.after == 0
    known = len(numbers(log))
    state = store.audit.describe_audit()
    assert state.sealed <= known
    seal_all(store, log)
    record(store, range(100, 110))
    seal_all(store, log)
    found = numbers(log)
    assert found == [*range(found.index(100)), *range(100, 110)]
    assert len(found) >= known + 10
    assert verify(log).ok


# ------------------------------------------------------------------------------------------ the stream
def test_who_may_add_can_empty(store, log) -> None:
    """`XADD … MAXLEN 1` drops what nobody sealed: the log has an `audit.gap`, health fails (promise A9).

    So nothing leaves unread without a word (fault H01).
    """
    record(store, range(10))
    seal_all(store, log)
    record(store, range(10, 30))
    key = store.keys.build("audit")
    store.client.redis.xadd(key, {"t": "x.x", "h": b"\x80", "d": b""}, maxlen=1, approximate=False)
    record(store, range(30, 35))
    seal_all(store, log)
    assert numbers(log) == [*range(10), *range(30, 35)]
    (mark,) = [event for event in events(log) if event["event_type"] == "audit.gap"]
    assert mark["metadata"]["lost"] == 20
    assert findings(store)["audit gap"] is Level.ERROR
    seal_all(store, log)
    assert kinds(log)["audit.gap"] == 1, "said once"


def test_it_is_emptied_beside_the_sealer(store, seal, log, eventually) -> None:
    """A living sealer notices within its lease, also when nothing else happens."""
    process = seal()
    record(store, range(10))
    eventually(taken(store, log, 10), timeout=90)
    process.process.send_signal(signal.SIGSTOP)
    record(store, range(10, 30))
    store.client.redis.xtrim(store.keys.build("audit"), maxlen=0, approximate=False)
    process.process.send_signal(signal.SIGCONT)
    eventually(lambda: kinds(log)["audit.gap"] == 1, timeout=90)
    assert process.stop() == 0
    assert [e["metadata"]["lost"] for e in events(log) if e["event_type"] == "audit.gap"] == [20]


def test_entries_deleted_from_the_middle(store, log) -> None:
    """What is deleted one by one is counted too, whatever stands around it."""
    record(store, range(30))
    key = store.keys.build("audit")
    found = [name for name, _ in store.client.redis.xrange(key)]
    store.client.redis.xdel(key, *found[10:15])
    seal_all(store, log)
    assert numbers(log) == [*range(10), *range(15, 30)]
    assert [e["metadata"]["lost"] for e in events(log) if e["event_type"] == "audit.gap"] == [5]


def test_the_stream_is_deleted(store, log) -> None:
    """The key itself is gone: how much was in it nobody knows, and that is what the log says."""
    record(store, range(10))
    seal_all(store, log)
    record(store, range(10, 20))
    store.client.redis.delete(store.keys.build("audit"))
    record(store, range(20, 25))
    seal_all(store, log)
    assert numbers(log) == [*range(10), *range(20, 25)]
    assert [e["metadata"]["lost"] for e in events(log) if e["event_type"] == "audit.gap"] == [None]
    assert findings(store)["audit gap"] is Level.ERROR
    assert verify(log).ok


def test_another_type_of_key(store, seal, log, eventually) -> None:
    """A running sealer names the key and waits until it is gone; one that is started meanwhile ends with the error."""
    key = store.keys.build("audit")
    record(store, range(10))
    running = seal()
    eventually(taken(store, log, 10))
    store.client.redis.delete(key)
    store.client.redis.set(key, "x")
    eventually(lambda: f"key '{key}' is of type string, where a stream belongs" in running.text())
    second = seal("--once", name="other")
    assert second.process.wait(60) == 1
    assert f"error: Redis at {store.client.url}: key '{key}' is of type string" in second.text()
    assert "Traceback" not in running.text() + second.text()
    store.client.redis.delete(key)
    record(store, range(10, 20))
    eventually(sealed(log, 20))
    assert running.stop() == 0
    assert kinds(log)["audit.gap"] == 1
    assert verify(log).ok


def test_what_was_dropped_before_there_was_a_sealer(settings, own_server, log) -> None:
    """The bounded stream of an installation without a sealer: the first one says how many entries are missing."""
    store = Store(settings.model_copy(update={"audit_unsealed_limit": 50}), own_server.url)
    for start in range(0, 300, 10):
        record(store, range(start, start + 10))
    dropped = store.audit.describe_audit().dropped
    assert dropped >= 200
    seal_all(store, log)
    store.client.close()
    assert numbers(log) == list(range(dropped, 300))
    (mark,) = [event for event in events(log) if event["event_type"] == "audit.unsealed_dropped"]
    assert mark["metadata"]["lost"] == dropped
    assert kinds(log)["audit.gap"] == 0


def test_foreign_entries(store, log) -> None:
    """Entries that nobody of ours wrote, without fields or with bytes for a type, become lines that say so."""
    key = store.keys.build("audit")
    for fields in ({"a": "b"}, {"t": b"\xff\n", "h": b"\xc1", "d": b"\0"}, {"t": "", "h": "", "d": ""}):
        store.client.redis.xadd(key, fields)
    record(store, range(3))
    seal_all(store, log)
    assert numbers(log) == [0, 1, 2]
    assert kinds(log)["audit.unreadable"] == 3
    assert verify(log).ok


def test_the_connection_is_cut(store, seal, log, eventually) -> None:
    """CLIENT KILL in the middle of a round costs nothing."""
    process = seal()
    for start in range(0, 2_000, 100):
        record(store, range(start, start + 100))
        control = redis.Redis.from_url(store.client.url)
        control.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        control.close()
    eventually(sealed(log, 2_000), timeout=90)
    assert process.stop() == 0
    assert numbers(log) == list(range(2_000))
