"""The keeper's part in lanes, against a real store."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from poimen_tasks.errors import StoreRefused
from poimen_tasks.worker.known_lanes import KnownLanes
from poimen_tasks.worker.lane_keeping import LaneKeeper
from poimen_tasks.worker.reaping import Reaper
from tests.integration.lanes import begin, open_batch

NOBODY = SimpleNamespace(follow=lambda _: None, issue=lambda _: None, wanted=lambda: False, tell=lambda *_: None)
"""Whoever carries what follows, and hears of events."""


def test_a_lane_that_cannot_be_settled_keeps_no_other_waiting(store):
    """Where the store refuses one the others are settled meanwhile, that one when the cause is gone (fault B01)."""
    keeper = LaneKeeper(store, KnownLanes(), Reaper(store, NOBODY, NOBODY), NOBODY)
    for name in ("bad", "good"):
        ticket = begin(store, open_batch(store, name, count=2)[0]).ticket
        keeper.lost((ticket.batch, ticket.slot, ticket.generation), "paused", "gone")
    redis, key = store.client.redis, store.keys.build("running", "bad")
    redis.rename(key, "aside")
    redis.set(key, "x")
    with pytest.raises(StoreRefused):
        keeper.settle_lost(timeout=0)
    keeper.settle_all_lost()
    assert [batch for batch, *_ in store.reads.leases()] == ["bad"]
    keeper.settle_all_lost()
    redis.rename("aside", key)
    keeper.again()
    keeper.settle_all_lost()
    assert store.reads.leases() == []
