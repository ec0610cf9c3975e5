"""drain_workers: workers are asked to leave."""

from __future__ import annotations

from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.test_tick import tick


def drain(store: Store, *workers: str) -> list[str]:
    """Ask."""
    return store.scripts.drain_workers(list(workers), actor="me", reason="upgrade")


def test_it_is_heard_with_the_next_tick(store: Store) -> None:
    """A worker that is asked hears it with each tick until it has left; others do not."""
    for worker in ("w1", "w2"):
        assert tick(store, worker)[b"drain"] is False
    assert drain(store, "w1", "gone") == ["w1"]
    assert [tick(store, worker)[b"drain"] for worker in ("w1", "w2", "w1")] == [True, False, True]
    assert tick(store, "w1", leave=True)[b"drain"] is False
    assert store.client.redis.exists(store.keys.build("drains")) == 0


def test_it_is_seen(store: Store) -> None:
    """Who looks at the workers sees which are asked to leave."""
    for worker in ("w1", "w2"):
        tick(store, worker)
    drain(store, "w1")
    assert [(worker.name, worker.leaving) for worker in store.reads.workers()] == [("w1", True), ("w2", False)]


def test_one_that_comes_later_is_not_meant(store: Store) -> None:
    """A worker that starts afterwards, also under the same node name, serves."""
    tick(store, "w1/1")
    drain(store, "w1/1")
    assert tick(store, "w1/2")[b"drain"] is False


def test_it_is_audited_once(store: Store) -> None:
    """Asking twice leaves one entry, with who and why."""
    tick(store, "w1")
    drain(store, "w1")
    drain(store, "w1")
    (told,) = lanes.audit(store, "worker.draining")
    assert (told.header["worker"], told.header["a"], told.header["reason"]) == ("w1", "me", "upgrade")


def test_nobody_there(store: Store) -> None:
    """Whoever is not there is not asked, and nothing is written."""
    before = lanes.snapshot(store)
    assert drain(store, "w1") == []
    assert lanes.snapshot(store) == before


def test_more_than_one_request_takes(store: Store) -> None:
    """Any number of workers may be asked."""
    tick(store, "w1")
    assert drain(store, *(f"x{number}" for number in range(1_200)), "w1") == ["w1"]


def test_once(store: Store) -> None:
    """A request that is sent twice changes things once (protocol 4)."""
    tick(store, "w1")
    lanes.assert_once(store, lambda: drain(store, "w1"))


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    tick(store, "w1")
    lanes.assert_layout(store, lambda: drain(store, "w1"))
