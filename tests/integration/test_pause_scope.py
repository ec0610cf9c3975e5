"""`pause_scope`: from now on nothing of a scope is claimed, and what runs is told."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def pause(store, scope="w:w", **options):
    """Pause as somebody."""
    return store.pauses.pause_scope(scope, **{"reason": "why", "actor": "me", **options})


def test_no_claim_after_it(store):
    """After it no claim in the scope succeeds, and what was claimed before is in the reply (invariant I4)."""
    lanes.offer(store, 10)
    first, second, *_ = open_batch(store, count=50, limit=3)
    held = begin(store, first, 4)
    paused = pause(store, "b:b")
    assert [(lane.batch, lane.activity) for lane in paused.running] == [("b", "acts.work")]
    assert list(lanes.expand_ranges(paused.running[0].ranges)) == list(held.holds)
    assert lanes.Lane(store, second).begin().why == "paused"
    assert held.claim(ok=list(held.holds)).why == "paused"
    assert lanes.counters(store).get("l:q", 0) == 0
