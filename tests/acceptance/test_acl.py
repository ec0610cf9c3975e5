"""The users of `config/users.acl` on a real server: each can do its work, and nothing that is not its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError, ResponseError

from poimen_tasks.errors import StoreRefused
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.keys import TABLE
from poimen_tasks.store.metric_reads import MetricReads
from poimen_tasks.store.server import EmbeddedServer
from poimen_tasks.store.tracker_scripts import Given, Who
from tests.acceptance.conftest import APP, imported
from tests.conftest import ROOT, Workers
from tests.integration.sealers import Sealer

USERS = ROOT / "config" / "users.acl"
#: What nobody but the administrator may: each of these stops everybody, or shows or changes everything.
FORBIDDEN = [
    ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "SET", "appendonly", "no"), ("SHUTDOWN", "NOSAVE"), ("KEYS", "*"),
    ("ACL", "SETUSER", "me"), ("SWAPDB", "0", "1"), ("REPLICAOF", "NO", "ONE"),
    ("FUNCTION", "FLUSH"), ("SCRIPT", "FLUSH"), ("SET", "elsewhere", "1"), ("GET", "elsewhere"), ("SAVE",),
    ("CLIENT", "KILL", "TYPE", "normal"), ("MONITOR",), ("BGREWRITEAOF",), ("DEL", "{other}:batches"),
]  # fmt: skip
#: What keeps the audit stream from being emptied, but for XADD with MAXLEN.
AUDIT = [
    ("DEL", "{poimen}:audit"), ("UNLINK", "{poimen}:audit"), ("XTRIM", "{poimen}:audit", "MAXLEN", "0"),
    ("XDEL", "{poimen}:audit", "1-1"), ("RENAME", "{poimen}:audit", "{poimen}:batches"), ("DEL", "{poimen}:audit:meta"),
    ("XSETID", "{poimen}:audit", "1-1"), ("EXPIRE", "{poimen}:audit", "1"), ("HDEL", "{poimen}:audit:meta", "sealer"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with the file's users; the one who starts it has to get in without a password."""
    directory = tmp_path_factory.mktemp("acl")
    file = directory / "users.acl"
    text = USERS.read_text()
    assert text.startswith("user default off\n")
    file.write_text(text.replace("user default off\n", "user default on nopass ~* &* +@all\n"))
    with EmbeddedServer(directory / "server", extra={"aclfile": str(file)}) as running:
        yield running


@pytest.fixture
def url(server: EmbeddedServer) -> Callable[[str], str]:
    """The URL of a user."""
    return lambda user: server.url.replace("redis://", f"redis://{user}:change-{user}@")


