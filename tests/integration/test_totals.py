"""What metrics count: scripts count what ended, once, and list the batches that are open."""

from __future__ import annotations

import pytest

from tests.integration import lanes
from tests.integration.keeping import moved
from tests.integration.lanes import begin, listed, open_batch, part, totals

CACHED = part(activity="acts.work", cached=True)


def ended(store):
    """Items that ended, by status and activity."""
    return {names[1:]: count for names, count in totals(store).items() if names[0] == "i"}


def go_on(lane, first=(), then="ok"):
    """Run a lane to its end, an item a claim: the first items end so, the others like `then`."""
    first, state = iter(first), "go"
    while state == "go":
        (position,) = lane.holds
        how = next(first, then)
        state = lane.claim(**{how: {position: 0.0} if how == "retry" else [position]}).state


# ------------------------------------------------------------------------------------------- totals
def test_by_status_and_activity(store):
    """Each outcome counts under its status and its task; a retry counts as one, a batch under its state."""
    lanes.offer(store, 4, "q1", "q2")
    parts = [part("q1", "acts.x"), part("q2", "acts.y")]
    tickets = {t.queue: t for t in open_batch(store, count=8, parts=parts, of=lambda position: position % 2)}
    go_on(begin(store, tickets["q1"]), iter(["ok", "failed"]))
    go_on(begin(store, tickets["q2"]), iter(["skipped", "retry"]), "cancelled")
    assert totals(store) == {
        ("i", "ok", "acts.x"): 3,
        ("i", "failed", "acts.x"): 1,
        ("i", "skipped", "acts.y"): 1,
        ("i", "cancelled", "acts.y"): 3,
        ("r", "acts.y"): 1,
        ("b", "failed"): 1,
    }


def test_sent_twice(store):
    """A report that is sent again because its reply was lost counts once (protocol 4)."""
    lane = begin(store, open_batch(store, count=4)[0])
    state = "go"
    while state == "go":
        state = lane.claim(ok=list(lane.holds)).state
        before = totals(store)
        lane.repeat()
        assert totals(store) == before
    assert totals(store) == {("i", "ok", "acts.work"): 4, ("b", "completed"): 1}


def test_callbacks(store):
    """A callback is no item: it counts among callbacks, by how it ended."""
    lanes.run_all(store, open_batch(store, "a", 2, callbacks=["success"]))
    over = begin(store, open_batch(store, "b", 1, callbacks=["complete"])[0]).finish("free", ok=[0])
    begin(store, over.tickets[0]).finish("free", failed=[0])
    assert totals(store) == {
        ("i", "ok", "acts.work"): 3,
        ("b", "completed"): 2,
        ("c", "ok"): 1,
        ("c", "failed"): 1,
    }


def test_lost_lanes(store):
    """A lane that is lost counts; an item that was given up with it counts as failed."""
    lanes.offer(store, 4)
    tickets = open_batch(store, count=3, limit=1, parts=[part(max_lost=1)])
    tickets = lanes.reap(store, begin(store, tickets[0], 1))
    assert totals(store) == {("l",): 1, ("i", "failed", "acts.work"): 1}
    lanes.run_all(store, tickets)
    assert ended(store) == {("failed", "acts.work"): 1, ("ok", "acts.work"): 2}


def test_a_late_report(store):
    """What a lane reports that was taken for dead counts where it is accepted, and nowhere else."""
    lane = begin(store, open_batch(store, count=6)[0], 2)
    held = list(lane.holds)
    lanes.reap(store, lane)
    lane.settle(ok=held)
    assert ended(store) == {("ok", "acts.work"): len(held)}
    lane.settle(ok=held)
    assert ended(store) == {("ok", "acts.work"): len(held)}


def test_cancelled(store):
    """Whatever an item waited for when its batch was cancelled, or when it was revoked, it counts under its task."""
    parts = [part(activity="acts.x"), part(activity="acts.y", cached=True)]
    keys = ["x", "y", "x", "same", "x", "same", "x", "y"]
    tickets = open_batch(
        store, count=8, parts=parts, of=lambda position: position % 2, keys=keys, delayed={6: 9e9, 7: 9e9}
    )
    lane = begin(store, tickets[0], 1)
    lane.finish("stay", give=list(lane.holds))
    store.scripts.cancel_items("b", [0, 1], reason="", actor="me", signal=0)
    assert ended(store) == {("cancelled", "acts.x"): 1, ("cancelled", "acts.y"): 1}
    store.scripts.cancel_batch("b", reason="", actor="me", terminate=False)
    assert ended(store) == {("cancelled", "acts.x"): 4, ("cancelled", "acts.y"): 4}
    assert totals(store)["b", "cancelled"] == 1


