"""`repair_tracker`: what a tracker's indexes say is held against the states, and put right."""

from __future__ import annotations

import msgpack
import pytest
from celery import Celery

from poimen_tasks import TaskStatus
from poimen_tasks.defaults import DEFAULTS
from poimen_tasks.errors import InvalidArgument, StoreRefused
from poimen_tasks.health import Level, Repairs, check_trackers, examine
from poimen_tasks.store.tracker_scripts import Given, Who
from tests.integration import lanes
from tests.integration.lanes import update


def key(store, name, *values):
    return store.keys.build(name, *(values or ("v",)))


def look(store, *, repair=False, ids=("T1", "T2", "T3")):
    return store.trackers.repair_tracker("v", ids, repair=repair, actor="me")


BREAKS = {
    "damaged": lambda store: store.client.redis.hset(key(store, "tracker"), "T1", b"\xc1"),
    "unlisted": lambda store: store.client.redis.zrem(key(store, "tracker_order"), "T1"),
    "unlisted elsewhere": lambda store: store.client.redis.zadd(key(store, "tracker_states"), {"T1": 5}),
    "dead": lambda store: store.client.redis.hdel(key(store, "tracker"), "T1"),
    "unindexed": lambda store: store.client.redis.delete(store.keys.build("trackers")),
    "behind": lambda store: store.client.redis.delete(key(store, "tracker_meta")),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_found_and_repaired(store, name):
    """Each kind of drift is found, changes nothing when only looked at, and is gone after the repair."""
    what = name.split(maxsplit=1)[0]
    update(store, "T1", TaskStatus.FAILED)
    update(store, "T2", TaskStatus.COMPLETED)
    assert look(store) == {}
    BREAKS[name](store)
    before = lanes.snapshot(store)
    assert look(store) == {what: 1}
    assert lanes.snapshot(store) == before
    assert look(store, repair=True) == {what: 1}
    assert look(store) == {}
    (told,) = lanes.audit(store, "tracker.repaired")
    assert (told.header["tracker"], told.header["a"], int(told.header[what])) == ("v", "me", 1)
    left = {"T2"} if what in {"damaged", "dead"} else {"T1", "T2"}
    assert {task for task, _ in store.tracker_reads.tasks("v")} == left
    assert sum(store.trackers.tracker_stats("v", ranks=len(TaskStatus)).ranks) == len(left)
    assert store.tracker_reads.names() == ["v"]
    assert update(store, "T2", TaskStatus.FAILED).task.version == 3


WHOLE = {
    "v": 1, "k": 5, "o": 1, "s": "failed", "scope": "", "branch": "", "verification": "", "a": "me", "w": "",
    "c": 1.0, "u": 1.0,
}  # fmt: skip
UNREADABLE = {
    "no state": msgpack.packb(5),
    "cut off": b"\x8b\xa1v",
    "more behind it": msgpack.packb(5) + b"\x05",
    "a value missing": msgpack.packb({key: value for key, value in WHOLE.items() if key != "scope"}),
    "a text for a number": msgpack.packb(WHOLE | {"v": "x"}),
    "no number": msgpack.packb(WHOLE | {"v": float("nan")}),
    "a number for a text": msgpack.packb(WHOLE | {"branch": 5}),
    "no requests": msgpack.packb(WHOLE | {"q": "x"}),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_state_that_cannot_be_read(store, name):
    """It is told with its task, before anything is written; other tasks go on, and a repair removes it."""
    update(store, "T1")
    update(store, "T2")
    store.client.redis.hset(key(store, "tracker"), "T1", UNREADABLE[name])
    before = lanes.snapshot(store)
    for change in (
        lambda: update(store, "T1", TaskStatus.FAILED, request_id="r"),
        lambda: store.trackers.tracker_update("v", [Given("T3"), Given("T1")], begin=("pending", 0), who=Who("me")),
        lambda: store.trackers.tracker_remove("v", "T1", who=Who("me")),
    ):
        with pytest.raises(StoreRefused, match="the state of task 'T1' cannot be read"):
            change()
    after = lanes.snapshot(store)
    assert {name: after.get(name) for name in before} == before
    if name != "no requests":  # which a reader has no use for
        for ask in (lambda: store.tracker_reads.task("v", "T1"), lambda: list(store.tracker_reads.tasks("v"))):
            with pytest.raises(StoreRefused, match="the state of task 'T1' cannot be read"):
                ask()
    assert update(store, "T2", TaskStatus.FAILED).changed == 1
    assert look(store, repair=True) == {"damaged": 1}
    assert look(store) == {}
    assert [task for task, _ in store.tracker_reads.tasks("v")] == ["T2"]


def test_what_is_no_text(store):
    """An id or a name that somebody else wrote as bytes that are no text keeps nobody from looking at the others."""
    update(store, "T1")
    store.client.redis.hset(key(store, "tracker"), b"\xff", b"x")
    store.client.redis.zadd(key(store, "tracker_order"), {b"\xff": 7})
    store.client.redis.zadd(store.keys.build("trackers"), {b"\xff": 1})
    store.client.redis.zrem(key(store, "tracker_states"), "T1")
    assert "v" in store.tracker_reads.names()
    (found,) = check_trackers(store, None)
    assert (found.subject, found.message) == ("v", "tasks that an index lacks, or has in another place: 1")


def test_a_status_that_is_none(poimen):
    """What somebody wrote in the place of a status is told with its task, and another status mends it."""
    store, tracker = poimen.store, poimen.tracker("v")
    update(store, "T1")
    store.client.redis.hset(key(store, "tracker"), "T1", msgpack.packb(WHOLE | {"s": "weird"}))
    for ask in (lambda: tracker.get("T1"), lambda: list(tracker.all())):
        with pytest.raises(StoreRefused, match="task 'T1' has the status 'weird', which is none"):
            ask()
    assert tracker.update("T1", "completed").status is TaskStatus.COMPLETED


def test_sound(store):
    """What is sound is left alone, and has no entry (invariant I5)."""
    update(store)
    before = lanes.snapshot(store)
    assert look(store, repair=True) == {}
    assert lanes.snapshot(store) == before


def test_too_many(store):
    """More than 500 tasks in one call are refused."""
    with pytest.raises(InvalidArgument, match="501"):
        look(store, ids=[f"T{number}" for number in range(501)])


def test_once(store):
    """The same request twice repairs once; a lower sequence is refused (protocol 4)."""
    update(store)
    BREAKS["unlisted"](store)
    lanes.assert_once(store, lambda: look(store, repair=True))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lanes.assert_layout(store, lambda: look(store))


def test_the_doctor(store):
    """Doctor looks at every tracker, also one that no list has, and repairs it when it is told to."""
    conf = Celery(set_as_current=False, broker=store.client.url).conf
    conf.update(DEFAULTS)
    (said,) = check_trackers(store, None)
    assert (said.level, said.subject) == (Level.OK, "0 trackers")
    for number in range(300):
        update(store, f"T{number}")
    update(store, tracker="other")
    store.client.redis.delete(store.keys.build("trackers"))
    store.client.redis.hset(key(store, "tracker"), "T7", b"\xc1")
    found = {one.subject: one for one in examine(store, conf) if one.check == "trackers"}
    assert {name: one.level for name, one in found.items()} == {"other": Level.WARNING, "v": Level.ERROR}
    assert "states that cannot be read: 1" in found["v"].message
    assert "the list of trackers lacks it" in found["other"].message
    assert not any(one.repaired for one in found.values())
    assert all(one.repaired for one in check_trackers(store, Repairs("me", lambda _tickets: None)))
    (said,) = check_trackers(store, None)
    assert (said.level, said.subject) == (Level.OK, "2 trackers")
