"""`resume_scope`: a scope is paused no more, and what it held back goes on."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import NotPaused, StaleEpoch
from tests.integration import lanes
from tests.integration.lanes import open_batch
from tests.integration.test_pause_scope import pause


def resume(store, scope="w:w", **options):
    """Resume as somebody."""
    return store.pauses.resume_scope(scope, **{"reason": "why", "actor": "me", **options})


def test_held_batch_gets_its_tickets(store):
    """A batch that was dispatched into a pause gets its tickets with the resume."""
    lanes.offer(store, 10)
    pause(store, "b:b")
    assert open_batch(store, count=50, limit=3) == []
    reply = resume(store, "b:b")
    assert (len(reply.tickets), reply.left) == (3, False)
    lanes.run_all(store, reply.tickets)
    assert lanes.field_of(store, "ok") == 50


def test_not_paused(store):
    """What is not paused cannot be resumed, and an older epoch resumes nothing."""
    with pytest.raises(NotPaused, match="w:w"):
        resume(store)
    first = pause(store)
    pause(store)
    with pytest.raises(StaleEpoch, match="w:w"):
        resume(store, epoch=first.epoch)
