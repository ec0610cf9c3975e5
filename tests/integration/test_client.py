"""The client: what it says when the server is away, frozen, full, read-only or forgetful."""

from __future__ import annotations

import socket
import threading

import pytest
from redis.exceptions import ResponseError

from poimen_tasks.errors import StoreRefused, StoreUnavailable
from poimen_tasks.model import BatchState
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.loader import load_script, script_names
from poimen_tasks.store.server import EmbeddedServer
from tests.integration import lanes
from tests.integration.lanes import Lane, begin, open_batch
from tests.integration.sealers import Sealer


@pytest.fixture
def own(tmp_path):
    """A server that a test may stop, freeze or fill."""
    with EmbeddedServer(tmp_path / "own") as server:
        yield server


@pytest.fixture
def connect(namespace):
    """Open stores that give up soon; all are closed afterwards."""
    made = []

    def open_store(url, **options):
        short = {"connect_timeout": 0.3, "socket_timeout": 0.2} | options
        made.append(Store(Settings(redis_url=url, namespace=namespace, **short), url))
        return made[-1]

    yield open_store
    for store in made:
        store.client.close()


@pytest.fixture
def dead_port():
    """A port that nobody listens on: it is bound and refuses connections."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_nothing_is_opened_before_use(connect, dead_port):
    """Making a store opens no connection."""
    connect(f"redis://127.0.0.1:{dead_port}/0")


def test_unreachable(connect, dead_port):
    """A server that is not there is `StoreUnavailable` when the connect timeout is over, with the password masked."""
    store = connect(f"redis://:topsecret@127.0.0.1:{dead_port}/0")
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{dead_port}.*does not answer.*POIMEN_REDIS_URL") as caught:
        store.reads.status("b")
    assert "topsecret" not in str(caught.value)
    assert isinstance(caught.value, ConnectionError)


def test_scripts_are_unreachable_too(connect, dead_port):
    """A script that cannot be sent is the same error."""
    store = connect(f"redis://127.0.0.1:{dead_port}/0")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        open_batch(store)


def test_frozen_server(own, connect):
    """A server that accepts connections and answers nothing is `StoreUnavailable`, never a hang (fault D02)."""
    store = connect(own.url)
    open_batch(store)
    own.pause()
    try:
        with pytest.raises(StoreUnavailable, match="TimeoutError"):
            store.reads.status("b")
        with pytest.raises(StoreUnavailable, match="TimeoutError"):
            store.scripts.seal_batch("b")
    finally:
        own.resume()
    assert store.reads.status("b").total == 4


def test_lost_reply_is_asked_for_again(own, connect):
    """A request whose reply was lost is sent again and takes effect once (protocol 4, fault H07)."""
    store = connect(own.url, connect_timeout=20.0)
    (ticket,) = open_batch(store, count=9)
    own.pause()
    thaw = threading.Timer(0.7, own.resume)  # longer than the socket timeout: the first request's reply is lost
    thaw.start()
    try:
        lane = begin(store, ticket, 3)
    finally:
        thaw.join()
    assert list(lane.holds) == [0, 1, 2]
    assert lanes.field_of(store, "running") == 3
    assert lanes.holds_together(store)


def test_restarted_server(own, connect):
    """After a restart the client connects again by itself and the data is there (fault D01)."""
    store = connect(own.url, connect_timeout=20.0)
    (ticket,) = open_batch(store, count=9)
    own.restart()
    lane = begin(store, ticket)
    own.kill()
    restart = threading.Thread(target=own.restart)
    restart.start()
    try:
        assert lane.claim(ok=list(lane.holds)).state == "go"
    finally:
        restart.join()
    assert lanes.holds_together(store)


def test_forgotten_scripts(store):
    """After SCRIPT FLUSH a script is loaded again and runs."""
    (ticket,) = open_batch(store, count=9)
    store.client.redis.script_flush()
    lane = begin(store, ticket)
    store.client.redis.script_flush()
    assert lane.claim(ok=[0]).positions == [1]


def test_closed_store_opens_again(store):
    """A closed client opens new connections when it is used."""
    open_batch(store)
    store.client.close()
    assert store.reads.status("b").total == 4


ALLOWED_WHEN_FULL = sorted(
    name for name in script_names() if "flags=allow-oom" in load_script(name).source.split("\n")[0]
)


def test_what_works_on_a_full_server():
    """Finish, cancel, seal and the keeper's chores work on a full server; dispatch and claim do not (protocol 4)."""
    refused = {
        "open_batch",
        "append_items",
        "put_big",
        "step",
        "retry_failed",
        "cache_put",
        "save_checkpoint",
        "record_event",
        "record_one",
        "restore_begin",
        "restore_slice",
        "restore_end",
        "restore_done",
        "tracker_update",
    }
    assert set(script_names()) - set(ALLOWED_WHEN_FULL) == refused


