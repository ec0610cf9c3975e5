"""`ask_item`: a running body asks whether it is to stop."""

from __future__ import annotations

import pytest

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch
from tests.integration.test_pause_scope import SCOPES, pause
from tests.integration.test_resume_scope import resume


def ask(store, lane, position=0, *, want=False):
    """As a body in that lane."""
    return store.pauses.ask_item(lane.ticket.batch, position, token=lane.token, want=want)


@pytest.mark.parametrize("scope", SCOPES)
def test_stop(store, scope):
    """It is to stop when a scope that covers it is paused and the grace is over, not before."""
    lane = begin(store, open_batch(store)[0])
    assert ask(store, lane) == (False, False, False, True, None)
    pause(store, scope)
    assert ask(store, lane).stop is False
    pause(store, scope, grace=60.0)
    assert ask(store, lane).stop is False
    pause(store, scope, grace=0.0)
    assert ask(store, lane).stop is True
    resume(store, scope)
    assert ask(store, lane).stop is False


def test_cancelled_and_revoked(store):
    """It is told of a cancelled batch, and of being revoked alone."""
    lane = begin(store, open_batch(store)[0])
    store.scripts.cancel_items("b", [0], reason="", actor="me")
    assert ask(store, lane)[:2] == (False, True)
    store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)
    assert ask(store, lane)[:2] == (True, True)


def test_not_mine(store):
    """A lane that lost the item is told so, and not to stop."""
    lane = begin(store, open_batch(store)[0])
    pause(store, grace=0.0)
    lanes.reap(store, lane)
    assert ask(store, lane)[2:4] == (False, False)
    assert store.pauses.ask_item("gone", 0, token="t", want=True) == (False, False, False, False, None)


def test_changes_nothing(store):
    """It is a look."""
    lane = begin(store, open_batch(store)[0])
    before = lanes.snapshot(store)
    ask(store, lane, want=True)
    assert lanes.snapshot(store) == before


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lane = begin(store, open_batch(store)[0])
    lanes.assert_layout(store, lambda: ask(store, lane))
