"""The backlog: too many entries for the registered sealer refuse new work, then stop claims, and never an outcome."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poimen_tasks.errors import AuditBacklog
from poimen_tasks.model import BatchState
from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch
from tests.integration.sealers import Sealer, add, ids


@pytest.fixture
def store(settings, redis_client) -> Iterator[Store]:
    """Few entries are many: 20 refuse a dispatch, 40 stop claims."""
    limits = {"audit_backlog": 20, "audit_backlog_hard": 40, "audit_unsealed_limit": 50}
    made = Store(settings.model_copy(update=limits), str(settings.redis_url))
    yield made
    made.client.close()


def catch_up(sealer: Sealer) -> None:
    sealer.publish(sealer.read())


def test_dispatch_is_refused(store):
    """Over the soft limit a new batch is refused before anything is written, and the way out is said (protocol 10)."""
    sealer = Sealer(store)
    add(store, 20)
    open_batch(store, "fits")
    before = lanes.snapshot(store)
    with pytest.raises(AuditBacklog, match=r"23 audit entries wait .*`poimen audit seal`"):
        open_batch(store, "refused")
    assert lanes.snapshot(store) == before
    catch_up(sealer)
    assert open_batch(store, "again")


def test_a_batch_that_is_known_goes_on(store):
    """A dispatch that began is not stopped half way: an open batch is described, and takes its slices."""
    Sealer(store)
    open_batch(store, count=1, seal=False)
    add(store, 30)
    assert open_batch(store, count=1, seal=False) is not None
    lanes.append(store, 1, 3)
    assert store.reads.status("b").total == 4


def test_claims_stop_and_go_on(store):
    """Over the hard limit a lane gets no more items and leaves, outcomes are recorded; later it goes on by itself."""
    sealer = Sealer(store)
    (ticket, *_) = open_batch(store, count=10)
    lane = begin(store, ticket, 2)
    add(store, 60)
    reply = lane.claim(2, ok=list(lane.holds))
    assert (reply.why, reply.positions) == ("backlog", [])
    assert reply.tickets == [], "a new lane would leave at once"
    status = store.reads.status("b")
    assert (status.succeeded, status.pending, status.running) == (2, 8, 0)
    assert lanes.counters(store) == {}
    assert store.scripts.promote_batch("b") == []
    assert lanes.offer(store, 1)[b"hungry"] == [b"b"], "the keeper asks again"
    catch_up(sealer)
    assert lanes.holds_together(store)
    lanes.run_all(store, store.scripts.promote_batch("b"))
    assert store.reads.status("b").state is BatchState.COMPLETED


def test_a_ticket_that_was_out(store):
    """A lane that begins meanwhile leaves with nothing, and its slot is idle again."""
    Sealer(store)
    (ticket, *_) = open_batch(store, count=3)
    add(store, 60)
    assert lanes.Lane(store, ticket).begin().why == "backlog"
    assert lanes.counters(store) == {}
    assert lanes.holds_together(store)


def test_finish_never_stops(store):
    """A lane's report without a claim is taken whatever waits (promise A10)."""
    Sealer(store)
    (ticket, *_) = open_batch(store, count=1)
    lane = begin(store, ticket)
    add(store, 60)
    lane.finish(ok=list(lane.holds))
    assert store.reads.status("b").state is BatchState.COMPLETED


def test_without_a_sealer_there_is_none(store):
    """While no sealer is registered the stream is bounded instead, and nothing is refused."""
    for number in range(60):
        open_batch(store, f"b{number}", count=1)
    assert 50 <= len(ids(store)) <= 100
    assert store.audit.describe_audit().dropped == 180 - len(ids(store))


def test_unregistered_it_is_bounded_again(store):
    """When the sealer is gone for good, the stream is bounded at the next entry, and work goes on.

    Until then nothing leaves the stream that was not sealed, four times over the bound (fault H01).
    """
    Sealer(store)
    add(store, 200)
    store.pauses.pause_scope("w:w", reason="", actor="me")
    assert store.audit.describe_audit().length == 201
    store.audit.leave_sealer("one")
    with pytest.raises(AuditBacklog):
        open_batch(store)
    store.audit.leave_sealer("", forget=True)
    open_batch(store, count=1)
    assert len(ids(store)) <= 53
    state = store.audit.describe_audit()
    assert state.dropped + state.length == state.added
