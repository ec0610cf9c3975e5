"""restore_end: a restored batch is there, and goes on."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import SnapshotConflict
from poimen_tasks.model import BatchState
from poimen_tasks.store import Store
from tests.integration import lanes
from tests.integration.keeping import Keeping, begin, end, moved, told
from tests.integration.test_pause_scope import pause


def test_it_goes_on(store: Store) -> None:
    """A restored batch runs what had no outcome, once each, and keeps the outcomes that it had (protocol 9)."""
    lanes.offer(store, 2)
    ticket, *_ = lanes.open_batch(store, count=600, limit=2)
    lane = lanes.begin(store, ticket, 10)
    lane.finish(ok=[0, 1, 2], failed=[3], retry={4: 60.0}, give=[5, 6])
    before = told(store)
    there = moved(store)
    status = there.store.reads.status("b")
    assert (status.pending, status.delayed) == (595, 1)
    assert told(there.store) == before
    assert len(there.tickets) == 1
    lanes.run_all(there.store, there.tickets)
    statuses = lanes.statuses_of(there.store)
    assert sorted(statuses) == [position for position in range(600) if position != 4]
    assert {position: found for position, found in statuses.items() if len(found) > 1} == {}
    assert statuses[3] == ["failed"]
    assert lanes.holds_together(there.store)


def test_what_it_carried(store: Store) -> None:
    """Delays, attempts, checkpoints, ids and the order of what came back are the same afterwards."""
    ids = [f"i{number}" for number in range(6)]
    ticket, *_ = lanes.open_batch(store, count=6, ids=ids, delayed={5: 9e9}, limit=1)
    lane = lanes.begin(store, ticket, 3)
    held = list(lane.holds)
    store.pauses.save_checkpoint("b", held[0], token=lane.token, state=b"state")
    lane.finish(retry={held[0]: 600.0}, give=held[1:])
    there = moved(store)
    for name in ("attempts", "checkpoints", "ids", "names"):
        key = store.keys.build(name, "b")
        other = there.store.keys.build(name, "b")
        assert there.store.client.redis.hgetall(other) == store.client.redis.hgetall(key)
    assert there.store.client.redis.zrange(there.store.keys.build("delayed", "b"), 0, -1, withscores=True) == (
        store.client.redis.zrange(store.keys.build("delayed", "b"), 0, -1, withscores=True)
    )
    status = there.store.reads.status("b")
    assert (status.pending, status.delayed, status.running) == (4, 2, 0)
    assert lanes.holds_together(there.store)


def test_a_paused_one_stays_paused(store: Store) -> None:
    """With its pause restored in front of it, a batch gives no tickets."""
    lanes.open_batch(store, count=4)
    pause(store, "w:w")
    there = moved(store, resume=False)
    assert there.tickets == []
    assert there.store.reads.status("b").state is BatchState.PAUSED
    assert there.store.pauses.resume_scope("w:w", reason="", actor="me").tickets


def known(store: Store, scope: str) -> dict[str, str]:
    """What is known of a pause."""
    return store.snapshots.pause_states([scope])[scope]


@pytest.mark.parametrize("scope", ["w:w", "b:b"])
def test_a_pause_comes_back_as_it_was(store: Store, scope: str) -> None:
    """A restored pause has the reason, the actor, the grace, `terminate` and the expiry that it had."""
    lanes.open_batch(store, count=4)
    pause(store, scope, reason="upgrade", actor="ann", grace=5.0, terminate=True, expires=600.0)
    there = moved(store, resume=False)
    was, found = known(store, scope), known(there.store, scope)
    for name in ("state", "reason", "actor", "grace", "terminate"):
        assert found[name] == was[name]
    assert float(found["stop_at"]) == pytest.approx(float(found["updated_at"]) + 5.0)
    assert float(found["expires_at"]) == pytest.approx(float(was["expires_at"]), abs=60)


@pytest.mark.parametrize("resume", [False, True])
def test_a_pause_that_stands_here_stays(store: Store, resume: bool) -> None:
    """A pause that somebody made here meanwhile is newer than the snapshot's: a restore leaves it as it is."""
    lanes.open_batch(store, count=4)
    pause(store, "b:b", reason="old", expires=600.0)
    pause(store, "w:w", reason="old")
    here = Keeping(store)
    here.snapshots.create("w")
    there = here.elsewhere()
    for scope in ("b:b", "w:w"):
        pause(there.store, scope, reason="new", actor="bob", grace=3.0)
    before = {scope: known(there.store, scope) for scope in ("b:b", "w:w")}
    epochs = there.store.client.redis.hgetall(there.store.keys.build("pauses"))
    there.snapshots.restore("w", resume=resume)
    assert known(there.store, "b:b") == {**before["b:b"], **_kept(there.store, "b:b")}
    state = known(there.store, "w:w")
    assert (state["reason"], state["actor"], state["state"]) == ("new", "bob", "resumed" if resume else "paused")
    after = there.store.client.redis.hgetall(there.store.keys.build("pauses"))
    assert after == {scope: flag for scope, flag in epochs.items() if not resume or scope == b"b:b"}


