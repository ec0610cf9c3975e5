"""`seal_batch`: no more items will come."""

from __future__ import annotations

from poimen_tasks.model import BatchState
from tests.integration import lanes
from tests.integration.lanes import open_batch


def test_seal_while_items_run(store):
    """A sealed batch ends with its last outcome, not before (protocol 1)."""
    tickets = open_batch(store, count=2, seal=False)
    assert store.scripts.seal_batch("b") == (False, [])
    assert lanes.ends(store) == []
    lanes.run_all(store, tickets)
    assert store.reads.status("b").state is BatchState.COMPLETED
    assert len(lanes.ends(store)) == 1


def test_seal_when_all_is_done(store):
    """Sealing a batch whose items are all done ends it, and opens its callbacks once (protocol 1, fault A22)."""
    lanes.run_all(store, open_batch(store, count=2, seal=False, callbacks=["success", "complete"]))
    sealed = store.scripts.seal_batch("b")
    assert sealed.over
    assert sorted(ticket.batch for ticket in sealed.tickets) == ["b@complete.0", "b@success.0"]
    assert len(lanes.ends(store)) == 1


def test_seal_without_items(store):
    """A batch that never got an item ends when it is sealed (fault A09)."""
    open_batch(store, count=0, seal=False)
    assert store.scripts.seal_batch("b").over
    assert store.reads.status("b").state is BatchState.COMPLETED
    assert lanes.holds_together(store)


def test_seal_with_failures(store):
    """A batch is failed when not every item succeeded."""
    lanes.run_all(store, open_batch(store, count=2, seal=False), status="failed")
    store.scripts.seal_batch("b")
    assert store.reads.status("b").state is BatchState.FAILED


def test_sealing_twice(store):
    """A second seal by anybody changes nothing."""
    open_batch(store, count=0, seal=False, callbacks=["success"])
    store.scripts.seal_batch("b")
    before = lanes.snapshot(store)
    assert store.scripts.seal_batch("b") == (True, [])
    assert lanes.snapshot(store) == before


def test_audit(store):
    """The seal is audited with the total (invariant I5)."""
    open_batch(store, count=3, seal=False)
    store.scripts.seal_batch("b")
    (told,) = lanes.audit(store, "batch.sealed")
    assert told.header["total"] == 3


def test_once(store):
    """The same seal twice ends the batch once; a lower sequence is refused (protocol 4)."""
    open_batch(store, count=0, seal=False, callbacks=["success"])
    lanes.assert_once(store, lambda: store.scripts.seal_batch("b"))


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    open_batch(store, seal=False)
    lanes.assert_layout(store, lambda: store.scripts.seal_batch("b"))


def test_unknown_batch(store):
    """A batch that is not known is named."""
    lanes.assert_unknown(store, lambda: store.scripts.seal_batch("b"))
