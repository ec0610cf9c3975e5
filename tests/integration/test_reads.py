"""Plain reads: status, outcomes, items, workers."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import BatchNotFound
from poimen_tasks.model import BatchState
from poimen_tasks.store import Store
from poimen_tasks.store.reads import Entry, next_count
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch


def test_status_adds_up(store):
    """All counts of a status add up to its total at every moment (invariant I3, promise D6)."""
    lane = begin(store, open_batch(store, count=30, delayed={29: 9e9}, limit=4)[0], 12)
    lane.finish("stay", ok=[0], failed=[1], skipped=[2], retry={3: 60.0}, give=[4])
    status = store.reads.status("b")
    assert (status.pending, status.delayed, status.running) == (18, 2, 7)
    assert (status.succeeded, status.failed, status.skipped, status.cancelled) == (1, 1, 1, 0)
    assert status.total == status.pending + status.delayed + status.waiting + status.running + status.finished
    assert (status.workflow, status.stage, status.concurrency) == ("w", "s", 4)
    assert status.created_at <= status.started_at
    assert status.finished_at is None


def test_times_of_a_finished_batch(store):
    """A batch that is over says when."""
    lanes.run_all(store, open_batch(store, count=2))
    status = store.reads.status("b")
    assert status.created_at <= status.started_at <= status.finished_at


@pytest.mark.parametrize(
    ("scopes", "state"),
    [
        (["*"], BatchState.PAUSED),
        (["w:w"], BatchState.PAUSED),
        (["b:b"], BatchState.PAUSED),
        (["q:q1"], BatchState.OPEN),
        (["q:q1", "a:acts.two"], BatchState.PAUSED),
        (["b:other", "w:other"], BatchState.OPEN),
    ],
)
def test_paused(store, scopes, state):
    """A batch is paused when its scope is, or every partition of it."""
    open_batch(store, count=2, parts=[lanes.part("q1"), lanes.part("q2", "acts.two")], of=lambda position: position)
    store.client.redis.hset(store.keys.build("pauses"), mapping=dict.fromkeys(scopes, 1))
    assert store.reads.status("b").state is state


def test_unserved_queues(store):
    """Queues without a worker are named, while the batch is not over."""
    tickets = open_batch(store, count=2, parts=[lanes.part("q2"), lanes.part("q1")], of=lambda position: position)
    assert store.reads.status("b").unserved_queues == ("q1", "q2")
    lanes.offer(store, 1, "q1")
    assert store.reads.status("b").unserved_queues == ("q2",)
    lanes.run_all(store, tickets)
    assert store.reads.status("b").unserved_queues == ()


@pytest.mark.parametrize(
    "read",
    [
        lambda reads: reads.status("nobody"),
        lambda reads: reads.parts("nobody"),
        lambda reads: reads.position_of("nobody", "0"),
        lambda reads: reads.big_call("nobody", 0),
    ],
)
def test_unknown_batch(store, read):
    """A batch that is not known is named."""
    with pytest.raises(BatchNotFound, match="nobody"):
        read(store.reads)


def test_outcomes_behind_a_cursor(store):
    """Entries are read behind an ordinal; the last of a batch is marked."""
    lane = begin(store, open_batch(store, count=3)[0])
    for position in range(3):
        lane.claim(ok=[position])
    found = store.reads.outcomes("b", after=1, block=None, count=10)
    assert [(entry.ordinal, entry.ends) for entry in found] == [(2, False), (3, True)]
    assert store.reads.outcomes("b", after=3, block=None, count=10) == []
    assert store.reads.entry("b", 2) == found[0]
    assert store.reads.entry("b", 9) is None


def test_all_entries(store):
    """All entries are read in slices, none twice, none left out."""
    lane = begin(store, open_batch(store, count=200)[0])
    for position in range(200):
        lane.claim(ok=[position])
    ordinals = [entry.ordinal for found in store.reads.entries("b") for entry in found]
    assert ordinals == list(range(1, 201))
    assert [entry.ordinal for found in store.reads.entries("b", after=150) for entry in found] == list(range(151, 201))


@pytest.mark.parametrize(("size", "wanted"), [(1, 128), (100_000, 32)])
def test_slices_follow_the_bytes(size, wanted):
    """Small entries are read more at a time, large ones fewer."""
    assert next_count(64, [Entry(1, b"x" * size, False)] * 64) == wanted


def test_short_read_keeps_its_size():
    """A read that got all there was is not made larger."""
    assert next_count(64, [Entry(1, b"", ends=False)]) == 64


def test_waiting_for_an_outcome(store):
    """A wait without an outcome ends with nothing, also when it is longer than the socket's patience."""
    open_batch(store)
    impatient = Store(
        store.settings.model_copy(update={"socket_timeout": 0.2, "connect_timeout": 0.3}), store.client.url
    )
    try:
        assert impatient.reads.outcomes("b", after=0, block=60.0, count=1) == []
    finally:
        impatient.client.close()


