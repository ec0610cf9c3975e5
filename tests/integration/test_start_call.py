"""`start_call`: a plain call begins and is registered, unless a pause covers it."""

from __future__ import annotations

import threading

import pytest

from poimen_tasks.testing import eventually
from tests.integration import lanes
from tests.integration.calls import call, no_memory, pause, running

SCOPES = {"*": {}, "q:q": {}, "a:acts.work": {}, "w:wf": {"workflow": "wf"}, "b:b1": {"batch": "b1"}}


def test_it_is_registered_until_it_ends(store):
    """A running call is in the receipt of a pause that covers it, and not once it ended (promise P14)."""
    assert store.calls.start_call(call(workflow="wf")) == ""
    assert [(one.id, one.activity) for one in pause(store, "w:wf").calls] == [("m1", "acts.work")]
    assert pause(store, "w:other").calls == []
    store.calls.end_call(call().field)
    eventually(lambda: pause(store, "*").calls == [])  # the end is not waited for


@pytest.mark.parametrize("scope", SCOPES)
def test_what_covers_it(store, scope):
    """Everything, its queue, its activity, its workflow, its batch; the answer names which, and nothing is changed."""
    pause(store, scope)
    before = lanes.snapshot(store)
    assert store.calls.start_call(call(**SCOPES[scope])) == scope
    assert lanes.snapshot(store) == before


def test_what_does_not_cover_it(store):
    """A call of no workflow is not covered by that of another, nor by another queue or activity."""
    for scope in ("w:wf", "q:other", "a:acts.other", "b:b1"):
        pause(store, scope)
    assert store.calls.start_call(call()) == ""


def test_twice_is_once(store):
    """Sent again, as after a lost reply, it registers the same run."""
    assert [store.calls.start_call(call()) for _ in range(2)] == ["", ""]
    assert list(running(store)) == ["m1"]
    store.calls.end_call(call().field)
    store.calls.start_call(call("m2"))
    assert list(running(store)) == ["m2"]


def test_the_same_id_in_two_processes(store):
    """A message that the broker delivered twice runs twice, and one end leaves the other registered."""
    one, other = call(), call(runner="w\t8")
    store.calls.start_call(one)
    store.calls.start_call(other)
    store.calls.end_call(one.field)
    eventually(lambda: len(pause(store).calls) < 2)  # the end is not waited for
    assert len(pause(store).calls) == 1


def test_unread_replies_do_not_mix(store):
    """Ends leave their replies unread; the answers to what follows are the right ones all the same."""
    pause(store, "q:held")
    for number in range(50):
        one = call(f"m{number}", queue="held" if number % 5 == 0 else "q")
        assert store.calls.start_call(one) == ("q:held" if number % 5 == 0 else "")
        store.calls.end_call(one.field)
    assert store.calls.start_call(call("last")) == ""
    assert list(running(store)) == ["last"]


def test_a_connection_that_was_cut(store):
    """An end whose connection was cut counts all the same, and the next call begins on a new one."""
    store.calls.start_call(call())
    store.client.redis.client_kill_filter(_type="normal", skipme=True)
    store.calls.end_call(call().field)
    assert store.calls.start_call(call("m2")) == ""
    assert list(running(store)) == ["m2"]


def test_an_overdue_lease_is_not_running(store):
    """A call whose worker is gone is running no more once its lease is over (promise P14)."""
    store.calls.start_call(call())
    field, redis = call().field, store.client.redis
    key = store.keys.build("running_calls")
    redis.hset(key, field, redis.hget(key, field).replace(b"%.3f" % running(store)["m1"][0], b"1.000"))
    assert pause(store).calls == []
    assert not redis.exists(key)


@pytest.mark.parametrize("trial", range(25))
def test_no_call_begins_after_a_pause(store, trial):
    """Behind a pause no plain call begins; all that began before is in its receipt (promise P14, invariant I4)."""
    begun: list[list[str]] = [[] for _ in range(4)]
    stop = threading.Event()

    def begin(runner: int) -> None:
        number = 0
        while not stop.is_set():
            name = f"{runner}-{number}"
            number += 1
            if store.calls.start_call(call(name, runner=f"w{runner}\t1")) == "":
                begun[runner].append(name)

    threads = [threading.Thread(target=begin, args=(runner,)) for runner in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(map(len, begun)) > 5 * (trial % 5))
    receipt = {one.id for one in pause(store).calls}
    assert store.calls.start_call(call("late")) == "*"
    stop.set()
    for thread in threads:
        thread.join()
    assert receipt == {name for names in begun for name in names}


def test_out_of_memory(store):
    """A server without memory begins calls all the same: what they free is worth more."""
    with no_memory(store):
        assert store.calls.start_call(call()) == ""


def test_layout(store):
    """Data of another layout is not touched."""
    lanes.assert_layout(store, lambda: store.calls.start_call(call()))


def test_a_flushed_script_cache(store):
    """A server that forgot its scripts is told them again."""
    store.client.redis.script_flush()
    assert store.calls.start_call(call()) == ""
