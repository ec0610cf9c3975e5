"""Snapshots with real workers: a workflow on disk, and back into a store that knows nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poimen_tasks import BatchState, InvalidArgument, Item
from poimen_tasks.errors import (
    InvalidId,
    PoimenError,
    SerializationError,
    SnapshotConflict,
    SnapshotCorrupt,
    SnapshotFailed,
    SnapshotNotFound,
    SnapshotTooNew,
)
from tests.acceptance.places import Places, places
from tests.conftest import eventually


def lines(path: Path, what: str = "start") -> list[str]:
    """Names that bodies noted."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [row[1] for row in rows if row[0] == what]


def marked(shop: ModuleType, path: Path, names: Any, seconds: float = 0.0) -> list[Any]:
    """Calls that note their start and end."""
    return [shop.marked.s(str(path), str(name), seconds) for name in names]


def file_of(shop: ModuleType, workflow: str) -> Path:
    """The newest snapshot of a workflow on disk."""
    snapshots = shop.poimen.snapshots
    (found,) = [
        path
        for path in snapshots.directory.glob("*.snapshot")
        if json.loads(Path(f"{path}.json").read_text())["workflow"] == workflow and path.name.count(".") == 1
    ]
    return found


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Places]:
    """Places that can be lost."""
    with places(tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------------ taken when
@pytest.mark.usefixtures("lanes")
def test_taken_on_pause(shop: ModuleType, notes: Path) -> None:
    """A paused workflow is kept on disk as soon as nothing of it runs; its pause tells which snapshot, where, when."""
    batch = shop.poimen.dispatch(marked(shop, notes, range(8), 0.3), workflow="wf-on-pause", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 2)
    shop.poimen.pause(workflow="wf-on-pause", reason="upgrade", actor="ann")
    eventually(lambda: shop.poimen.snapshots.has("wf-on-pause"))
    snapshot = shop.poimen.snapshots.latest("wf-on-pause")
    status = batch.status()
    assert (snapshot.completed, snapshot.pending) == (status.succeeded, status.pending)
    assert snapshot.batches[0]["running"] == 0
    assert snapshot.pauses["w:wf-on-pause"]["reason"] == "upgrade"
    scope, reads = "w:wf-on-pause", shop.poimen.store.snapshots
    eventually(lambda: "snapshot" in reads.pause_states([scope])[scope])  # told once the file is there
    known = reads.pause_states([scope])[scope]
    assert (known["snapshot"], known["snapshot_epoch"]) == (snapshot.id, known["epoch"])
    shop.poimen.resume(workflow="wf-on-pause")
    assert batch.wait(timeout=20).succeeded == 8


@pytest.mark.usefixtures("lanes")
def test_taken_when_the_grace_is_over(shop: ModuleType, notes: Path) -> None:
    """What goes on after its grace does not keep its workflow from the disk: it is pending in the snapshot."""
    batch = shop.poimen.dispatch([shop.stubborn.s(str(notes), "x")], workflow="wf-grace-over")
    eventually(notes.exists)
    shop.poimen.pause(workflow="wf-grace-over", grace=0.0)
    eventually(lambda: shop.poimen.snapshots.has("wf-grace-over"))
    assert shop.poimen.snapshots.latest("wf-grace-over").pending == 1
    Path(f"{notes}.go").touch()
    shop.poimen.resume(workflow="wf-grace-over")
    assert batch.wait(timeout=20).succeeded == 1


def test_taken_before_pause_returns(shop: ModuleType) -> None:
    """With `snapshot=True` the file is there when `pause` returns; it is for workflows."""
    shop.poimen.pause(workflow="wf-at-once", snapshot=True, reason="now", actor="ann")
    snapshot = shop.poimen.snapshots.latest("wf-at-once")
    assert (snapshot.actor, snapshot.reason) == ("ann", "now")
    assert snapshot.paused_at == shop.poimen.pauses.state("wf-at-once").paused_at
    with pytest.raises(InvalidArgument, match="workflow="):
        shop.poimen.pause(queue="celery", snapshot=True)
    assert not shop.poimen.pauses.is_paused(queue="celery")
    shop.poimen.resume(workflow="wf-at-once")


def test_where_nothing_can_be_written(own_shop: ModuleType, tmp_path: Path) -> None:
    """Where the directory cannot be written the pause holds, and the error says what was not saved, and why."""
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(
        SnapshotFailed,
        match=r"'wf-no-disk' is paused and stays so.*not kept.*is a file, not a directory; set POIMEN_DATA_DIR",
    ) as caught:
        own_shop.poimen.pause(workflow="wf-no-disk", snapshot=True)
    assert str(tmp_path / "data") in str(caught.value)
    assert own_shop.poimen.pauses.is_paused("wf-no-disk")
    with pytest.raises(SnapshotFailed):
        own_shop.poimen.snapshots.create("wf-no-disk")


def test_the_pause_tells_that_it_was_not_kept(own_shop: ModuleType, workers: Any, tmp_path: Path) -> None:
    """When a worker cannot keep a paused workflow its pause says why, until it can."""
    from tests.acceptance.conftest import APP

    (tmp_path / "data").write_text("in the way")
    workers.start(APP, concurrency=1)
    own_shop.poimen.pause(workflow="wf-not-kept")
    reads = own_shop.poimen.store.snapshots

    def told() -> str:
        return reads.pause_states(["w:wf-not-kept"])["w:wf-not-kept"].get("snapshot_error", "")

    assert "is a file, not a directory" in eventually(told)
    (tmp_path / "data").unlink()
    own_shop.poimen.pause(workflow="wf-not-kept", reason="again")
    eventually(lambda: own_shop.poimen.snapshots.has("wf-not-kept"), timeout=40)
    eventually(lambda: told() == "")  # said when the file is there


def test_a_full_disk(own_shop: ModuleType, tmp_path: Path) -> None:
    """A disk that is full while a snapshot is written leaves the one before as it was, and no litter."""
    room = own_shop.poimen.snapshots.directory
    room.mkdir(parents=True)
    mount, umount = shutil.which("mount"), shutil.which("umount")
    small = [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", room]
    if not mount or not umount or subprocess.run(small, check=False).returncode:
        pytest.skip(
            "no right to mount a small disk here; test_a_full_disk_leaves_the_old_one has the limit of a process"
        )
    try:
        snapshots = own_shop.poimen.snapshots
        own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.echo, ["small"]), workflow="wf-full", batch_id="one")
        before = snapshots.create("wf-full")
        noise = [os.urandom(2_000) for _ in range(200)]
        own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.echo, noise), workflow="wf-full", batch_id="two")
        with pytest.raises(SnapshotFailed, match=r"No space left on device.*untouched"):
            snapshots.create("wf-full")
        assert snapshots.latest("wf-full") == before
        assert not list(room.glob(".*.tmp"))
        assert [len(batch) > 0 for batch in snapshots.latest("wf-full").batches] == [True]
    finally:
        subprocess.run([umount, room], check=True)


