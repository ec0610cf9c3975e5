"""`tick`: a worker says that it lives; one is elected and gets the fleet's chores."""

from __future__ import annotations

import msgpack
import pytest

from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def tick(store, worker="w1", *, slots=2, period=60.0, lease=60.0, leave=False):
    return store.scripts.tick(
        worker, offers=[("q", slots)], payload=msgpack.packb({"pid": 1}), period=period, lease=lease, leave=leave
    )


def clock(store, **fields):
    """Write the clock as another moment would have left it."""
    store.client.redis.hset(store.keys.build("clock"), mapping=fields)


def test_one_leads(store):
    """The first worker is elected; another one is not while the first ticks (protocol 2)."""
    assert [tick(store, worker)[b"leader"] for worker in ("w1", "w2", "w1")] == [True, False, True]


def test_leader_that_leaves(store):
    """A leader that says goodbye makes room at once, and what it offered is gone (protocol 5)."""
    tick(store, "w1")
    tick(store, "w2")
    assert tick(store, "w1", leave=True)[b"leader"] is False
    assert tick(store, "w2")[b"leader"] is True
    assert [worker.name for worker in store.reads.workers()] == ["w2"]
    assert store.client.redis.hgetall(store.keys.build("capacity")) == {b"q": b"2"}


def test_leader_that_is_gone(store, eventually):
    """A leader that is silent for three periods is replaced (fault B13)."""
    tick(store, "w1", period=0.01)
    eventually(lambda: tick(store, "w2", period=0.01)[b"leader"])


def test_capacity(store):
    """The slots that live workers offer are summed by queue, for tickets and for `unserved_queues`."""
    open_batch(store)
    assert store.reads.status("b").unserved_queues == ("q",)
    tick(store, "w2", slots=3)
    tick(store, "w1", slots=2)
    tick(store, "w2", slots=3)
    assert store.client.redis.hgetall(store.keys.build("capacity")) == {b"q": b"5"}
    assert store.reads.status("b").unserved_queues == ()


def test_lost_worker(store):
    """A worker that is silent is forgotten, with an audit entry (fault B13)."""
    tick(store, "w1", period=0.01)
    entry = {"t": store.reads.now() - 60, "q": [["q", 9]], "d": msgpack.packb({})}
    store.client.redis.hset(store.keys.build("workers"), "old", msgpack.packb(entry, use_bin_type=False))
    tick(store, "w1", period=0.01)
    assert [worker.name for worker in store.reads.workers()] == ["w1"]
    assert [told.header["worker"] for told in lanes.audit(store, "worker.lost")] == ["old"]


def test_worker_comes_back(store):
    """A worker that was forgotten is known again with its next tick (fault B13)."""
    tick(store, "w1")
    store.client.redis.delete(store.keys.build("workers"))
    tick(store, "w1")
    assert [(worker.name, worker.offers, worker.details) for worker in store.reads.workers()] == [
        ("w1", (("q", 2),), {"pid": 1})
    ]


def test_chores(store, eventually):
    """The leader is told overdue lanes and tickets, due and hungry batches (protocol 2)."""
    begin(store, open_batch(store, "a", 9)[0], lease=0.01)
    open_batch(store, "c", 1, delayed={0: 1.0})
    open_batch(store, "d", 9)
    store.client.redis.zadd(store.keys.build("tickets"), {"d\t0": 1.0})
    chores = eventually(lambda: (found := tick(store))[b"overdue"] and found)
    assert chores[b"overdue"] == [b"a\t0\t1"]
    assert chores[b"due"] == [b"c"]
    assert chores[b"tickets"] == [b"d\t0"]
    assert set(chores[b"hungry"]) == {b"a", b"d"}


