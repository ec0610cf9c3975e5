"""`renew_leases`: a worker's parent speaks for its lanes."""

from __future__ import annotations

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def _key(lane):
    return lane.ticket[:3]


def test_renews(store):
    """A live lane's lease ends later, by the server's clock (protocol 4, protocol 5)."""
    lane = begin(store, open_batch(store)[0], lease=1.0)
    assert store.scripts.renew_leases([_key(lane)], lease=500.0) == ["ok"]
    ((*_, until),) = store.reads.leases()
    assert until > store.reads.now() + 400


def test_answers_beside_the_request(store):
    """Each lane gets its own answer: running, cancelled, to be killed, gone (protocol 5)."""
    held = [begin(store, open_batch(store, batch, 5)[0]) for batch in "abcd"]
    store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)
    store.scripts.cancel_batch("c", reason="", actor="me", terminate=True)
    lanes.reap(store, held[3])
    keys = [*map(_key, held), ("nobody", 0, 1), ("a", 0, 99)]
    assert store.scripts.renew_leases(keys, lease=5.0) == ["ok", "cancel", "kill", "gone", "gone", "gone"]


def test_a_pause_that_terminates(store):
    """A lane is to be ended when a pause with `terminate` covers it, a moment after its items were asked to stop."""
    held = [begin(store, open_batch(store, batch, 5, parts=[lanes.part("q", f"acts.{batch}")])[0]) for batch in "ab"]

    def answers():
        return store.scripts.renew_leases([*map(_key, held)], lease=5.0)

    def pause(terminate, grace):
        store.pauses.pause_scope("a:acts.b", reason="", actor="me", grace=grace, terminate=terminate)

    pause(False, 0.0)
    assert answers() == ["ok", "ok"]
    pause(True, 60.0)
    assert answers() == ["ok", "ok"]
    pause(True, 0.0)
    assert answers() == ["ok", "ok"]
    epoch, _stop_at, terminate = store.client.redis.hget(store.keys.build("pauses"), "a:acts.b").split(b"|")
    store.client.redis.hset(store.keys.build("pauses"), "a:acts.b", b"|".join((epoch, b"1.5", terminate)))
    assert answers() == ["ok", "stop"]
    store.pauses.resume_scope("a:acts.b", reason="", actor="me")
    assert answers() == ["ok", "ok"]


def test_no_lease_for_a_ticket(store):
    """A slot with a ticket has no lease, and gets none; its lane, whose first step is to come, is not gone."""
    (ticket,) = open_batch(store)
    other = (ticket.batch, ticket.slot, ticket.generation - 1)
    assert store.scripts.renew_leases([ticket[:3], other], lease=5.0) == ["early", "gone"]
    assert store.reads.leases() == []


def test_renewing_is_not_audited(store):
    """A renewal is no change of state: the audit stream stays as it is (invariant I5)."""
    lane = begin(store, open_batch(store)[0])
    before = lanes.audit(store)
    for _ in range(2):
        store.scripts.renew_leases([_key(lane)], lease=5.0)
    assert lanes.audit(store) == before


def test_other_layout(store):
    """Data of another layout is refused (protocol 4)."""
    lane = begin(store, open_batch(store)[0])
    lanes.assert_layout(store, lambda: store.scripts.renew_leases([_key(lane)], lease=5.0))