# ------------------------------------------------------------------------------------------ what it tells
def test_given_by_the_caller(shop: ModuleType) -> None:
    """Without any batch a snapshot has what its caller gives, in every field, and is read back (promise P6)."""
    given = {
        "stage": "review",
        "completed_tasks": ["T1", "T2"],
        "pending_tasks": ["T3"],
        "failed_tasks": ["T0"],
        "current_task_id": "T3",
        "current_activity_id": "shop.review",
        "task_metrics": {"T1": {"seconds": 1.5}},
        "workflow_metrics": {"cost": 3},
        "configuration": {"model": "small", "limits": [1, 2]},
        "error": "disk",
    }
    made = shop.poimen.snapshots.create("wf-given", **given, actor="ann", reason="by hand")
    read = shop.poimen.snapshots.latest("wf-given")
    assert read == made
    told = read.to_dict()
    assert {name: told[name] for name in given} == given
    assert (told["completed"], told["pending"], told["failed"]) == (2, 1, 1)
    assert (read.workflow, read.resumed_at, read.resume_attempts, read.batches) == ("wf-given", None, 0, ())
    assert datetime.now(UTC) - read.timestamp < timedelta(minutes=1)
    beside = json.loads(Path(f"{file_of(shop, 'wf-given')}.json").read_text())
    assert {name: beside[name] for name in given} == given


