"""A connection of each thread's own: whatever happens to it, no answer is taken for that to another question."""

from __future__ import annotations

import os
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from poimen_tasks.store.direct import Direct, pack


@pytest.fixture
def direct(store):
    """Connections to the test's server."""
    made = Direct(store.client.redis.connection_pool)
    yield made
    made.close()


def ask(direct, text):
    return direct.send(pack(b"ECHO", text))


def own_id(direct):
    return direct.send(pack(b"CLIENT", b"ID"))


def test_a_command_is_packed():
    """The form is that of the protocol, whatever bytes stand in it."""
    assert pack(b"SET", b"k", b"a\r\nb\x00") == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\nb\x00\r\n"


def test_one_a_thread(direct):
    """A thread keeps its connection; another thread has another one."""
    mine, others = own_id(direct), []
    thread = threading.Thread(target=lambda: others.append(own_id(direct)))
    thread.start()
    thread.join(10)
    assert own_id(direct) == mine
    assert others != [mine]


def test_a_refusal_keeps_it(direct):
    """An error that the server answers is raised, and the connection goes on."""
    mine = own_id(direct)
    with pytest.raises(ResponseError):
        direct.send(pack(b"NO-SUCH-COMMAND"))
    assert own_id(direct) == mine


def test_a_connection_that_was_closed(store, direct):
    """The server closed it: that is an error, and the next command opens another one."""
    mine = own_id(direct)
    store.client.redis.client_kill_filter(_id=mine)
    with pytest.raises(RedisConnectionError):
        ask(direct, b"lost")
    assert ask(direct, b"there") == b"there"
    assert own_id(direct) != mine


def test_interrupted_between_question_and_answer(store, direct, monkeypatch):
    """An answer that nobody waited for is never given to the next question."""
    assert ask(direct, b"warm") == b"warm"
    kind = store.client.redis.connection_pool.connection_class
    with monkeypatch.context() as patch:
        patch.setattr(kind, "read_response", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ask(direct, b"first")
    assert ask(direct, b"second") == b"second"


def test_work_meanwhile(store, direct):
    """What is to be done meanwhile comes before the answer; where it fails the answer is never taken for another."""
    done = []
    assert direct.send(pack(b"ECHO", b"first"), lambda: done.append(1)) == b"first"
    mine = own_id(direct)
    with pytest.raises(ZeroDivisionError):
        direct.send(pack(b"ECHO", b"second"), lambda: done.append(1 // 0))
    assert ask(direct, b"third") == b"third"
    assert own_id(direct) != mine
    assert done == [1]


def test_amid_question_and_answer(direct):
    """Who asks while a question of the same thread waits, as a signal handler may, gets its own answer over another."""
    mine, others = own_id(direct), []

    def meanwhile():
        others.extend((own_id(direct), ask(direct, b"inner")))

    assert direct.send(pack(b"ECHO", b"outer"), meanwhile) == b"outer"
    assert others[0] != mine
    assert others[1] == b"inner"
    assert {own_id(direct), own_id(direct)} <= {mine, others[0]}


@pytest.mark.parametrize("count", [1, 700])
def test_recorded_amid_recording(store, monkeypatch, count):
    """What a signal handler records while its thread records is written once, and neither is refused (fault H07)."""
    kind, inner = store.client.redis.connection_pool.connection_class, []
    store.entries.record_event("first", b"{}")
    read, send = kind.read_response, kind.send_packed_command
    state = {"left": 6}

    def interrupt(call, *args, **kwargs):
        if state["left"] and not state.get("inside"):
            state["inside"], state["left"] = True, state["left"] - 1
            inner.append((f"in{len(inner)}", store.entries.record_event(f"in{len(inner)}", b"{}")))
            state["inside"] = False
        return call(*args, **kwargs)

    monkeypatch.setattr(kind, "read_response", lambda *a, **k: interrupt(read, *a, **k))
    monkeypatch.setattr(kind, "send_packed_command", lambda *a, **k: interrupt(send, *a, **k))
    outer = []
    if count == 1:
        outer += [(f"out{at}", store.entries.record_event(f"out{at}", b"{}")) for at in range(20)]
    else:
        made = []
        store.entries.record_events([f"out{at}" for at in range(count)], [b"{}"] * count, made.extend)
        outer += [(f"out{at}", one) for at, one in enumerate(made)]
    monkeypatch.undo()
    found = {entry.fields[b"h"][5:].decode(): entry.id for entry in walk(store)}
    assert len(inner) >= 3
    assert found == {"first": found["first"], **dict(outer), **dict(inner)}
    assert len(walk(store)) == 1 + len(outer) + len(inner)


def walk(store):
    """All entries."""
    found, last = [], "0-0"
    while page := store.entries.after(last):
        found += page
        last = page[-1].id
    return found


def test_a_forked_child(store):
    """A child has a connection of its own; what parent and child record both arrives, once each."""
    store.entries.record_event("before", b"{}")
    child = os.fork()
    if child == 0:
        try:
            for at in range(50):
                store.entries.record_event(f"child{at}", b"{}")
        finally:
            os._exit(0)
    for at in range(50):
        store.entries.record_event(f"parent{at}", b"{}")
    assert os.waitpid(child, 0)[1] == 0
    entries = store.entries.after("0-0", count=500)
    assert len(entries) == 101
    assert len({entry.fields[b"h"] for entry in entries}) == 101


def test_recording_goes_on_after_a_restart(store):
    """A connection that broke is made again while recording, and the script is read again where it is gone."""
    store.entries.record_event("e1", b"{}")
    store.client.redis.client_kill_filter(skipme=True, _type="normal")
    store.client.redis.script_flush()
    store.entries.record_event("e2", b"{}")
    assert len(store.entries.after("0-0")) == 2
