"""Entries about items carry the items' own ids and task ids, where the batch has any."""

from __future__ import annotations

import pytest

from poimen_tasks.audit.expand import expand_entry
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch

IDS = [f"page-{at}" for at in range(6)]
TASKS = ["T1", "", "T3", "T4", "", "T6"]


def tasks(store, kind):
    """Task and item of each event of this type, as a log tells them."""
    events = [event for entry in store.entries.after("0-0") for event in expand_entry("e" * 40, entry.id, entry.fields)]
    return [(event["task_id"], event["metadata"].get("item_id")) for event in events if event["event_type"] == kind]


@pytest.fixture
def named(store):
    """Opens a batch of six items with ids and task ids; returns its tickets."""
    return open_batch(store, count=6, ids=IDS, labels=TASKS)


def test_cancelled(store, named):
    """Items that a cancellation ends are told by task id, where one has none by item id (promise A5)."""
    assert named
    store.scripts.cancel_batch("b", reason="no", actor="me", terminate=False)
    assert tasks(store, "item.cancelled") == [
        ("T1", "page-0"), ("page-1", None), ("T3", "page-2"), ("T4", "page-3"), ("page-4", None), ("T6", "page-5"),
    ]  # fmt: skip


def test_revoked(store, named):
    """A revoked item is told by its task id, one that runs too."""
    lane = begin(store, named[0])
    store.scripts.cancel_items("b", [0, 2], reason="no", actor="me")
    assert tasks(store, "item.revoking") == [("T1", "page-0")]
    assert tasks(store, "item.revoked") == [("T3", "page-2")]
    assert list(lane.holds) == [0]


def test_finished_and_retried(store, named):
    """The entry of a lane's report has the task ids; its payload has the ids."""
    lane = begin(store, named[0], 3)
    assert list(lane.holds)[:2] == [0, 1]
    lane.finish("stay", ok=[0], retry={1: 5.0})
    (told,) = lanes.audit(store, "item.finished")
    assert told.header["t"] == [b"T1"]
    assert tasks(store, "item.retried") == [("page-1", None)]


def test_lost(store, named):
    """What a lost lane held is named in its entry, and an item that was given up is told by its task id."""
    lane = begin(store, named[0])
    lanes.reap(store, lane, "timeout")
    assert tasks(store, "item.lost") == [("T1", "page-0")]
    (lost,) = lanes.audit(store, "lane.lost")
    assert (lost.header["i"], lost.header["t"]) == ([b"page-0"], [b"T1"])


def test_plain_batch(store):
    """A batch without ids and task ids has neither in its entries, and no key for them."""
    open_batch(store, count=3)
    store.scripts.cancel_batch("b", reason="no", actor="me", terminate=False)
    (told,) = lanes.audit(store, "item.cancelled")
    assert set(told.header) == {"b", "w", "s", "a", "r", "reason"}
    assert not store.client.redis.exists(store.keys.build("labels", "b"))


@pytest.mark.parametrize("ids", [None, IDS])
def test_task_ids_alone(store, ids):
    """Task ids do not make ids: positions stay the items' ids where none were given."""
    open_batch(store, count=6, ids=ids, labels=TASKS)
    assert store.reads.position_of("b", "page-3" if ids else "3") == 3
    store.scripts.cancel_batch("b", reason="no", actor="me", terminate=False)
    assert tasks(store, "item.cancelled")[1] == ("page-1" if ids else "1", None)


def test_cached(store):
    """Items that are served from the cache are told by task id too."""
    store.cache.cache_put([lanes.entry("x")])
    tickets = open_batch(store, count=2, parts=[lanes.part(cached=True)], keys=["x", "x"], labels=["T1", "T2"])
    assert lanes.Lane(store, tickets[0]).begin().why == "over"
    assert tasks(store, "item.finished") == [("T1", "0"), ("T2", "1")]
