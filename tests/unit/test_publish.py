"""The limits that a lane's message carries."""

from __future__ import annotations

from poimen_tasks.dispatch.publish import LANE_LIFE, _lane_limit
from poimen_tasks.store.values import Part


def part(queue: str, limit: float | None) -> Part:
    """A partition on a queue with a hard limit."""
    return Part(queue, "", queue, None, "shop.work", None, limit, None, 3)


def test_the_backstop_is_above_every_item_that_the_lane_may_claim() -> None:
    """Celery's own limit must not strike an item that has a longer one, or none (protocol 3)."""
    assert _lane_limit("a", [part("a", 1.0), part("a", 60.0), part("b", 900.0)]) > 60 + LANE_LIFE
    assert _lane_limit("a", [part("a", 1.0), part("a", 60.0), part("b", 900.0)]) < 900
    assert _lane_limit("a", [part("a", 1.0), part("a", None)]) > 86400 * 365