def test_index(store):
    """The index gives each position the ordinal of its outcome, 0 without one."""
    lane = begin(store, open_batch(store, count=4)[0])
    lane.claim(ok=[0])
    lane.claim(ok=[1])
    assert store.reads.index("b") == b"\0\0\0\1\0\0\0\2"
    assert [store.reads.ordinal_of("b", position) for position in (0, 1, 2, 99)] == [1, 2, 0, 0]


def test_index_in_slices(store):
    """An index over a megabyte is read whole."""
    large = bytes(range(256)) * 8192
    store.client.redis.set(store.keys.build("index", "b"), large + b"end!")
    assert store.reads.index("b") == large + b"end!"
    store.client.redis.set(store.keys.build("index", "b"), large)
    assert store.reads.index("b") == large


@pytest.mark.parametrize(
    ("name", "position"),
    [("0", 0), ("3", 3), ("4", None), ("03", None), ("-1", None), ("", None), ("x", None), ("²", None)],
)
def test_positions_are_ids(store, name, position):
    """Without custom ids an item's id is its position, spelled in one way."""
    open_batch(store, count=4)
    assert store.reads.position_of("b", name) == position


def test_ids_before_the_first_custom_one(store):
    """Items whose slices came before the first custom id are found by their position (promise D7)."""
    open_batch(store, count=256, seal=False)
    lanes.append(store, 256, 2, ids=["x", "257"], seal=True)
    found = {name: store.reads.position_of("b", name) for name in ("7", "255", "x", "257", "256", "258")}
    assert found == {"7": 7, "255": 255, "x": 256, "257": 257, "256": None, "258": None}


def test_names(store):
    """Names follow positions, custom or not, in any order."""
    open_batch(store, count=256, seal=False)
    lanes.append(store, 256, 2, ids=["x", "y"])
    assert store.reads.names("b", [257, 3, 256]) == ["y", "3", "x"]


def test_chunks(store):
    """Chunks are read by number; one that is not there is left out."""
    open_batch(store, count=300)
    views = store.reads.chunks("b", [0, 1, 7])
    assert {number: len(view) for number, view in views.items()} == {0: 256, 1: 44}
    assert views[1].call(3) == ([259], {})
    assert store.reads.chunks("b", []) == {}


def test_batches(store):
    """Batches are listed newest first, all or of one workflow."""
    for batch in "abc":
        open_batch(store, batch)
    assert store.reads.batches() == ["c", "b", "a"]
    assert store.reads.batches(workflow="w", newest=2) == ["c", "b"]
    assert store.reads.batches(workflow="other") == []


def test_workers(store):
    """Each worker tells its slots and details."""
    lanes.offer(store, 2, "q1", "q2", worker="w2")
    lanes.offer(store, 1, worker="w1")
    found = store.reads.workers()
    assert [(worker.name, worker.offers, worker.details) for worker in found] == [
        ("w1", (("q", 1),), {"pid": 1}),
        ("w2", (("q1", 2), ("q2", 2)), {"pid": 1}),
    ]
    assert all(abs(worker.seen - store.reads.now()) < 600 for worker in found)


def test_tickets_and_leases(store):
    """A slot's ticket, the tickets of a queue and the live lanes can be looked at."""
    (first,) = open_batch(store, "a")
    open_batch(store, "b")
    assert (store.reads.ticket_queue("a", 0), store.reads.tickets_out("q"), store.reads.leases()) == ("q", 2, [])
    begin(store, first)
    assert (store.reads.ticket_queue("a", 0), store.reads.tickets_out("q")) == (None, 1)
    assert [lease[:3] for lease in store.reads.leases()] == [first[:3]]
    assert (store.reads.ticket_queue("a", 5), store.reads.tickets_out("other")) == (None, 0)
