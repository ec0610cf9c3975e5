"""`keep_ended`: batches that ended before the pause keep their keys, some at a time."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import open_batch
from tests.integration.test_pause_scope import held, pause
from tests.integration.test_resume_scope import resume


def _ended(store, count=50):
    """Batches that are over."""
    for number in range(count):
        open_batch(store, f"b{number}", count=0)


def test_portions(store):
    """The pause keeps the first; the keeper goes on until all stay, of a workflow and of everything."""
    _ended(store)
    for scope in ("w:w", "*"):
        pause(store, scope)
        assert lanes.offer(store, 1)[b"keeping"] == [scope.encode()]
        while store.pauses.keep_ended(scope):
            pass
        redis = store.client.redis
        assert {redis.ttl(store.keys.record(f"b{number}")) for number in range(50)} == {-1}
        assert (len(held(store, scope)), redis.zcard(store.keys.build("expiring"))) == (50, 0)
        assert not redis.exists(store.keys.build("keeping"))
        reply = resume(store, scope)
        while reply.left:
            reply = store.pauses.release_held(scope)
        assert {redis.ttl(store.keys.record(f"b{number}")) for number in range(50)} <= set(range(1, 61))
        assert redis.zcard(store.keys.build("expiring")) == 50


def test_two_scopes(store):
    """What two scopes cover is kept until both are resumed."""
    _ended(store, 1)
    pause(store, "b:b0")
    pause(store, "w:w")
    resume(store, "b:b0")
    assert store.client.redis.ttl(store.keys.record("b0")) == -1
    resume(store, "w:w")
    assert store.client.redis.ttl(store.keys.record("b0")) > 0


def test_not_paused(store):
    """A scope that was resumed meanwhile keeps nothing."""
    _ended(store)
    pause(store)
    resume(store)
    assert store.pauses.keep_ended("w:w") is False
    assert held(store) == []


def test_once(store):
    """The same request twice keeps one portion; a lower sequence is refused (protocol 4)."""
    _ended(store)
    pause(store)
    lanes.assert_once(store, lambda: store.pauses.keep_ended("w:w"))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    _ended(store, 1)
    lanes.assert_layout(store, lambda: store.pauses.keep_ended("w:w"))
