"""What the keeper makes of a revoke that its worker heard: the store's calls, and what is kept for later."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import StoreUnavailable
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.server import EmbeddedServer
from poimen_tasks.worker.revoking import ACTOR, Revocations
from tests.integration import lanes
from tests.integration.lanes import open_batch


def asked(store, *items, signal=0):
    """Revocations that were asked for these items, and what is told of them."""
    told = []
    revocations = Revocations(store, done=lambda batch, reply: told.append((batch, reply.settled)))
    revocations.ask(items, signal)
    return revocations, told


def test_many_items_of_several_batches(store):
    """Ids are grouped by batch and cut into calls of 500; what is asked for twice is done once."""
    open_batch(store, "a", 1200)
    open_batch(store, "b", 4)
    items = [("a", position) for position in range(1100)]
    revocations, told = asked(store, *items, *items[:9], ("b", 3), ("b", 3))
    assert revocations.settle()
    assert told == [("a", [0, 500]), ("a", [500, 1000]), ("a", [1000, 1100]), ("b", [3, 4])]
    assert {entry.header["a"] for entry in lanes.audit(store, "item.revoked")} == {ACTOR}
    assert not revocations.settle()


def test_unknown_batches_are_passed_over(store):
    """An id of a batch that is not known stops nothing (fault E06)."""
    open_batch(store, "b", 2)
    revocations, told = asked(store, ("aaa", 1), ("b", 0), ("zzz", 1))
    assert revocations.settle()
    assert told == [("b", [0, 1])]


def test_a_revoke_waits_for_the_store(tmp_path, namespace):
    """While the store does not answer what was asked for is kept, and done when it does (fault E06)."""
    with EmbeddedServer(tmp_path / "own") as server:
        short = Settings(redis_url=server.url, namespace=namespace, connect_timeout=0.3, socket_timeout=0.2)
        store = Store(short, server.url)
        open_batch(store, "b", 3)
        revocations, _ = asked(store, ("b", 1), ("b", 2))
        server.pause()
        try:
            with pytest.raises(StoreUnavailable):
                revocations.settle()
        finally:
            server.resume()
        assert revocations.settle()
        assert lanes.statuses_of(store) == {1: ["cancelled"], 2: ["cancelled"]}
        store.client.close()
