"""`await_collect`: whether the message behind a batch that is a step of a canvas is to be published."""

from __future__ import annotations

from typing import Any

from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.lanes import open_batch


def ago(store: Store, seconds: float) -> None:
    """The message was published that long before now."""
    name = store.keys.record("b")
    sent: Any = store.client.redis.hget(name, "sent")
    store.client.redis.hset(name, "sent", float(sent) - seconds)


def test_it_is_published_until_it_is_collected(store: Store) -> None:
    """At once, then when it may be lost, ever more seldom; and no more when the canvas has gone on (protocol 6)."""
    open_batch(store)
    assert store.calls.await_collect("b") == ("due", False)
    waits = 5 * store.settings.ticket_overdue
    for patience in (waits, 2 * waits, 4 * waits):
        store.calls.await_collect("b", sent=True)
        assert store.calls.await_collect("b")[0] == "sent"
        ago(store, 0.9 * patience)
        assert store.calls.await_collect("b")[0] == "sent"
        ago(store, 0.2 * patience)
        assert store.calls.await_collect("b") == ("due", True)
    store.calls.settle_collect("b")
    assert store.calls.await_collect("b")[0] == "over"


def test_it_waits_ten_minutes_at_most(store: Store) -> None:
    """However often it was published, within ten minutes it is published again."""
    open_batch(store)
    store.client.redis.hset(store.keys.record("b"), "sends", 5_000)
    store.calls.await_collect("b", sent=True)
    ago(store, 599)
    assert store.calls.await_collect("b")[0] == "sent"
    ago(store, 1)
    assert store.calls.await_collect("b") == ("due", True)


def test_a_clock_that_went_back_is_not_waited_for(store: Store) -> None:
    """A time of publication that is yet to come says nothing: the message is published again."""
    open_batch(store)
    store.calls.await_collect("b", sent=True)
    ago(store, -3_600)
    assert store.calls.await_collect("b") == ("due", True)


def test_a_batch_that_is_not_kept_wants_nothing(store: Store) -> None:
    """Behind a batch that expired nothing is published, and no record of it is made."""
    assert store.calls.await_collect("b") == ("over", False)
    assert store.calls.await_collect("b", sent=True) == ("over", False)
    assert store.client.redis.exists(store.keys.record("b")) == 0


def test_not_audited(store: Store) -> None:
    """Publishing a message again is no change of state (invariant I5)."""
    open_batch(store)
    before = lanes.audit(store)
    store.calls.await_collect("b", sent=True)
    assert lanes.audit(store) == before


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    open_batch(store)
    lanes.assert_layout(store, lambda: store.calls.await_collect("b", sent=True))