def test_results_from_the_cache(store):
    """An item that the cache knows counts as succeeded, like one that ran."""
    store.cache.cache_put([lanes.entry("known")])
    lane = begin(store, open_batch(store, count=3, parts=[CACHED], keys=["known", "new", "known"])[0])
    go_on(lane)
    assert store.reads.status("b").cached == 2
    assert ended(store) == {("ok", "acts.work"): 3}


def test_followers(store):
    """Items that wait for an equal one count when its result lands."""
    first = begin(store, open_batch(store, "a", 1, parts=[CACHED], keys=["new"])[0])
    waiting = lanes.Lane(store, open_batch(store, "c", 2, parts=[CACHED], keys=["new", "new"])[0])
    assert waiting.begin(2).why == "empty"
    assert store.reads.status("c").waiting == 2
    first.finish("free", ok=[0], values={0: lanes.entry("new").value})
    assert ended(store) == {("ok", "acts.work"): 3}
    assert totals(store)["b", "completed"] == 2


def test_parked_items_that_are_cancelled(store):
    """Items that are cancelled while they wait for an equal one count under the task that has cached results."""
    first = begin(store, open_batch(store, "a", 1, parts=[CACHED], keys=["new"])[0])
    lanes.Lane(store, open_batch(store, "c", 2, parts=[CACHED], keys=["new", "new"])[0]).begin(2)
    store.scripts.cancel_batch("c", reason="", actor="me", terminate=False)
    assert ended(store) == {("cancelled", "acts.work"): 2}
    first.finish("free", ok=[0], values={0: lanes.entry("new").value})
    assert ended(store) == {("cancelled", "acts.work"): 2, ("ok", "acts.work"): 1}


def test_names_that_somebody_makes_up(store):
    """Beyond a thousand names a task counts without its own: the hash does not grow for ever (fault J09)."""
    key = store.keys.build("totals")
    store.client.redis.hset(key, mapping={f"i\tok\tacts.n{number}": 1 for number in range(1000)})
    for number in range(3):
        parts = [part(activity=f"acts.more{number}")]
        lanes.run_all(store, open_batch(store, f"b{number}", 2, parts=parts))
    parts = [part(activity="acts.n7")]
    lanes.run_all(store, open_batch(store, "known", 2, parts=parts))
    found = ended(store)
    assert found["ok", ""] == 6
    assert found["ok", "acts.n7"] == 3
    assert store.client.redis.hlen(key) == 1002  # "" and the state of the batches


@pytest.mark.parametrize("value", ["text", {"i\tok\tacts.work": "text"}, {"i\tok\tacts.work": 2**63 - 1}])
def test_counting_fails_nothing(store, value):
    """Where the count cannot be written, the outcome is, with its entry: nothing else depends on it (invariant I2)."""
    ticket = open_batch(store, count=2)[0]
    key = store.keys.build("totals")
    store.client.redis.set(key, value) if isinstance(value, str) else store.client.redis.hset(key, mapping=value)
    assert begin(store, ticket, 1).claim(1, ok=[0]).state == "go"
    assert lanes.statuses_of(store) == {0: ["ok"]}
    assert lanes.holds_together(store)
    assert len(lanes.audit(store, "item.finished")) == 1


# ------------------------------------------------------------------------------------------- open batches
def test_open_batches_are_listed(store):
    """A batch is listed until it is over, and again when its failed items run again; a callback until it ran."""
    lanes.offer(store, 4)
    tickets = open_batch(store, "a", 1, callbacks=["failure"])
    open_batch(store, "empty", 0)
    assert listed(store) == ["a"]
    over = begin(store, tickets[0]).finish("free", failed=[0])
    assert listed(store) == ["a@failure.0"]
    lanes.run_all(store, over.tickets)
    assert listed(store) == []
    assert store.reads.count_open() == 0
    _, tickets = store.scripts.retry_failed("a", [(0, 0, 1)], round_=1, actor="me")
    assert listed(store) == ["a"]
    lanes.run_all(store, tickets)
    assert listed(store) == []


def test_a_restored_batch_is_listed(store):
    """Where it is restored a batch is open as it was; outcomes that it brings along are not counted anew."""
    lane = begin(store, open_batch(store, count=4)[0], 1)
    lane.finish("free", ok=list(lane.holds))
    there = moved(store).store
    assert listed(there) == ["b"]
    assert totals(there) == {}


def test_a_batch_that_is_not_listed(store):
    """The store's own check finds an open batch that the list lacks, and puts it back."""
    open_batch(store, count=2)
    before = store.client.redis.zrange(store.keys.build("open"), 0, -1, withscores=True)
    store.client.redis.delete(store.keys.build("open"))
    reply = store.scripts.check_batch("b")
    assert (reply[b"good"], reply[b"listed"]) == (False, False)
    assert store.scripts.check_batch("b", repair=True)[b"repaired"]
    assert lanes.holds_together(store)
    assert store.client.redis.zrange(store.keys.build("open"), 0, -1, withscores=True) == before