def _kept(store: Store, scope: str) -> dict[str, str]:
    """What a pause notes of the batches that it keeps, which come with the restore."""
    return {name: value for name, value in known(store, scope).items() if name in ("kept", "held")}


def test_an_over_one_fires_nothing(store: Store) -> None:
    """A batch that was over with its callbacks stays over: none fires again, and its retention begins (protocol 9)."""
    lanes.offer(store, 4)
    tickets = lanes.open_batch(store, count=2, callbacks=["success", "complete"])
    lanes.run_all(store, tickets)
    assert lanes.field_of(store, "callbacks") == 0
    there = moved(store)
    assert there.tickets == []
    assert there.store.reads.status("b").state is BatchState.COMPLETED
    assert 0 < there.store.client.redis.ttl(there.store.keys.record("b")) <= 60
    assert told(there.store) == told(store)


def test_a_callback_that_had_not_run(store: Store) -> None:
    """A callback that waited at the cut runs once after the restore."""
    lanes.offer(store, 4)
    (ticket,) = lanes.open_batch(store, count=1, callbacks=["success"])
    lane = lanes.begin(store, ticket)
    lane.claim(0, ok=[0])
    there = moved(store)
    (one,) = there.tickets
    assert one.batch == "b@success.0"
    lanes.run_all(there.store, there.tickets)
    assert lanes.field_of(there.store, "callbacks") == 0
    assert len(lanes.outcomes(there.store, "b@success.0")) == 1


def test_a_cancelled_one_ends(store: Store) -> None:
    """What was being cancelled at the cut gets its outcomes, and nothing of it runs."""
    ticket, *_ = lanes.open_batch(store, count=1200, limit=1)
    lane = lanes.begin(store, ticket)
    store.scripts.cancel_batch("b", reason="no", actor="me", terminate=False)
    assert lane.holds
    there = moved(store)
    assert lanes.run_all(there.store, there.tickets) == [] or there.tickets == []
    status = there.store.reads.status("b")
    assert (status.state, status.cancelled) == (BatchState.CANCELLED, 1200)


def test_older_tickets_are_void(store: Store) -> None:
    """A ticket from before, left in a broker that was not replaced, is refused by the restored batch (protocol 2)."""
    old, *_ = lanes.open_batch(store, count=4)
    there = moved(store)
    reply = lanes.Lane(there.store, old).begin()
    assert reply.state == "end"
    assert {ticket.generation for ticket in there.tickets} != {old.generation}


def test_it_is_audited(store: Store) -> None:
    """Each batch tells that it was restored, by whom and from what, with its counts (invariant I5)."""
    lanes.open_batch(store, count=4)
    there = moved(store, actor="me", reason="moved")
    (told_,) = lanes.audit(there.store, "batch.restored")
    assert (told_.header["b"], told_.header["a"], told_.header["reason"]) == ("b", "me", "moved")
    assert (told_.header["total"], told_.header["pending"]) == (4, 4)


def test_twice_is_told(store: Store) -> None:
    """Ended twice, by one that goes on where another broke off, nothing changes."""
    begin(store)
    end(store)
    before = {key: value for key, value in lanes.snapshot(store).items() if b"s:r:" not in key}
    assert end(store).already is True
    assert {key: value for key, value in lanes.snapshot(store).items() if b"s:r:" not in key} == before


def test_only_who_began(store: Store) -> None:
    """Another restorer ends nothing."""
    begin(store, holder="one")
    before = lanes.snapshot(store)
    with pytest.raises(SnapshotConflict, match="somebody else"):
        end(store, holder="two")
    assert lanes.snapshot(store) == before


def test_once(store: Store) -> None:
    """A request that is sent twice changes things once (protocol 4)."""
    begin(store)
    lanes.assert_once(store, lambda: end(store))


def test_other_layout(store: Store) -> None:
    """Data of another layout is refused (protocol 4)."""
    begin(store)
    lanes.assert_layout(store, lambda: end(store))
