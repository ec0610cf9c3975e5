"""The doctor on a real server: what drifted is found, repaired in one step and audited; what is sound is left alone."""

from __future__ import annotations

import msgpack
import pytest
from celery import Celery

from poimen_tasks.defaults import DEFAULTS
from poimen_tasks.health import Level, Repairs, examine, glance
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.server import EmbeddedServer
from poimen_tasks.store.survey import Leftover, Survey
from tests.integration import lanes
from tests.integration.lanes import QUEUE, begin, open_batch


@pytest.fixture
def conf():
    """The settings of an app that conflict with nothing."""
    app = Celery("shop", broker="redis://127.0.0.1/0", set_as_current=False)
    app.conf.update(DEFAULTS)
    return app.conf


@pytest.fixture
def look(store, conf):
    """Examine; returns what is not in order."""

    def run(**options):
        return [one for one in examine(store, conf, **options) if one.level is not Level.OK]

    return run


@pytest.fixture
def repair(look):
    """Examine and repair as `tester`; returns what was not in order."""
    return lambda: look(repairs=Repairs(actor="tester", publish=list))


@pytest.fixture
def redis(store):
    """The server, to break things."""
    return store.client.redis


def key(store, name, *values):
    return store.keys.build(name, *values)


def slots(store, batch="b", *, repair=True):
    return store.scripts.repair_slots(batch, repair=repair, lease=60.0, actor="tester")


def fleet(store, *, repair=True, most=1000):
    return store.scripts.repair_fleet(repair=repair, most=most, actor="tester")


def busy(store):
    """A batch with a live lane that holds two items, and a ticket; returns the lane."""
    lanes.offer(store, 4)
    first, *_ = open_batch(store, count=8, limit=2)
    return begin(store, first, 2)


# ------------------------------------------------------------------------------------------- the whole
def test_nothing_stored(look):
    """An empty namespace is sound, but for the workers that nobody started."""
    assert [(one.check, one.level) for one in look()] == [("workers", Level.WARNING)]


def test_sound_at_work(store, look):
    """Open, running and finished batches of a live fleet are sound, callbacks included; looking changes nothing."""
    busy(store)
    lanes.run_all(store, open_batch(store, "done", 3))
    ended = open_batch(store, "ended", 1, callbacks=["success"])
    lanes.Lane(store, ended[0]).begin(1)
    before = lanes.snapshot(store)
    assert look() == []
    assert lanes.snapshot(store) == before


def test_server_that_does_not_answer(conf, settings):
    """Without a server there is one error about it, and the app's settings are still looked at."""
    store = Store(Settings(**{**settings.model_dump(), "connect_timeout": 0.2}), "redis://127.0.0.1:1/0")
    found = list(examine(store, conf))
    assert [(one.check, one.level) for one in found] == [
        ("server", Level.ERROR),
        ("environment", Level.OK),
        ("celery", Level.OK),
    ]
    assert "does not answer" in found[0].message


def test_evicting_server(tmp_path, conf):
    """A server that evicts is an error (fault D05), and one without a file to come back from a warning."""
    extra = {"maxmemory-policy": "allkeys-lru"}
    with EmbeddedServer(tmp_path, extra=extra, persistent=False, maxmemory="64mb") as server:
        found = {one.check: one for one in examine(Store(Settings(namespace="t"), server.url), conf)}
    assert (found["eviction"].level, "allkeys-lru" in found["eviction"].message) == (Level.ERROR, True)
    assert found["persistence"].level is Level.WARNING


def test_server_with_a_password(tmp_path, conf):
    """A server with a password is reached with it, and the checks know that strangers are turned away (fault K03)."""
    with EmbeddedServer(tmp_path, extra={"requirepass": "geheim"}) as server:
        found = {one.check: one for one in examine(Store(Settings(namespace="t"), server.url), conf)}
    assert found["access"].message == "it asks for a password"
    assert not any("geheim" in one.message + one.subject for one in found.values())