@pytest.mark.usefixtures("lanes")
def test_told_by_its_batches(shop: ModuleType, notes: Path) -> None:
    """What is not given is told by the live state: stages, ids, what runs, the first error, metrics (promise P6)."""
    first = shop.poimen.dispatch([shop.odd_fails.s(number) for number in range(4)], workflow="wf-live", stage="one")
    first.wait(timeout=20)
    calls = [shop.add.s(1, 2), shop.boom.s("no"), shop.stubborn.s(str(notes), "x"), shop.add.s(1, 1).set(countdown=600)]
    work = [Item(call, id=f"T{number}") for number, call in enumerate(calls)]
    options = {"concurrency": 1, "metadata": {"who": "me"}}
    second = shop.poimen.dispatch(work, workflow="wf-live", stage="two", **options)
    eventually(notes.exists)
    eventually(lambda: second.status().running == 1 and second.status().finished == 2)
    snapshot = shop.poimen.snapshots.create("wf-live", current_activity_id="mine")
    assert snapshot.stage == "two"
    assert (snapshot.completed_tasks, snapshot.failed_tasks) == (("T0",), ("T1",))
    assert sorted(snapshot.pending_tasks) == ["T2", "T3"]
    assert (snapshot.current_task_id, snapshot.current_activity_id) == ("T2", "mine")
    assert snapshot.error == "ValueError: no"
    assert {name: counted["succeeded"] for name, counted in snapshot.task_metrics.items()} == {"one": 2, "two": 1}
    assert (snapshot.workflow_metrics["total"], snapshot.workflow_metrics["failed"]) == (8, 3)
    assert snapshot.configuration["two"]["metadata"] == {"who": "me"}
    assert snapshot.configuration["two"]["concurrency"] == 1
    assert [batch["state"] for batch in snapshot.batches] == ["failed", "open"]
    Path(f"{notes}.go").touch()
    second.cancel()


def test_bad_words(shop: ModuleType) -> None:
    """What cannot be kept is refused by name, before anything is written."""
    create = shop.poimen.snapshots.create
    for bad, error in (
        ({"workflow": "../x"}, InvalidId),
        ({"workflow": "w", "stage": "a b"}, InvalidId),
        ({"workflow": "w", "completed_tasks": "T1"}, InvalidArgument),
        ({"workflow": "w", "pending_tasks": [1]}, InvalidId),
        ({"workflow": "w", "configuration": {"a": {1, 2}}}, SerializationError),
        ({"workflow": "w", "task_metrics": [1]}, InvalidArgument),
        ({"workflow": "w", "completed_tasks": 5}, InvalidArgument),
        ({"workflow": "w", "actor": "a b"}, InvalidId),
    ):
        with pytest.raises(error):
            create(**bad)
    for age in (-1, "week", datetime(2026, 1, 1)):  # noqa: DTZ001 - naive on purpose
        with pytest.raises(InvalidArgument):
            shop.poimen.snapshots.clear_older_than(age)
    for generation in (-1, 1.5, True):
        with pytest.raises(InvalidArgument):
            shop.poimen.snapshots.latest("w", generation=generation)
    assert not shop.poimen.snapshots.has("w")
    for resume in ("no", 1, None):
        with pytest.raises(InvalidArgument, match="resume: expected True or False"):
            shop.poimen.snapshots.restore("w", resume=resume)


def test_half_characters(own_shop: ModuleType) -> None:
    """Words that are no text as stores know it, as from another system's command line, are kept readable."""
    half = "caf\udce9"
    snapshots = own_shop.poimen.snapshots
    own_shop.poimen.pause(workflow="wf-half", reason=half)
    snapshots.create("wf-half", reason=half, error=half, current_activity_id=half)
    found = snapshots.latest("wf-half")
    assert {found.reason, found.error, found.current_activity_id} == {"caf\\udce9"}
    assert own_shop.poimen.resume(workflow="wf-half", reason=half).resume_reason == "caf\\udce9"
    assert snapshots.restore("wf-half", reason=half).resume_success