@pytest.fixture
def full(own, connect):
    """A store whose server is out of memory, and a lane that holds two items of its batch; a second batch failed."""
    store = connect(own.url)
    lanes.offer(store, 4)
    begin(store, open_batch(store, "f", 1)[0]).claim(failed=[0])
    tickets = open_batch(store, count=2000, seal=False)
    lane = begin(store, tickets[0], 2)
    store.client.redis.set("ballast", b"x" * (2 << 20))
    store.client.redis.config_set("maxmemory", "1mb")
    store.client.redis.script_flush()
    return store, lane, tickets


def test_refused_on_a_full_server(full):
    """New work is `StoreRefused` on a full server and nothing of it is written (fault D11)."""
    store, lane, tickets = full
    before = lanes.snapshot(store)
    for verb in (
        lambda: open_batch(store, "new"),
        lambda: lanes.append(store, 2048, 1),
        lambda: Lane(store, tickets[1]).begin(),
        lambda: lane.claim(ok=[0]),
        lambda: store.scripts.retry_failed("f", [(0, 0, 1)], round_=1, actor="me"),
        lambda: store.entries.record_event("e", b"{}"),
    ):
        with pytest.raises(StoreRefused, match="out of memory"):
            verb()
    assert lanes.snapshot(store) == before


def test_allowed_on_a_full_server(full):
    """On a full server lanes report and the chores go on: no outcome is lost (protocol 4, fault D11)."""
    store, lane, tickets = full
    assert store.scripts.renew_leases([lane.ticket[:3]], lease=60.0) == ["ok"]
    assert lane.finish("free", ok=[0], retry={1: 0.0}).state == "end"
    assert store.scripts.check_batch("b")[b"good"]
    store.scripts.touch_producer("b")
    store.scripts.set_concurrency("b", 3, actor="me")
    store.scripts.reissue_ticket("b", tickets[1].slot, reissue=True)
    store.scripts.reap_lane("b", 99, 1, why="lost")
    assert lanes.offer(store, 4)[b"leader"]
    store.scripts.promote_batch("b")
    store.scripts.seal_batch("b")
    while store.scripts.cancel_batch("b", reason="full", actor="me", terminate=False)[b"left"]:
        pass
    assert store.reads.status("b").state is BatchState.CANCELLED
    assert lanes.statuses_of(store)[0] == ["ok"]


def test_sealed_on_a_full_server(full):
    """On a full server the sealer goes on: it frees memory (protocol 10, fault D11)."""
    store, lane, _ = full
    sealer = Sealer(store)
    lane.finish("free", ok=[0])
    assert sealer.publish(sealer.read()).length == 0
    assert store.audit.leave_sealer(sealer.token)
    assert store.audit.describe_audit().sealed > 0


def test_read_only_server(own, connect):
    """A replica that takes no writes is `StoreRefused`, and says why."""
    store = connect(own.url)
    open_batch(store)
    store.client.redis.replicaof("127.0.0.1", "1")
    with pytest.raises(StoreRefused, match="read only"):
        store.scripts.seal_batch("b")


def test_no_permission(own, connect):
    """A user who may not run the command is told so."""
    connect(own.url).client.redis.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "+time", "~*")
    store = connect(own.url.replace("redis://", "redis://reader:topsecret@"))
    with pytest.raises(StoreRefused, match="no permissions") as caught:
        store.reads.status("b")
    assert "topsecret" not in str(caught.value)


def test_wrong_password(own, connect):
    """A wrong password is refused at once, not waited for, and shows in no message."""
    store = connect(own.url.replace("redis://", "redis://nobody:topsecret@"))
    with pytest.raises(StoreRefused, match="invalid username-password") as caught:
        store.reads.status("b")
    assert "topsecret" not in str(caught.value)


def test_other_errors_are_not_hidden(store):
    """An error that is none of these reaches the caller as it is."""
    with pytest.raises(ResponseError, match="unknown command"):
        store.client.read(lambda redis: redis.execute_command("NONESUCH"), patience=0)