def test_server_open_to_all(tmp_path, conf):
    """A server that listens for other machines, unprotected and without a password, is an error (fault K03)."""
    extra = {"bind": "*", "protected-mode": "no"}
    with EmbeddedServer(tmp_path, extra=extra) as server:
        found = {one.check: one for one in examine(Store(Settings(namespace="t"), server.url), conf)}
    assert found["access"].level is Level.ERROR


def test_server_that_keeps_its_secrets(tmp_path, conf):
    """Where CONFIG and ACL are not permitted, as on managed servers, the other checks still run."""
    with EmbeddedServer(tmp_path) as server:
        admin = Store(Settings(namespace="t"), server.url)
        admin.client.redis.acl_setuser(
            "app", enabled=True, passwords=["+pw"], keys=["*"], channels=["*"], categories=["+@all"],
            commands=["-config", "-acl"],
        )  # fmt: skip
        found = {
            one.check: one
            for one in examine(Store(Settings(namespace="t"), server.url.replace("//", "//app:pw@")), conf)
        }
    assert found["access"].level is Level.OK
    assert found["slots"].level is Level.OK


def test_another_layout_ends_the_examination(store, redis, conf):
    """Data of another layout is reported, and nothing behind it is touched."""
    redis.set(key(store, "layout"), "999")
    found = list(examine(store, conf, repairs=Repairs(actor="tester", publish=list)))
    assert (found[-1].check, found[-1].level, "999" in found[-1].message) == ("layout", Level.ERROR, True)


# ------------------------------------------------------------------------------------------- hindrances
def test_no_worker_for_open_batches(store, look):
    """Batches that wait while no worker lives are an error with their number."""
    open_batch(store, "a")
    open_batch(store, "b")
    (found, *_) = [one for one in look() if one.check == "workers"]
    assert (found.level, "2 open batches" in found.message) == (Level.ERROR, True)


def test_a_worker_that_is_alive_and_deaf(store, redis):
    """Tickets that nobody takes for a minute while nothing runs are an error, to a glance too (fault B04)."""

    def deaf():
        return [one for one in glance(store) if one.subject == QUEUE]

    (ticket,) = open_batch(store, count=1)
    lanes.offer(store, 2)
    for _ in range(4):
        store.scripts.reissue_ticket("b", ticket.slot, reissue=False)
    assert deaf() == []
    store.scripts.reissue_ticket("b", ticket.slot, reissue=False)
    (found,) = deaf()
    assert (found.level, found.message.partition(" in")[0]) == (Level.ERROR, "1 tickets wait")
    assert found in list(examine(store, {}))
    redis.hset(key(store, "running_calls"), "id", "0")
    assert deaf() == [], "it is busy with a plain call"
    redis.delete(key(store, "running_calls"))
    begin(store, ticket)
    assert deaf() == []


def test_unserved_queue(store, look):
    """A queue that no live worker serves is named with its batch."""
    lanes.offer(store, 2, "other")
    open_batch(store)
    (found,) = look()
    assert (found.check, found.subject, found.level) == ("queues", "b", Level.WARNING)
    assert f"-Q {QUEUE}" in found.advice


def test_stalled_batch(store, redis, look):
    """A batch whose producer is gone is a warning that says how to go on."""
    lanes.offer(store, 2)
    open_batch(store, seal=False)
    redis.hset(store.keys.record("b"), "producer", 1)
    (found,) = look()
    assert (found.check, found.level, "batch_id='b'" in found.advice) == ("stalled", Level.WARNING, True)


def test_dropped_audit_entries(store, redis, look):
    """Audit entries that were dropped are reported."""
    busy(store)
    redis.hset(key(store, "audit_meta"), "dropped", 5)
    assert [one.check for one in look()] == ["audit"]


# ------------------------------------------------------------------------------------------- counters
def test_drifted_counters(store, redis, look, repair):
    """Counters that differ from the lists are an error, are repaired, and are sound afterwards (invariant I3)."""
    busy(store)
    redis.hset(store.keys.record("b"), "pending", 1)
    (found,) = look()
    assert (found.check, found.level, found.repairable, found.repaired) == ("counters", Level.ERROR, True, False)
    (found,) = repair()
    assert (found.repaired, found.is_failure) == (True, False)
    assert look() == []


