"""snapshot_cut: one batch at one instant, whatever happens beside."""

from __future__ import annotations

from poimen_tasks.store import Store, snapshot_reads, snapshot_scripts
from tests.integration import lanes
from tests.integration.keeping import finished


def test_an_unknown_batch_is_none(store: Store) -> None:
    """A batch that is not there is no error, and nothing is written."""
    before = lanes.snapshot(store)
    assert store.snapshots.snapshot_cut("b") is None
    assert lanes.snapshot(store) == before


def test_it_changes_nothing(store: Store) -> None:
    """Looking leaves every key as it is, and can be repeated."""
    ticket, *_ = lanes.open_batch(store, count=5, delayed={4: 9e9})
    lane = lanes.begin(store, ticket, 2)
    lane.finish(ok=[0], retry={1: 60.0})
    before = lanes.snapshot(store)
    assert store.snapshots.snapshot_cut("b")._replace(now=0) == store.snapshots.snapshot_cut("b")._replace(now=0)
    assert lanes.snapshot(store) == before


def test_what_it_tells(store: Store) -> None:
    """Record, index, what runs, what waits for its time, what came back: all of one instant (protocol 9)."""
    ticket, *_ = lanes.open_batch(store, count=6, delayed={5: 9e9})
    lane = lanes.begin(store, ticket, 3)
    assert list(lane.holds) == [0, 1, 2][: len(lane.holds)]
    lane = _holding(store, lane)
    cut = store.snapshots.snapshot_cut("b")
    assert (cut.number("total"), cut.number("ok"), cut.number("delayed")) == (6, 1, 2)
    assert finished(cut) == {0}
    assert {member.decode().split(":")[0] for member, _ in cut.delayed} == {"1", "5"}
    assert {int(position) for position, _ in cut.attempts} == {1, 5}
    assert [row[0] for row in cut.running] == [2]


def _holding(store: Store, lane: lanes.Lane) -> lanes.Lane:
    """Item 0 succeeded, item 1 waits for a retry, item 2 runs."""
    while True:
        for position in list(lane.holds):
            if position == 0:
                lane.finish(ok=[0])
            elif position == 1:
                lane.finish(retry={1: 60.0})
        if 2 in lane.holds:
            lane.finish(give=[position for position in lane.holds if position > 2])
            return lane
        lane.claim(1)


def test_much_is_read_in_slices(store: Store, monkeypatch) -> None:
    """What unfinished items carry is the same, whether it comes with the cut or is read in slices."""
    lanes.open_batch(store, count=300, delayed={position: 9e9 + position for position in range(300)})
    whole = store.snapshots.snapshot_cut("b")
    monkeypatch.setattr(snapshot_scripts, "INLINE", 10)
    monkeypatch.setattr(snapshot_reads, "_SLICE", 64)
    sliced = store.snapshots.snapshot_cut("b")
    for name in ("attempts", "checkpoints"):
        assert sorted(getattr(sliced, name)) == sorted(getattr(whole, name))
    assert {member: float(due) for member, due in sliced.delayed} == {m: float(due) for m, due in whole.delayed}
    assert len(sliced.delayed) == 300


def test_changes_between_slices_are_noticed(store: Store, monkeypatch) -> None:
    """When the batch changes while it is read in slices it is read anew, and after three changes in one call."""
    ticket, *_ = lanes.open_batch(store, count=60, delayed=dict.fromkeys(range(10, 60), 9e9), limit=1)
    monkeypatch.setattr(snapshot_scripts, "INLINE", 5)
    lane, asked, entries = lanes.begin(store, ticket), [], store.snapshots._entries

    def meanwhile(batch):
        found = entries(batch)
        asked.append(batch)
        position = next(iter(lane.holds))
        lane.claim(1, retry={position: 60.0})
        return found

    monkeypatch.setattr(store.snapshots, "_entries", meanwhile)
    cut = store.snapshots.snapshot_cut("b")
    assert len(asked) == 3
    assert cut.number("delayed") == len(cut.delayed) == 53


def test_a_still_batch_is_read_once(store: Store, monkeypatch) -> None:
    """Without a change one reading is enough."""
    lanes.open_batch(store, count=60, delayed=dict.fromkeys(range(60), 9e9))
    monkeypatch.setattr(snapshot_scripts, "INLINE", 5)
    asked, entries = [], store.snapshots._entries
    monkeypatch.setattr(store.snapshots, "_entries", lambda batch: asked.append(batch) or entries(batch))
    assert len(store.snapshots.snapshot_cut("b").delayed) == 60
    assert asked == ["b"]


def test_callbacks_come_with_their_batch(store: Store) -> None:
    """The hidden batches of a batch's callbacks are told in the same instant."""
    lanes.offer(store, 4)
    tickets = lanes.open_batch(store, count=1, callbacks=["success", "complete"])
    lane = lanes.begin(store, tickets[0])
    lane.claim(0, ok=[0])
    cut = store.snapshots.snapshot_cut("b")
    assert sorted(hidden.batch for hidden in cut.hidden) == ["b@complete.0", "b@success.0"]
    assert cut.number("callbacks") == 2
    assert all(hidden.record[b"pending"] == b"1" and hidden.chunk for hidden in cut.hidden)


def test_another_layout(store: Store) -> None:
    """Data of another layout is not read."""
    lanes.open_batch(store)
    lanes.assert_layout(store, lambda: store.snapshots.snapshot_cut("b"))
