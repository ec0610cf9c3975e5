"""`reset_scope`: forget that a scope was ever paused."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import InvalidArgument
from tests.integration import lanes
from tests.integration.test_pause_scope import pause
from tests.integration.test_resume_scope import resume


def test_forgets(store):
    """State, signals, index and ramp are gone (promise P10)."""
    pause(store)
    resume(store, rate=1.0)
    assert store.pauses.reset_scope("w:w", actor="me") is True
    assert store.pause_reads.state("w:w") is None
    left = {key for key in lanes.snapshot(store) if b"}:p:" in key}
    assert left == {store.keys.build("pause_meta").encode()}
    assert store.pauses.reset_scope("w:w", actor="me") is False


def test_paused(store):
    """What is paused is not forgotten."""
    pause(store)
    before = lanes.snapshot(store)
    with pytest.raises(InvalidArgument, match="resume it first"):
        store.pauses.reset_scope("w:w", actor="me")
    assert lanes.snapshot(store) == before


def test_audit(store):
    """Forgetting something has an entry, forgetting nothing has none (invariant I5)."""
    pause(store)
    resume(store)
    for _ in range(2):
        store.pauses.reset_scope("w:w", actor="me")
    (told,) = lanes.audit(store, "scope.reset")
    assert (told.header["scope"], told.header["a"]) == ("w:w", "me")


def test_once(store):
    """The same request twice forgets once; a lower sequence is refused (protocol 4)."""
    pause(store)
    resume(store)
    lanes.assert_once(store, lambda: store.pauses.reset_scope("w:w", actor="me"))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    pause(store)
    lanes.assert_layout(store, lambda: store.pauses.reset_scope("w:w", actor="me"))