def test_claimable_counts(store, redis, look, repair):
    """The counts of what lanes may claim are held against the lists too."""
    busy(store)
    redis.hset(store.keys.record("b"), "c:0", 0)
    (found,) = look()
    assert (found.check, found.message) == ("counters", "the counts of what lanes may claim differ from the lists")
    repair()
    assert look() == []


def test_lost_items(store, redis, repair):
    """Items that are nowhere are an error that cannot be repaired, and the advice says so."""
    busy(store)
    redis.delete(key(store, "fresh", "b", 0))
    (found,) = repair()
    assert (found.check, found.repairable, found.is_failure) == ("counters", False, True)
    assert "6 items are in no list" in found.message


# ------------------------------------------------------------------------------------------- repair_slots
def test_lane_without_lease(store, redis, look, repair):
    """A live slot without a lease would hold its items for ever: it gets one, which ends when nobody renews it."""
    lane = busy(store)
    member = f"b\t{lane.ticket.slot}\t{lane.ticket.generation}"
    redis.zrem(key(store, "leases"), member)
    assert "lanes without a lease: 1" in [one.message for one in look() if one.subject == "b"]
    repair()
    assert [row[:3] for row in store.reads.leases()] == [("b", lane.ticket.slot, lane.ticket.generation)]
    assert look() == []
    lanes.reap(store, lane)
    assert lanes.statuses_of(store) == {}


def test_ticket_that_nobody_looks_for(store, redis, look, repair):
    """A ticketed slot that is in no list would never be issued again: it is looked for at once."""
    busy(store)
    redis.delete(key(store, "tickets"))
    assert {one.subject for one in look()} == {"b", "fleet"}
    repair()
    assert look() == []
    assert redis.zcard(key(store, "tickets")) == 1


def test_items_of_a_lane_without_slot(store, redis, look, repair):
    """Running items whose lane has no slot get one with a lease, so that they come back when it ends."""
    lane = busy(store)
    slot = lane.ticket.slot
    redis.hdel(key(store, "slots", "b"), str(slot))
    redis.zrem(key(store, "leases"), f"b\t{slot}\t{lane.ticket.generation}")
    redis.hincrby(store.keys.record("b"), f"ql:{QUEUE}", -1)
    redis.hincrby(key(store, "queues"), f"l:{QUEUE}", -1)
    assert [one.message for one in look()] == ["lanes that hold items and have no slot: 1"]
    repair()
    assert look() == []
    ((batch, slot, generation, _),) = store.reads.leases()
    assert store.scripts.reap_lane(batch, slot, generation, why="lease")[0]
    assert store.reads.status("b").pending == 8
    assert lanes.holds_together(store)


def test_counts_of_a_batch(store, redis, look, repair):
    """A batch's counts of its tickets and lanes are held against its slots."""
    busy(store)
    redis.hset(store.keys.record("b"), mapping={f"qt:{QUEUE}": 7, f"ql:{QUEUE}": 0})
    (found,) = look()
    assert (found.subject, found.level) == ("b", Level.ERROR)
    assert found.message == f"queue {QUEUE}: counted are tickets 7 and lanes 0, there are 1 and 1"
    repair()
    assert look() == []


def test_slots_repair_is_audited(store, redis):
    """A repair of slots has its audit entry, a look and a sound batch have none (invariant I5)."""
    busy(store)
    assert slots(store)[b"good"]
    redis.hset(store.keys.record("b"), f"qt:{QUEUE}", 7)
    assert slots(store, repair=False)[b"repaired"] is False
    assert lanes.audit(store, "slots.repaired") == []
    assert slots(store)[b"repaired"] is True
    (told,) = lanes.audit(store, "slots.repaired")
    assert (told.header["a"], told.header["b"]) == ("tester", "b")


def test_slots_idempotence(store, redis):
    """A repeated repair of slots changes nothing more (protocol 4)."""
    busy(store)
    redis.delete(key(store, "tickets"))
    lanes.assert_once(store, lambda: slots(store))


def test_slots_of_unknown_batch(store):
    """An unknown batch is named."""
    lanes.assert_unknown(store, lambda: slots(store, "nobody"))


