"""Somebody put another type of value in place of one of our keys: one clear error names it, and nothing is changed."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import StoreRefused
from poimen_tasks.health import Level, examine, glance
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.keys import TABLE
from poimen_tasks.store.tracker_scripts import Who
from poimen_tasks.store.wrong_type import WrongType, find_wrong_type
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch

FIXED = sorted(name for name, key in TABLE.items() if not key.holes)


@pytest.fixture
def redis(store):
    """The server, to write over keys."""
    return store.client.redis


def overwrite(store, name, *values):
    """Put a value of another type in place of a key; returns the key."""
    key, redis = store.keys.build(name, *values), store.client.redis
    redis.delete(key)
    if TABLE[name].type == "string":
        redis.rpush(key, "x")
    else:
        redis.set(key, "x")
    return key


@pytest.mark.parametrize("name", FIXED)
def test_a_key_of_which_there_is_one(store, redis, name):
    """Every such key is found, with its type and the one that it should have."""
    key = overwrite(store, name)
    found = find_wrong_type(redis, store.keys)
    assert found == WrongType(key, "list" if TABLE[name].type == "string" else "string", TABLE[name].type)


@pytest.mark.parametrize("name", sorted(set(TABLE) - set(FIXED)))
def test_a_key_of_which_there_are_many(store, redis, name):
    """Every such key is found among many others."""
    open_batch(store)
    redis.mset({f"other:{at}": "x" for at in range(2000)})
    values = ["w:1" if hole == "scope" else "7" if hole == "part" else "v" for hole in TABLE[name].holes]
    key = overwrite(store, name, *values)
    found = find_wrong_type(redis, store.keys)
    assert found is not None
    assert (found.key, found.wanted) == (key, TABLE[name].type)


def test_sound_keys(store, redis):
    """In a namespace that is sound nothing is found, whatever other namespaces hold."""
    begin(store, open_batch(store)[0]).claim(ok=[0])
    redis.set("{other}:audit", "x")
    assert find_wrong_type(redis, store.keys) is None


def test_what_the_error_says(store):
    """`StoreRefused` names the key, its type, the one that belongs there and what to do; scripts and reads alike."""
    key = overwrite(store, "audit")
    said = f"key '{key}' is of type string, where a stream belongs: .*RENAME, DEL.*POIMEN_NAMESPACE"
    for verb in (
        lambda: store.entries.record_event("e", b"{}"),
        lambda: store.entries.after("0-0"),
        store.audit.describe_audit,
        lambda: store.pauses.pause_scope("w:w", reason="", actor="me"),
        lambda: open_batch(store),
    ):
        with pytest.raises(StoreRefused, match=said):
            verb()


def test_a_key_of_a_batch(store):
    """The same for a key of a batch, which is found by looking through the namespace."""
    open_batch(store)
    key = overwrite(store, "record", "b")
    with pytest.raises(StoreRefused, match=f"key '{key}' is of type string, where a hash belongs"):
        store.scripts.seal_batch("b")
    with pytest.raises(StoreRefused, match=f"key '{key}' is of type string, where a hash belongs"):
        store.reads.status("b")


@pytest.mark.parametrize("name", ["audit", "audit_meta"])
def test_nothing_changes_without_its_entry(store, name):
    """Where the audit entry cannot be written, the change is not made either: the server undoes nothing."""
    (ticket, *_) = open_batch(store, count=9)
    lane = begin(store, ticket)
    overwrite(store, name)
    before = lanes.snapshot(store)
    for verb in (
        lambda: lane.claim(ok=list(lane.holds)),
        lambda: store.pauses.pause_scope("b:b", reason="", actor="me"),
        lambda: store.scripts.cancel_batch("b", reason="", actor="me", terminate=False),
        lambda: store.scripts.set_concurrency("b", 3, actor="me"),
        lambda: open_batch(store, "new"),
    ):
        with pytest.raises(StoreRefused, match="is of type string"):
            verb()
    assert lanes.snapshot(store) == before


#: What a person asks for, by name; and the keys that all of it may touch, with what fills their holes.
ASKED = {
    "pause": lambda store: store.pauses.pause_scope("b:b", reason="", actor="me"),
    "resume": lambda store: store.pauses.resume_scope("b:b", reason="", actor="me"),
    "cancel": lambda store: store.scripts.cancel_batch("b", reason="", actor="me", terminate=False),
    "concurrency": lambda store: store.scripts.set_concurrency("b", 3, actor="me"),
    "open": lambda store: open_batch(store, "new"),
    "update": lambda store: lanes.update(store, "T2"),
    "remove": lambda store: store.trackers.tracker_remove("v", "T1", who=Who("me")),
    "clear": lambda store: store.trackers.tracker_clear("v", who=Who("me")),
    "drain": lambda store: store.scripts.drain_workers(["w1"], actor="me", reason=""),
}
HOLES = {"batch": "b", "part": "0", "scope": "b:b", "workflow": "w"}
IN_PARTS = {"fresh", "back"}


@pytest.mark.parametrize("verb", ASKED)
def test_what_people_ask_for_is_done_or_not(store, redis, verb):
    """A pause, a resume, a cancellation and the like are done, or refused with nothing changed, whichever key it is."""
    refused = 0
    for name, key in TABLE.items():
        if name == "owner" or name in IN_PARTS:
            continue
        redis.delete(store.keys.build("layout"), *redis.scan_iter(match=f"{store.keys.root}*"))
        lanes.offer(store, 8)
        begin(store, open_batch(store, count=9)[0])
        lanes.update(store, "T1")
        if verb == "resume":
            ASKED["pause"](store)
        overwrite(store, name, *(HOLES.get(hole, "v") for hole in key.holes))
        before = lanes.snapshot(store)
        try:
            ASKED[verb](store)
        except StoreRefused:
            assert lanes.snapshot(store) == before, name
            refused += 1
    assert refused > 2


def test_rights_to_name_no_type(store, redis, settings: Settings):
    """A user who may not ask for the type is told the key all the same."""
    key = overwrite(store, "audit")
    redis.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-type", "-scan")
    url = str(settings.redis_url).replace("redis://", "redis://narrow:pw@")
    narrow = Store(settings, url)
    try:
        with pytest.raises(StoreRefused, match=f"key '{key}' is of another type, where a stream belongs"):
            narrow.audit.describe_audit()
    finally:
        narrow.client.close()
        redis.execute_command("ACL", "DELUSER", "narrow")


def test_the_doctor(store):
    """Doctor and health tell of it as an error, and go on with what does not need the key."""
    key = overwrite(store, "audit")
    for found in (list(examine(store, {})), list(glance(store))):
        (bad,) = [one for one in found if f"key '{key}' is of type string" in one.message]
        assert bad.level is Level.ERROR
    assert "celery" in {one.check for one in examine(store, {})}
