"""`cache_invalidate`: hidden at once, whatever the number."""

from __future__ import annotations

import pytest

from tests.integration import lanes
from tests.integration.lanes import assert_layout, assert_once, cache_counts, digest, entry, look


@pytest.mark.parametrize("scope", ["*", "a:acts.work", "t:T1", "m:gpt", "g:red"])
def test_a_scope_is_hidden_and_the_rest_stays(store, cache, scope):
    """All, an activity, a task, a model or a tag; what has another label is served on (promise C7)."""
    cache.cache_put([entry("a", task="T1", model="gpt", tags=("red", "blue"))])
    cache.cache_put([entry("b", activity="acts.other", task="T2", model="other", tags=("green",))])
    assert cache.cache_invalidate(scopes=[scope], actor="me", reason="old") == (2 if scope == "*" else 1)
    assert look(store, "a", "b") == [None, None if scope == "*" else b"\x01"]
    (told,) = lanes.audit(store, "cache.cleared" if scope == "*" else "cache.invalidated")
    assert (told.header["a"], told.header["reason"], told.header["hidden"]) == ("me", "old", 2 if scope == "*" else 1)


def test_keys(store, cache):
    """Single keys are removed at once."""
    cache.cache_put([entry("a"), entry("b")])
    assert cache.cache_invalidate(keys=[digest("a"), digest("none")]) == 1
    assert look(store, "a", "b") == [None, b"\x01"]
    assert cache_counts(store)["invalidated"] == 1


def test_put_again_is_served(store, cache):
    """What is put after an invalidation is served, also while the old is being removed (promise C7)."""
    cache.cache_put([entry(n) for n in range(600)])
    request = {"scopes": ["a:acts.work"], "keys": [], "actor": "me", "reason": ""}
    store.client.call("cache_invalidate", request, owner="one", sequence=1)
    assert look(store, 1) == [None]
    cache.cache_put([entry(1, b"new")])
    while cache.cache_sweep():
        assert look(store, 1) == [b"new"]
    assert look(store, 1, 2) == [b"new", None]
    assert cache_counts(store)["size"] == 1


def test_once(store, cache):
    """Sent twice it invalidates once (protocol 4)."""
    cache.cache_put([entry("a")])
    assert_once(store, lambda: cache.cache_invalidate(keys=[digest("a")]))


def test_layout(store, cache):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: cache.cache_invalidate(scopes=["*"]))
