"""`repair_pauses`: what is known about a scope is held against whether it is paused, and put right."""

from __future__ import annotations

import pytest
from celery import Celery

from poimen_tasks.defaults import DEFAULTS
from poimen_tasks.health import Level, Repairs, check_pauses, examine
from tests.integration import lanes
from tests.integration.lanes import open_batch
from tests.integration.test_pause_scope import pause


def key(store, name, *values):
    return store.keys.build(name, *values)


def look(store, *scopes, repair=False):
    return store.pauses.repair_pauses(scopes, repair=repair, actor="me")


BREAKS = {
    "unstated": lambda store: store.client.redis.delete(key(store, "pause_state", "w:w")),
    "unlisted": lambda store: store.client.redis.zrem(key(store, "pause_index"), "w:w"),
    "unmarked": lambda store: (
        store.client.redis.hdel(key(store, "pauses"), "w:w"),
        store.client.redis.zrem(key(store, "pause_index"), "w:w"),
        store.client.redis.delete(key(store, "held", "w:w")),
    ),
    "listed": lambda store: (
        store.client.redis.delete(key(store, "pauses"), key(store, "pause_state", "w:w"), key(store, "held", "w:w")),
    ),
    "due": lambda store: (
        store.client.redis.delete(*(key(store, name) for name in ("pauses", "pause_index"))),
        store.client.redis.delete(key(store, "pause_state", "w:w"), key(store, "held", "w:w")),
        store.client.redis.zadd(key(store, "pause_due"), {"w:w": 1.0}),
    ),
    "held": lambda store: (
        store.client.redis.delete(*(key(store, name) for name in ("pauses", "pause_index"))),
        store.client.redis.delete(key(store, "pause_state", "w:w")),
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_found_and_repaired(store, what):
    """Each kind of drift is found, changes nothing when only looked at, and is gone after the repair."""
    lanes.offer(store, 2)
    pause(store, "w:w")
    open_batch(store)
    assert look(store, "w:w") == {}
    BREAKS[what](store)
    before = lanes.snapshot(store)
    assert look(store, "w:w", "q:other") == {"w:w": [what]}
    assert lanes.snapshot(store) == before
    assert look(store, "w:w", repair=True) == {"w:w": [what]}
    assert look(store, "w:w") == {}
    (told,) = lanes.audit(store, "pauses.repaired")
    assert told.header["a"] == "me"


def test_what_was_held_is_released(store):
    """Work that a lost pause held back gets its tickets from the keeper."""
    lanes.offer(store, 2)
    pause(store, "w:w")
    assert open_batch(store) == []
    BREAKS["held"](store)
    look(store, "w:w", repair=True)
    assert lanes.offer(store, 2)[b"releasing"] == [b"w:w"]
    assert store.pauses.release_held("w:w").tickets


def test_again(store):
    """Under the same owner and sequence the reply is repeated, and nothing is done twice (protocol 4)."""
    pause(store, "w:w")
    BREAKS["unlisted"](store)
    lanes.assert_once(store, lambda: look(store, "w:w", repair=True))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    pause(store, "w:w")
    lanes.assert_layout(store, lambda: look(store, "w:w"))


# ------------------------------------------------------------------------------------------- the doctor
def test_the_doctor_looks_at_every_scope(store):
    """Scopes are found in whichever key speaks of them; without drift there is one line, with how many are paused."""
    for scope in ("*", "w:one", "q:two"):
        pause(store, scope)
    store.pauses.resume_scope("w:one", reason="", actor="me")
    (fine,) = check_pauses(store, None)
    assert (fine.level, fine.subject) == (Level.OK, "2 scopes paused")
    store.client.redis.sadd(key(store, "held", "a:lost"), "b\tgone")
    store.client.redis.hset(key(store, "pauses"), "b:odd", "7|-|0")
    found = {one.subject: one for one in check_pauses(store, None)}
    assert (found["a:lost"].level, found["b:odd"].level) == (Level.ERROR, Level.WARNING)
    assert all(one.repaired for one in check_pauses(store, Repairs(actor="me", publish=list)))
    assert [one.level for one in check_pauses(store, None)] == [Level.OK]


def test_the_doctor_tells_of_long_pauses(store):
    """What is paused for more than a day is told, with who, why and how to resume it."""
    pause(store, "w:w")
    store.client.redis.hset(
        key(store, "pause_state", "w:w"), mapping={"paused_at": store.reads.now() - 3 * 86400, "reason": "why not"}
    )
    app = Celery("shop", broker="redis://127.0.0.1/0", set_as_current=False)
    app.conf.update(DEFAULTS)
    (told,) = [one for one in examine(store, app.conf) if one.check == "pauses" and one.level is not Level.OK]
    assert "paused for 3 d by" in told.message
    assert "why not" in told.message
    assert "--workflow w" in told.advice
