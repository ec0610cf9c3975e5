"""`release_parked`: a parked call was released and seems lost; it is published once more."""

from __future__ import annotations

from tests.integration.calls import MESSAGE, back, call, due, held, make_due, no_memory, park, pause, resume
from tests.integration.lanes import assert_layout, assert_once
from tests.integration.test_begin_call import server_time


def release(store, key="m1", **options):
    """What is published again."""
    return [(one.id, one.message) for one in store.calls.release_parked(key, **options)]


def tick(store):
    """What the elected keeper is told of released calls: key and queue of each."""
    chores = store.scripts.tick("w", offers=[], payload=b"", period=0.2, lease=3.0)
    return [(key.decode(), queue.decode()) for key, queue in chores[b"parked"]]


def test_ever_more_seldom_until_it_begins(store):
    """Each copy comes later than the one before, and none once it began."""
    pause(store)
    park(store)
    resume(store)
    assert release(store) == []
    pauses = []
    for _ in range(4):
        pauses.append(due(store) - server_time(store.client.redis))
        make_due(store)
        assert release(store) == [("m1", MESSAGE)]
    assert pauses[3] > pauses[2] > pauses[1] > pauses[0] > 0
    store.calls.park_call(back())
    assert (due(store), release(store)) == (None, [])
    assert not store.client.redis.exists(store.keys.build("paused_tries"))


def test_while_its_queue_has_messages(store):
    """A queue that is long has it most likely: no copies are added, until that has lasted for long."""
    pause(store)
    park(store)
    resume(store)
    published = []
    for _ in range(7):
        make_due(store)
        published.append(bool(release(store, waits=True)))
    assert published == [False] * 5 + [True] * 2


def test_one_that_was_never_published(store):
    """What a resume had no room for is published, however long its queue is."""
    pause(store)
    for number in range(3):
        park(store, call(f"m{number}"), message=b"x" * 600_000)
    assert len(resume(store)) == 1
    left = [name for name, queue in tick(store) if not queue]
    assert len(left) == 2
    assert [len(release(store, name, waits=True)) for name in left] == [1, 1]


def test_paused_again_meanwhile(store):
    """Under another pause it is held, and published with that one's resume."""
    pause(store)
    park(store)
    resume(store)
    pause(store, "q:q")
    make_due(store)
    assert release(store) == []
    assert held(store, "q:q") == {b"c\tm1"}
    assert resume(store, "q:q") == [("m1", MESSAGE)]


def test_the_tick_tells(store):
    """The elected keeper is told which calls are overdue, and in which queue they were."""
    pause(store)
    park(store)
    resume(store)
    make_due(store)
    assert tick(store) == [("m1", "q")]


def test_once(store):
    """Sent twice it changes things once (protocol 4)."""
    pause(store)
    park(store)
    resume(store)
    make_due(store)
    assert_once(store, lambda: release(store))


def test_out_of_memory(store):
    """A server without memory lets them go all the same: they free it."""
    pause(store)
    park(store)
    resume(store)
    make_due(store)
    with no_memory(store):
        assert release(store) == [("m1", MESSAGE)]


def test_layout(store):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: release(store))