# ------------------------------------------------------------------------------------------- repair_fleet
def test_orphan_leases_and_tickets(store, redis, look, repair):
    """Leases and tickets of slots that are gone are a warning, and are removed; those in use stay."""
    busy(store)
    redis.zadd(key(store, "leases"), {"gone\t3\t7": 9e9, "b\t0\t999": 9e9})
    redis.zadd(key(store, "tickets"), {"gone\t4": 9e9})
    (found,) = look()
    assert (found.check, found.subject, found.level) == ("slots", "fleet", Level.WARNING)
    assert found.message == "leases of lanes that are gone: 2; tickets that no slot has: 1"
    repair()
    assert look() == []
    assert (redis.zcard(key(store, "leases")), redis.zcard(key(store, "tickets"))) == (1, 1)


def test_counts_of_the_fleet(store, redis, look, repair):
    """The counts by queue are held against all slots: drift would keep tickets from being issued."""
    busy(store)
    redis.hset(key(store, "queues"), mapping={f"t:{QUEUE}": 50, f"l:{QUEUE}": 0, "t:old": 3})
    (found,) = look()
    assert (found.subject, found.level) == ("fleet", Level.ERROR)
    assert f"queue {QUEUE}: counted are tickets 50 and lanes 0, there are 1 and 1" in found.message
    repair()
    assert look() == []
    assert lanes.counters(store) == {f"t:{QUEUE}": 1, f"l:{QUEUE}": 1}
    redis.hset(key(store, "queues"), f"t:{QUEUE}", "somebody's")
    assert f"queue {QUEUE}: counted are tickets -1 and lanes 1, there are 1 and 1" in look()[0].message
    repair()
    assert look() == []


def test_fleet_of_hidden_batches(store, look):
    """The slots of callbacks count: an open callback is no drift."""
    lanes.offer(store, 4)
    (ticket,) = open_batch(store, count=1, callbacks=["success"])
    lane = begin(store, ticket)
    lane.claim(ok=[0])
    assert lanes.counters(store) == {f"t:{QUEUE}": 1}
    assert look() == []


def test_fleet_repair_is_audited(store, redis):
    """A repair of the fleet's counts has its audit entry, a look has none (invariant I5)."""
    busy(store)
    redis.hset(key(store, "queues"), f"t:{QUEUE}", 50)
    assert fleet(store, repair=False)[b"good"] is False
    assert lanes.audit(store, "fleet.repaired") == []
    assert fleet(store)[b"repaired"] is True
    assert len(lanes.audit(store, "fleet.repaired")) == 1


def test_too_many_slots(store, redis):
    """More slots than one step may look at are left alone, and the reply says so."""
    busy(store)
    redis.hset(key(store, "queues"), f"t:{QUEUE}", 50)
    reply = fleet(store, most=1)
    assert (reply[b"looked"], reply[b"repaired"]) == (False, False)
    assert lanes.counters(store)[f"t:{QUEUE}"] == 50


def test_fleet_idempotence(store, redis):
    """A repeated repair of the fleet changes nothing more (protocol 4)."""
    busy(store)
    redis.zadd(key(store, "leases"), {"gone\t3\t7": 9e9})
    lanes.assert_once(store, lambda: fleet(store))


# ------------------------------------------------------------------------------------------- repair_keys
def leave_keys(store, redis, batch="dead"):
    """Keys of a batch without a record."""
    redis.hset(key(store, "items", batch), "0", "x")
    redis.rpush(key(store, "fresh", batch, 2), "0:1")
    redis.rpush(key(store, "back", batch, 11), "5")


def test_leftover_keys(store, redis, look, repair):
    """Keys of a batch whose record is gone are a warning, and are removed with all its partitions."""
    busy(store)
    leave_keys(store, redis)
    (found,) = look()
    assert (found.check, found.subject, found.level, found.repairable) == ("keys", "dead", Level.WARNING, True)
    before = {name for name in lanes.snapshot(store) if b"b:dead" not in name}
    repair()
    assert look() == []
    assert set(lanes.snapshot(store)) - {key(store, "audit").encode()} == before - {key(store, "audit").encode()}