@pytest.fixture
def connect(url: Callable[[str], str]) -> Iterator[Callable[[str], redis.Redis]]:
    """A client for a user."""
    made: list[redis.Redis] = []

    def connect(user: str) -> redis.Redis:
        made.append(redis.Redis.from_url(url(user), protocol=2))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def env(url: Callable[[str], str], tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The settings of a process of a user."""

    def env(user: str) -> dict[str, str]:
        return {
            "POIMEN_REDIS_URL": url(user),
            "POIMEN_BROKER_URL": url(user),
            "POIMEN_NAMESPACE": "poimen",
            "POIMEN_DATA_DIR": str(tmp_path),
            "POIMEN_LEASE": "3.0",
            "POIMEN_TICK": "0.2",
        }

    return env


def denied(client: redis.Redis, *command: str) -> bool:
    """Whether the server refuses the command for want of rights."""
    try:
        client.execute_command(*command)
    except NoPermissionError:
        return True
    except ResponseError as error:
        raise AssertionError(f"{command} was let through: {error}") from error
    return False


def test_every_key_has_its_rule() -> None:
    """`[^a]` in the file means: every key of ours but those of the audit stream."""
    pattern = re.compile(r"[^a].*")
    assert {name for name, key in TABLE.items() if not pattern.fullmatch(key.form)} == {"audit", "audit_meta"}


def test_each_does_its_work(env, url, tmp_path, server, eventually) -> None:
    """A producer dispatches, a worker runs, a sealer seals, a reader looks: each with its own rights only."""
    group = Workers(tmp_path, env("worker"))
    log = redis.Redis.from_url(server.url)
    log.execute_command("ACL", "LOG", "RESET")
    try:
        worker = group.start(APP, concurrency=2)
        with imported(env("producer")) as shop:
            batch = shop.poimen.dispatch(shop.poimen.starmap(shop.add, [(n, n) for n in range(20)]), concurrency=2)
            report = batch.wait(60)
            assert (report.succeeded, report.results["3"]) == (20, 6)
            assert shop.add.delay(1, 2).get(timeout=30) == 3
            batch.cancel()
            assert shop.poimen.dispatch([shop.tracked.s("t", "T1")]).wait(60).succeeded == 1
            shop.poimen.tracker("t").update_many(shop.poimen.tracker("t").completed())
            assert shop.poimen.tracker("t").update("T2").version == 4
            assert shop.poimen.tracker("t").remove("T2")
        store = Store(Settings(namespace="poimen"), url("sealer"))
        sealer = known(store)
        before, read = sealer.sealed, sealer.read()
        assert len(read) >= 5
        assert sealer.publish(read).sealed == before + len(read)
        store.audit.rewind_stream(sealer.token, sealer.epoch, above=sealer.cursor)
        assert store.audit.leave_sealer(sealer.token)
        store.client.close()
        reader = Store(Settings(namespace="poimen"), url("readonly"))
        assert reader.reads.status(batch.id).succeeded == 20
        assert reader.trackers.tracker_stats("t", ranks=7).ranks == [0, 0, 0, 0, 1, 0, 0]
        assert [task for task, _ in reader.tracker_reads.tasks("t")] == ["T1"]
        assert reader.audit.describe_audit().sealed == before + len(read)
        assert MetricReads(reader.client).facts().totals["i", "ok", f"{APP}.add"] >= 20
        reader.client.close()
        worker.terminate()
        assert worker.wait() == 0
    finally:
        group.destroy_all()
    refused = [{key.decode(): value for key, value in zip(row[::2], row[1::2], strict=True)} for row in _acl_log(log)]
    log.close()
    # A worker asks whether strangers get in; who has a name and a password of its own may go without the answer.
    assert [row for row in refused if row["object"] != b"acl|getuser"] == []


def test_a_reader_that_writes(server: EmbeddedServer, url: Callable[[str], str]) -> None:
    """Who has no right to what a script does is told so by an error of ours, and nothing is changed."""
    writer = Store(Settings(namespace="poimen"), server.url)
    writer.trackers.tracker_update("r", [Given("T1")], begin=("pending", 0), who=Who("me"))
    reader = Store(Settings(namespace="poimen"), url("readonly"))
    for change in (
        lambda: reader.trackers.tracker_update("r", [Given("T1", scope="x")], begin=("pending", 0), who=Who("me")),
        lambda: reader.trackers.tracker_remove("r", "T1", who=Who("me")),
        lambda: reader.trackers.tracker_clear("r", who=Who("me")),
        lambda: reader.entries.record_event("e1", b"{}"),
    ):
        with pytest.raises(StoreRefused, match=r"refuses the command: .*[Nn]o permissions"):
            change()
    stored = reader.tracker_reads.task("r", "T1")
    assert stored is not None
    assert stored.version == 1
    for store in (reader, writer):
        store.client.close()


def known(store: Store) -> Sealer:
    """A sealer that goes on where the one of another test ended."""
    sealer = Sealer(store)
    sealer.sealed, sealer.cursor = sealer.state.sealed, sealer.state.cursor or "0-0"
    return sealer


def _acl_log(client: redis.Redis) -> list[list[object]]:
    found = client.execute_command("ACL", "LOG")
    return [row if isinstance(row, list) else [x for pair in row.items() for x in pair] for row in found]


@pytest.mark.parametrize("user", ["producer", "worker", "sealer", "readonly"])
@pytest.mark.parametrize("command", FORBIDDEN, ids=" ".join)
def test_nobody_may(connect, user, command) -> None:
    """No user of the file can stop the server, empty it, or touch what is not of this namespace."""
    assert denied(connect(user), *command)


@pytest.mark.parametrize("user", ["producer", "worker", "readonly"])
@pytest.mark.parametrize("command", AUDIT, ids=" ".join)
def test_the_audit_stream_only_grows(connect, user, command) -> None:
    """Nobody but the sealer takes entries off the audit stream by a command made for it, nor from within a script."""
    assert denied(connect(user), *command)
    words = ", ".join(f"'{word}'" for word in command)
    client = connect(user)
    with pytest.raises(ResponseError, match=r"(?i)ACL|permission"):
        client.eval(f"return redis.call({words})", 0)


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("producer", ("BRPOP", "celery", "1")),
        ("producer", ("LRANGE", "celery", "0", "-1")),
        ("producer", ("PUBLISH", "/0.celery.pidbox", "x")),
        ("sealer", ("LPUSH", "celery", "x")),
        ("sealer", ("HGETALL", "{poimen}:b:x")),
        ("sealer", ("XADD", "{poimen}:audit", "*", "t", "x")),
        ("sealer", ("DEL", "{poimen}:audit")),
        ("readonly", ("HSET", "{poimen}:b:x", "a", "b")),
        ("readonly", ("XADD", "{poimen}:audit", "*", "t", "x")),
        ("readonly", ("LRANGE", "celery", "0", "-1")),
    ],
    ids=str,
)
def test_each_only_its_own(connect, user, command) -> None:
    """A producer takes no messages and steers no workers, a sealer sees no batches, a reader writes nothing."""
    assert denied(connect(user), *command)


def test_what_acls_cannot_stop(connect, url) -> None:
    """Who may add an entry may empty the stream with the same command; the sealer counts what vanished."""
    store = Store(Settings(namespace="poimen"), url("sealer"))
    sealer = known(store)
    producer = connect("producer")
    for _ in range(5):
        producer.xadd("{poimen}:audit", {"t": "x"})
    producer.xadd("{poimen}:audit", {"t": "x"}, maxlen=1, approximate=False)
    before = sealer.state.vanished
    state = sealer.publish(sealer.read())
    assert state.vanished - before >= 5
    store.audit.leave_sealer(sealer.token)
    store.client.close()