def test_a_shelf_that_is_closed(own_shop: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that may not be read or changed is one clear error."""
    snapshots = own_shop.poimen.snapshots
    snapshots.create("wf-closed")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(SnapshotFailed, match="cannot be removed"):
            snapshots.delete("wf-closed")
    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(Path, "lstat", refuse)
    for ask in (lambda: snapshots.latest("wf-closed"), snapshots.all, snapshots.stats):
        with pytest.raises(SnapshotFailed, match="cannot be read"):
            ask()
    assert not snapshots.has("wf-closed")


# ------------------------------------------------------------------------------------------ the shelf
def test_the_shelf(own_shop: ModuleType) -> None:
    """`latest`, `has`, `all`, `last`, `delete`, `clear_older_than` and `stats` (promise P8)."""
    snapshots = own_shop.poimen.snapshots
    assert (snapshots.all(), snapshots.last(), snapshots.has("a"), snapshots.stats().count) == ([], None, False, 0)
    with pytest.raises(SnapshotNotFound, match="'a' has no snapshot"):
        snapshots.latest("a")
    made = [snapshots.create(name) for name in ("a", "b", "a", "a")]
    assert snapshots.latest("a") == made[3]
    assert snapshots.latest("a", generation=1).id == made[2].id
    with pytest.raises(SnapshotNotFound, match="generation 2"):
        snapshots.latest("a", generation=2)
    assert [one.id for one in snapshots.all()] == [made[3].id, made[1].id]
    assert [one.id for one in snapshots.all(generations=True)] == [made[3].id, made[2].id, made[1].id]
    assert snapshots.last() == made[3]
    stats = snapshots.stats()
    assert (stats.count, stats.workflows, stats.corrupt, stats.oldest) == (3, 2, 0, made[1].timestamp)
    assert stats.bytes == sum(path.stat().st_size for path in snapshots.directory.glob("*.snapshot*"))
    assert snapshots.clear_older_than(3600) == snapshots.clear_older_than(timedelta(hours=1)) == 0
    assert snapshots.clear_older_than(made[2].timestamp) == 1
    assert not snapshots.has("b")
    assert (snapshots.delete("a"), snapshots.delete("a")) == (2, 0)
    assert [path.name for path in snapshots.directory.iterdir()] == [".lock"]


def test_a_foreign_file_is_skipped(own_shop: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """A torn or foreign file is told in the log and left out; the others are there (promise P7)."""
    snapshots = own_shop.poimen.snapshots
    for name in ("good", "torn"):
        snapshots.create(name)
    torn = file_of(own_shop, "torn")
    torn.write_bytes(torn.read_bytes()[:-7])
    (snapshots.directory / "mine.snapshot").write_text("something else")
    assert [one.workflow for one in snapshots.all()] == ["good"]
    assert (snapshots.has("torn"), snapshots.stats().corrupt) == (False, 2)
    assert torn.name in caplog.text
    assert "mine.snapshot" in caplog.text


def test_after_a_restart(own_shop: ModuleType, worker_env: dict[str, str]) -> None:
    """What one process wrote another one reads, by the same words (promise P7)."""
    own_shop.poimen.snapshots.create("wf-restart", error="oops")
    code = "from tests.acceptance.shop import poimen; one = poimen.snapshots.last(); print(one.id, one.error)"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **worker_env}, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [own_shop.poimen.snapshots.latest("wf-restart").id, "oops"]


def test_ids_that_are_no_file_names(own_shop: ModuleType) -> None:
    """Ids that differ only in case, or that a system keeps for itself, have files of their own (promise P7)."""
    names = ["CON", "con", "Con", "nul.txt", "a:b", "a.b", "A.B", "x" * 128, "x" * 127 + "y"]
    snapshots = own_shop.poimen.snapshots
    made = {name: snapshots.create(name).id for name in names}
    assert {one.workflow: one.id for one in snapshots.all()} == made
    files = [path.name for path in snapshots.directory.glob("*.snapshot")]
    assert len({name.lower() for name in files}) == len(names)
    assert all(len(name) < 100 and name.isascii() and ":" not in name for name in files)


def test_reset_forgets_them(own_shop: ModuleType) -> None:
    """`pauses.reset` of a workflow removes its snapshots, and no other one's."""
    for name in ("wf-reset", "wf-other"):
        own_shop.poimen.snapshots.create(name)
    assert own_shop.poimen.pauses.reset("wf-reset") is True
    assert [one.workflow for one in own_shop.poimen.snapshots.all()] == ["wf-other"]


# ------------------------------------------------------------------------------------------ and back
@pytest.mark.timeout(180)
def test_into_an_empty_redis(moving: Places, tmp_path: Path) -> None:
    """Everything is lost but the directory: on another server the workflow goes on from the exact point (promise P9).

    What had its outcome does not run again; delays, checkpoints, failures and the callback are as they would have been.
    """
    path, here = tmp_path / "ran", moving.open()
    here.start()
    work = [
        *marked(here.shop, path, range(30), 0.05),
        here.shop.boom.s("always"),
        here.shop.stepping.s(str(tmp_path / "steps"), "long", 40, 0.05),
    ]
    options = {"concurrency": 2, "on_complete": here.shop.tell.s(str(tmp_path / "called"))}
    batch = here.shop.poimen.dispatch(work, workflow="wf-move", batch_id="moved", **options)
    before = here.shop.poimen.dispatch(
        marked(here.shop, path, ["early"]), workflow="wf-move", stage="early", batch_id="early"
    )
    before.wait(timeout=20)
    eventually(lambda: batch.status().succeeded >= 3)
    receipt = here.shop.poimen.pause(workflow="wf-move", grace=0.2)
    receipt.wait_quiet(timeout=20)
    here.shop.poimen.snapshots.create("wf-move")
    recorded = _recorded(batch)
    noted = Counter(lines(path))
    here.lose()

    there = moving.open()
    there.start()
    snapshot = there.shop.poimen.snapshots.restore("wf-move", actor="ann", reason="the host is gone")
    assert (snapshot.resume_attempts, snapshot.resume_success) == (1, True)
    assert snapshot.resumed_at is not None
    assert there.shop.poimen.snapshots.latest("wf-move") == snapshot
    moved = there.shop.poimen.batch("moved")
    report = moved.wait(timeout=60)
    assert (report.succeeded, report.failed, set(report.errors)) == (31, 1, {"30"})
    assert report.results["31"] == 40
    ran = Counter(lines(path)) - noted
    assert {name for name in ran if name in recorded} == set()
    assert "early" not in ran
    assert sorted(recorded | set(ran)) >= sorted(map(str, range(30)))
    eventually((tmp_path / "called").exists)
    steps = [line.split() for line in (tmp_path / "steps").read_text().splitlines() if line.startswith("step")]
    assert Counter(int(row[2]) for row in steps).most_common(1)[0][1] <= 2
    assert there.shop.poimen.batch("early").status().state is BatchState.COMPLETED
    eventually(lambda: moved.status().callbacks_pending == 0)
    assert len((tmp_path / "called").read_text().splitlines()) == 1


def _recorded(batch: Any) -> set[str]:
    """The items of a batch that have an outcome now."""
    return {str(position) for position in range(batch.status().total) if batch.is_complete(str(position))}


def test_each_refusal_has_its_error(own_shop: ModuleType) -> None:
    """Over a live batch, from a newer version, from a torn or altered file, without a file: each its own error."""
    poimen = own_shop.poimen
    poimen.dispatch(poimen.map(own_shop.noop, range(3)), workflow="wf-live", batch_id="live")
    poimen.snapshots.create("wf-live")
    with pytest.raises(SnapshotConflict, match="batch 'live' is there already"):
        poimen.snapshots.restore("wf-live")
    with pytest.raises(SnapshotNotFound, match="'wf-none' has no snapshot"):
        poimen.snapshots.restore("wf-none")
    path = file_of(own_shop, "wf-live")
    whole = path.read_bytes()
    newer = whole[:8] + struct.pack(">H", 2) + whole[10:-32]
    path.write_bytes(newer + sha256(newer).digest())
    with pytest.raises(SnapshotTooNew, match="format 2"):
        poimen.snapshots.restore("wf-live")
    for broken in (whole[:-1], whole[: len(whole) // 2], whole[:60] + b"x" + whole[61:], b"", b"not ours"):
        path.write_bytes(broken)
        with pytest.raises(SnapshotCorrupt, match=path.name):
            poimen.snapshots.restore("wf-live")
    path.write_bytes(whole)
    assert poimen.snapshots.latest("wf-live").resume_attempts == 0
    assert poimen.batch("live").status().pending == 3


def test_twice_is_refused(moving: Places) -> None:
    """A snapshot is restored once into a store: by one of several who try at one time, not again later (I13)."""
    here = moving.open()
    poimen = here.shop.poimen
    poimen.dispatch(poimen.map(here.shop.noop, range(3_000)), workflow="wf-twice", batch_id="twice")
    poimen.snapshots.create("wf-twice")
    here.lose()
    there = moving.open()
    snapshots = there.shop.poimen.snapshots
    told: list[str] = []

    def restore() -> None:
        try:
            snapshots.restore("wf-twice")
        except SnapshotConflict as error:
            told.append(str(error))
        else:
            told.append("restored")

    threads = [threading.Thread(target=restore) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count("restored") == 1
    assert len(told) == 4
    with pytest.raises(SnapshotConflict, match="restored here already"):
        snapshots.restore("wf-twice")
    status = there.shop.poimen.batch("twice").status()
    assert (status.total, status.pending) == (3_000, 3_000)
    there.start()
    assert there.shop.poimen.batch("twice").wait(timeout=30).succeeded == 3_000


def test_one_that_broke_off_is_gone_on_with(moving: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that breaks off leaves whole batches or none, is not taken for the workflow, and is gone on with."""
    here = moving.open()
    poimen = here.shop.poimen
    for name in ("a", "b"):
        poimen.dispatch(poimen.map(here.shop.noop, range(2_000)), workflow="wf-break", batch_id=name, stage=name)
    poimen.snapshots.create("wf-break")
    here.lose()
    there = moving.open()
    store, snapshots = there.shop.poimen.store, there.shop.poimen.snapshots
    send, left = store.snapshots.restore_slice, [0]

    def breaks(*args: Any, **options: Any) -> bool:
        left[0] -= 1
        if left[0] < 0:
            raise PoimenError("broke off")
        return send(*args, **options)

    monkeypatch.setattr(store.snapshots, "restore_slice", breaks)
    for pieces in (0, 1, 2, 3):
        left[0] = pieces
        with pytest.raises(PoimenError, match="broke off"):
            snapshots.restore("wf-break")
        assert {batch.id for batch in there.shop.poimen.batches()} <= {"a"}
        assert all(batch.status().total == 2_000 for batch in there.shop.poimen.batches())
        with pytest.raises(SnapshotConflict, match="is being restored here, or that broke off"):
            snapshots.create("wf-break")
    monkeypatch.undo()
    assert snapshots.latest("wf-break").resume_attempts == 4
    assert snapshots.restore("wf-break").resume_attempts == 5
    there.start()
    for name in ("a", "b"):
        assert there.shop.poimen.batch(name).wait(timeout=30).succeeded == 2_000


def test_it_may_stay_paused(moving: Places) -> None:
    """With `resume=False` what was paused comes back paused, by the same reason; `mark_resumed` notes the resume."""
    here = moving.open()
    here.shop.poimen.pause(workflow="wf-held", reason="audit", actor="ann")
    batch = here.shop.poimen.dispatch(here.shop.poimen.map(here.shop.noop, range(5)), workflow="wf-held")
    here.shop.poimen.snapshots.create("wf-held")
    here.lose()
    there = moving.open()
    there.start()
    poimen = there.shop.poimen
    assert poimen.snapshots.restore("wf-held", resume=False).resumed_at is None
    state = poimen.pauses.state("wf-held")
    assert (state.paused, state.reason, state.actor) == (True, "audit", "ann")
    other = poimen.dispatch(poimen.map(there.shop.noop, range(5)), workflow="wf-free")
    assert other.wait(timeout=20).succeeded == 5
    assert poimen.batch(batch.id).status().state is BatchState.PAUSED
    poimen.resume(workflow="wf-held")
    assert poimen.snapshots.mark_resumed("wf-held").resume_success is True
    assert poimen.snapshots.latest("wf-held").resume_attempts == 1
    assert poimen.batch(batch.id).wait(timeout=20).succeeded == 5


def test_a_pause_comes_back_with_a_second_try(moving: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that broke off had paused already, somebody resumed: asked for again, the pause is there again."""
    here = moving.open()
    here.shop.poimen.pause(workflow="wf-again")
    here.shop.poimen.dispatch(here.shop.poimen.map(here.shop.noop, range(5)), workflow="wf-again")
    here.shop.poimen.snapshots.create("wf-again")
    here.lose()
    poimen = moving.open().shop.poimen

    def breaks(*_: Any, **__: Any) -> None:
        raise PoimenError("broke off")

    with monkeypatch.context() as patch:
        patch.setattr(poimen.store.snapshots, "restore_end", breaks)
        with pytest.raises(PoimenError, match="broke off"):
            poimen.snapshots.restore("wf-again", resume=False)
    poimen.resume(workflow="wf-again")
    poimen.snapshots.restore("wf-again", resume=False)
    assert poimen.pauses.is_paused("wf-again")


def test_large_calls_and_results(moving: Places) -> None:
    """Calls and results that are kept out of line, own ids and cache keys come back too."""
    here = moving.open()
    here.start()
    shop = here.shop
    work = [Item(shop.echo.s(f"{n}" * 40_000), id=f"part/{n}") for n in range(9)]
    batch = shop.poimen.dispatch([*work, shop.priced.s("/dev/null", "x")], workflow="wf-big", batch_id="big")
    eventually(lambda: batch.status().succeeded == 10)
    more = shop.poimen.dispatch(
        [*work, shop.priced.s("/dev/null", "x")], workflow="wf-big2", batch_id="big2", queue="q"
    )
    for name in ("wf-big", "wf-big2"):
        shop.poimen.snapshots.create(name)
    here.lose()
    there = moving.open()
    there.start(queues="celery,q")
    for name in ("wf-big", "wf-big2"):
        there.shop.poimen.snapshots.restore(name)
    for name in ("big", more.id):
        report = there.shop.poimen.batch(name).wait(timeout=30)
        assert report.succeeded == 10
        assert report.results["part/7"] == [["7" * 40_000], {}]
        assert report.results["9"] == "price of x"


def test_a_hundred_at_once(own_shop: ModuleType, worker_env: dict[str, str]) -> None:
    """A hundred snapshots, taken at the same time and restored at the same time, without an error (promise I4)."""
    poimen = own_shop.poimen
    names = [f"wf-{number}" for number in range(100)]
    for name in names:
        poimen.dispatch(poimen.map(own_shop.noop, range(20)), workflow=name, batch_id=f"b-{name}")
    taken = _in_threads(poimen.snapshots.create, names)
    assert {name: one.pending for name, one in taken.items()} == dict.fromkeys(names, 20)
    assert {one.workflow: one.id for one in poimen.snapshots.all()} == {name: one.id for name, one in taken.items()}
    here = poimen.snapshots.directory
    here.rename(here.with_name(f"{here.name}r"))
    with poimen.using(poimen.settings.model_copy(update={"namespace": f"{here.name}r"})):
        restored = _in_threads(poimen.snapshots.restore, names)
        assert {name: one.id for name, one in restored.items()} == {name: one.id for name, one in taken.items()}
        assert len(poimen.batches()) == 100
        assert sum(batch.status().pending for batch in poimen.batches()) == 2_000


def _in_threads(verb: Any, names: list[str], threads: int = 10) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def run(some: list[str]) -> None:
        for name in some:
            found[name] = verb(name)

    running = [threading.Thread(target=run, args=(names[at::threads],)) for at in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(found) == len(names)
    return found


@pytest.mark.timeout(300)
def test_seeded_cycles(tmp_path: Path) -> None:
    """Paused, kept, everything killed, restored elsewhere, several times over: the outcomes are those of a quiet run.

    Nothing runs again whose outcome was recorded before its snapshot (promise P9).
    """
    from tests.acceptance.cycles import cycles

    report = cycles(tmp_path, count=2, items=240, seed=20251129)
    assert report.done == 2
    assert report.wrong() == {}, report