@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_outage_kills_nobody(store, eventually, shift):
    """After a gap without ticks, or a clock that went back, nothing is reaped for a lease (protocol 5, fault D01)."""
    tick(store)
    lane = begin(store, open_batch(store, count=9)[0], lease=0.01)
    clock(store, tick=store.reads.now() + shift)
    chores = eventually(lambda: store.reads.leases()[0][3] < store.reads.now() and tick(store, lease=0.5, period=0.05))
    assert (chores[b"held"], chores[b"overdue"]) == (True, [])
    assert len(lanes.audit(store, "keeper.gap")) == 1
    clock(store, held=store.reads.now() - 1)
    assert tick(store, period=60.0)[b"overdue"] == [b"b\t0\t%d" % lane.ticket.generation]


def test_leases_of_a_clock_that_went_back(store):
    """A lease that ends later than any can is cut to one lease from now (protocol 5)."""
    begin(store, open_batch(store)[0], lease=5000.0)
    tick(store, lease=60.0)
    assert store.reads.leases()[0][3] < store.reads.now() + 61


def test_expired_batches_leave_the_lists(store):
    """A batch whose keys have expired is not listed any more (protocol 6)."""
    lanes.run_all(store, open_batch(store, count=1))
    assert (store.reads.batches(), store.reads.batches(workflow="w")) == (["b"], ["b"])
    store.client.redis.zadd(store.keys.build("expiring"), {"b\tw": 1.0})
    tick(store)
    assert (store.reads.batches(), store.reads.batches(workflow="w")) == ([], [])
    assert store.client.redis.exists(store.keys.build("expiring"), store.keys.build("workflow", "w")) == 0


def test_twice(store):
    """A tick that is sent twice is the same as one: who leads and what is audited do not change (protocol 4)."""
    open_batch(store)
    with lanes.listening(store) as calls:
        tick(store)
    before = lanes.audit(store)
    assert calls[0].again(store)[b"leader"] is True
    assert lanes.audit(store) == before
    assert store.client.redis.hgetall(store.keys.build("capacity")) == {b"q": b"2"}


def test_other_layout(store):
    """A worker does not tick on data of another layout (protocol 4)."""
    lanes.assert_layout(store, lambda: tick(store))


def test_a_worker_that_joins_hurries_lost_tickets(store):
    """Tickets that are looked for ever more seldom are looked for soon when a worker of their queue joins."""
    open_batch(store, limit=1)
    open_batch(store, "elsewhere", limit=1, parts=[lanes.part("other")])
    for batch in ("b", "elsewhere"):
        for _ in range(4):
            store.scripts.reissue_ticket(batch, 0, reissue=True)
    key = store.keys.build("tickets")

    def wait(batch):
        return store.client.redis.zscore(key, f"{batch}\t0") - store.reads.now()

    assert wait("b") > 20
    tick(store, "w1")
    assert wait("b") <= store.client.settings.ticket_overdue + 1  # this process only carries the server's clock on
    assert wait("elsewhere") > 20
    store.scripts.reissue_ticket("b", 0, reissue=True)
    assert lanes.audit(store, "ticket.reissued", batch="b")[-1].header["tries"] == 1
    before = wait("b")
    tick(store, "w1")
    assert wait("b") == pytest.approx(before, abs=1)


def test_pauses_that_expired(store):
    """The leader hears of a pause whose time is over, with its epoch; a newer one is not resumed for it."""
    store.pauses.pause_scope("w:w", reason="", actor="me", expires=60.0)
    assert lanes.offer(store, 1)[b"expired"] == []
    store.client.redis.zadd(store.keys.build("pause_due"), {"w:w": 1.0, "w:gone": 1.0})
    assert lanes.offer(store, 1)[b"expired"] == [[b"w:w", 1]]
    assert store.client.redis.zcard(store.keys.build("pause_due")) == 1


def test_states_are_forgotten(store):
    """A resumed scope leaves the index when its state has expired."""
    store.pauses.pause_scope("w:w", reason="", actor="me")
    store.pauses.resume_scope("w:w", reason="", actor="me")
    store.client.redis.zadd(store.keys.build("pause_index"), {"w:w": 1.0})
    lanes.offer(store, 1)
    assert store.pause_reads.totals().total == 0