def test_expiring_keys_are_no_leftovers(store, redis, look):
    """Keys that go away by themselves are left to it."""
    busy(store)
    leave_keys(store, redis)
    for name in redis.scan_iter(match="*b:dead*"):
        redis.expire(name, 600)
    assert look() == []


def test_listed_without_record(store, redis, look, repair):
    """A batch or a callback that is listed and has no record is a warning, and leaves the lists."""
    busy(store)
    redis.zadd(key(store, "batches"), {"expired": 1.0})
    redis.zadd(key(store, "open"), {"expired@success.0": -1.0})
    assert [(one.check, one.subject) for one in look()] == [("keys", "2 batches")]
    repair()
    assert look() == []
    assert (store.reads.batches(), lanes.listed(store)) == (["b"], ["b"])


def test_a_batch_that_is_called_like_a_key(store, look):
    """A batch called as another one's key would be (`x:items`) is a batch, not a leftover of `x`."""
    lanes.offer(store, 4)
    open_batch(store, "x:items")
    assert look() == []
    assert store.scripts.repair_keys("x", parts=[0], actor="tester") == 0
    assert store.reads.status("x:items").total == 4


def test_keys_of_a_known_batch_stay(store):
    """While a batch has its record nothing of it is removed."""
    busy(store)
    before = lanes.snapshot(store)
    assert store.scripts.repair_keys("b", parts=[0], actor="tester") == 0
    assert lanes.snapshot(store) == before


def test_keys_repair_is_audited(store, redis):
    """A removal has its audit entry, with how much went (invariant I5)."""
    leave_keys(store, redis)
    assert store.scripts.repair_keys("dead", parts=[2, 11], actor="tester") == 3
    (told,) = lanes.audit(store, "keys.repaired")
    assert (told.header["b"], told.header["removed"], told.header["a"]) == ("dead", 3, "tester")


def test_keys_idempotence(store, redis):
    """A repeated removal gets the same reply and changes nothing (protocol 4)."""
    leave_keys(store, redis)
    lanes.assert_once(store, lambda: store.scripts.repair_keys("dead", parts=[2], actor="tester"))


def test_other_layout(store, redis):
    """Data of another layout is repaired by nobody (protocol 4)."""
    busy(store)
    for verb in (slots, fleet, lambda store: store.scripts.repair_keys("b", parts=[], actor="tester")):
        lanes.assert_layout(store, lambda verb=verb: verb(store))


def test_other_namespaces_are_left_alone(store, redis, settings):
    """Keys of another namespace in the same database are not ours to judge, even of one whose name begins like ours."""
    other = Store(Settings(**{**settings.model_dump(), "namespace": f"{settings.namespace}2"}), str(settings.redis_url))
    leave_keys(other, redis)
    assert Survey(store.client).leftovers(most=10_000, progress=str) == ([], True)
    assert Survey(other.client).leftovers(most=10_000, progress=str)[0] == [Leftover("dead", 3, (2, 11))]


def test_the_search_for_leftovers_is_bounded(store, redis):
    """A search that ends early says that it did not see everything."""
    with redis.pipeline() as pipeline:
        for number in range(3000):
            pipeline.set(f"other:{number}", "x")
        pipeline.execute()
    seen = []
    rows, whole = Survey(store.client).leftovers(most=1000, progress=seen.append)
    assert (rows, whole, seen) == ([], False, [1000])


def test_tickets_of_a_repair_are_published(store, redis, conf):
    """Tickets that a repair makes possible are handed over to be published: work goes on at once."""
    lanes.offer(store, 4)
    (ticket, *_) = open_batch(store, count=8, limit=1)
    lane = begin(store, ticket, 2)
    redis.hset(store.keys.record("b"), "c:0", 0)
    lane.finish("free", ok=list(lane.holds))
    given = []
    list(examine(store, conf, repairs=Repairs(actor="tester", publish=given.extend)))
    assert [row.batch for row in given] == ["b"]
    assert msgpack.unpackb(redis.hget(store.keys.record("b"), "parts"))[0][0] == given[0].queue
