"""Snapshots on disk: whole or not at all, checked before they are used, named so that no id leads elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import resource
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest

from poimen_tasks.errors import SnapshotConflict, SnapshotCorrupt, SnapshotFailed, SnapshotNotFound, SnapshotTooNew
from poimen_tasks.pause.snapshot import Snapshot
from poimen_tasks.pause.snapshot_file import SnapshotReader, SnapshotWriter
from poimen_tasks.pause.snapshot_shelf import Shelf, safe_name

HEADER = {"id": "1", "workflow": "w"}


def value(workflow: str = "w", name: str = "1", hour: int = 1) -> Snapshot:
    return Snapshot(id=name, workflow=workflow, timestamp=datetime(2026, 1, 1, hour, tzinfo=UTC))


def fill(snapshot: Snapshot, size: int = 10):
    def write(file):
        writer = SnapshotWriter(file, HEADER)
        for number in range(size):
            writer.section("chunks", number, random.Random(number).randbytes(200))
        writer.section("end", size)
        writer.finish(snapshot.packed())
        return snapshot

    return write


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """An empty directory."""
    return Shelf(tmp_path, namespace="poimen", keep=2)


def test_sections_come_back(shelf: Shelf) -> None:
    """What was written is read, section by section, with header and summary."""
    shelf.write("w", fill(value(), 3000))
    reader = shelf.open("w")
    kinds = [(kind, values[0]) for kind, values in reader.sections()]
    assert kinds == [*(("chunks", number) for number in range(3000)), ("end", 3000)]
    assert reader.header == HEADER
    assert shelf.value(reader.path, 0) == Snapshot.unpacked({**value().packed(), "size": reader.size})


def test_every_byte_counts(shelf: Shelf) -> None:
    """A file with any one byte changed is refused by name, wherever the byte is (fault H11, promise P7)."""
    shelf.write("w", fill(value()))
    path = shelf.path("w")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(SnapshotCorrupt, match=path.name):
            SnapshotReader(path)
    path.write_bytes(whole)
    assert SnapshotReader(path).summary["workflow"] == "w"


def test_a_torn_file_is_refused(shelf: Shelf) -> None:
    """A file that breaks off, at whatever place, or goes on behind its end, is refused (promise P7)."""
    shelf.write("w", fill(value()))
    path = shelf.path("w")
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(SnapshotCorrupt):
            SnapshotReader(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(SnapshotCorrupt):
        SnapshotReader(path)


def signed(data: bytes) -> bytes:
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def test_a_newer_format_is_told_from_a_damaged_file(shelf: Shelf) -> None:
    """A newer format is `SnapshotTooNew`; lengths that lie are `SnapshotCorrupt` even where the sum is right."""
    shelf.write("w", fill(value()))
    path = shelf.path("w")
    whole = path.read_bytes()
    path.write_bytes(signed(whole[:8] + struct.pack(">H", 2) + whole[10:]))
    with pytest.raises(SnapshotTooNew, match="format 2"):
        SnapshotReader(path)
    for lie in (0, 1, 1 << 20, (1 << 32) - 1):
        path.write_bytes(signed(whole[:10] + struct.pack(">I", lie) + whole[14:]))
        with pytest.raises(SnapshotCorrupt):
            SnapshotReader(path)
        path.write_bytes(signed(whole[:-36] + struct.pack(">I", lie) + whole[-32:]))
        with pytest.raises(SnapshotCorrupt):
            shelf.value(path, 0)


def test_a_body_that_lies_is_refused(shelf: Shelf) -> None:
    """A body that is no zstd stream, or no msgpack inside, is refused while it is read, whatever the checksum says."""
    shelf.write("w", fill(value()))
    path = shelf.path("w")
    whole, reader = path.read_bytes(), SnapshotReader(path)
    begin, end = reader._begin, reader._end
    for body in (b"\0" * (end - begin), whole[begin : end - 40] + b"\xff" * 40):
        path.write_bytes(signed(whole[:begin] + body + whole[end:]))
        with pytest.raises(SnapshotCorrupt):
            list(SnapshotReader(path).sections())


def test_what_is_no_snapshot_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    """A missing file is `SnapshotNotFound`; a foreign one, a directory or a link is `SnapshotCorrupt` (fault H11)."""
    with pytest.raises(SnapshotNotFound):
        shelf.open("w")
    shelf.write("w", fill(value()))
    path, other = shelf.path("w"), tmp_path / "elsewhere"
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(SnapshotCorrupt):
        shelf.open("w")
    path.unlink()
    path.mkdir()
    with pytest.raises(SnapshotCorrupt):
        shelf.open("w")
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(SnapshotCorrupt, match="no file"):
        shelf.open("w")
    path.unlink()
    path.write_text("not one of ours")
    with pytest.raises(SnapshotCorrupt, match="no snapshot"):
        shelf.open("w")


def test_a_file_under_another_name_is_refused(shelf: Shelf) -> None:
    """The snapshot of one workflow is not taken for another's when its file is renamed."""
    shelf.write("w", fill(value()))
    shelf.path("w").rename(shelf.path("v"))
    with pytest.raises(SnapshotCorrupt, match="another workflow"):
        shelf.open("v")
    with pytest.raises(SnapshotCorrupt, match="workflow 'w'"):
        shelf.value(shelf.path("v"), 0)


EVIL = [
    "../x",
    "a/b",
    "..\\x",
    "%2e%2e",
    "x\0y",
    "CON",
    "con",
    "NUL",
    "a" * 300,
    "A",
    "a",
    "x:y",
    "ä",
    ".",
    "..",
    "",
    "-",
]


def test_no_id_escapes_or_meets_another() -> None:
    """Names are plain, short, differ where only the case differs, and are none that a system keeps (fault H11)."""
    names = [safe_name(workflow) for workflow in EVIL]
    assert len({name.lower() for name in names}) == len(EVIL)
    for name in names:
        assert name.replace("-", "").replace("_", "").isalnum()
        assert name.isascii()
        assert len(name) <= 61
        assert name.split(".")[0].upper() not in {"CON", "NUL"}


def test_every_id_is_kept_below_the_directory(shelf: Shelf) -> None:
    """Whatever the id, its file is in the directory, and is read back."""
    for workflow in EVIL:
        shelf.write(workflow, fill(value(workflow)))
        assert shelf.path(workflow).resolve().parent == shelf.directory.resolve()
        assert shelf.open(workflow).summary["workflow"] == workflow
    assert {path.suffix for path in shelf.directory.iterdir()} == {".snapshot", ".json", ""}


def test_generations(shelf: Shelf) -> None:
    """The one before stays as generation 1, older ones leave; summaries go with their files."""
    for number in range(1, 5):
        shelf.write("w", fill(value(name=str(number), hour=number)))
    kept = {generation: shelf.value(path, generation).id for generation, path in shelf.files()}
    assert kept == {0: "4", 1: "3"}
    texts = {path.name: json.loads(path.read_text())["id"] for path in shelf.directory.glob("*.json")}
    assert texts == {f"{safe_name('w')}.snapshot.json": "4", f"{safe_name('w')}.1.snapshot.json": "3"}
    Shelf(shelf.directory.parents[1], namespace="poimen", keep=1).write("w", fill(value(name="5", hour=5)))
    assert [shelf.value(path, at).id for at, path in shelf.files()] == ["5"]


def test_what_fails_leaves_the_old_one(shelf: Shelf) -> None:
    """An error while a snapshot is written leaves the one before, and no litter (promise P7)."""
    shelf.write("w", fill(value(name="old")))

    def broken(file):
        fill(value(name="new"))(file)
        raise OSError(28, "No space left on device")

    with pytest.raises(SnapshotFailed, match="No space left"):
        shelf.write("w", broken)
    assert shelf.value(shelf.path("w"), 0).id == "old"
    assert sorted(path.name for path in shelf.directory.iterdir()) == sorted(
        [".lock", f"{safe_name('w')}.snapshot", f"{safe_name('w')}.snapshot.json"]
    )


def test_a_full_disk_leaves_the_old_one(shelf: Shelf) -> None:
    """A file that may not grow is a `SnapshotFailed`, and the old snapshot is whole (promise P7)."""
    shelf.write("w", fill(value(name="old")))
    before = shelf.path("w").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(SnapshotFailed, match="File too large"):
            shelf.write("w", fill(value(name="new"), 20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert shelf.path("w").read_bytes() == before
    assert not list(shelf.directory.glob(".*.tmp"))


def test_no_directory_no_snapshot(tmp_path: Path) -> None:
    """Where the directory cannot be made, or is a link, the error says so, and nothing is written through the link."""
    (tmp_path / "snapshots").write_text("in the way")
    with pytest.raises(SnapshotFailed, match="is a file, not a directory"):
        Shelf(tmp_path, namespace="poimen", keep=2).write("w", fill(value()))
    (tmp_path / "snapshots").unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "snapshots").symlink_to(tmp_path / "other")
    with pytest.raises(SnapshotFailed, match="symbolic link"):
        Shelf(tmp_path, namespace="poimen", keep=2).write("w", fill(value()))
    assert not list((tmp_path / "other").iterdir())


def test_namespaces_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    """Two namespaces with one data directory: neither sees, pushes out or removes the other's snapshots."""
    ours, theirs = (Shelf(tmp_path, namespace=name, keep=1) for name in ("ours", "theirs"))
    ours.write("nightly", fill(value("nightly", name="ours")))
    theirs.write("nightly", fill(value("nightly", name="theirs")))
    assert [path.parent.name for _, path in (*ours.files(), *theirs.files())] == ["ours", "theirs"]
    assert theirs.remove("nightly") == 1
    assert ours.open("nightly").summary["id"] == "ours"


def test_one_that_was_replaced_meanwhile(shelf: Shelf) -> None:
    """Who looked at a snapshot does not get the newer one that took its place in the meantime under its id."""
    shelf.write("w", fill(value(name="old")))
    assert shelf.open("w", snapshot_id="old").summary["id"] == "old"
    shelf.write("w", fill(value(name="new", hour=2)))
    with pytest.raises(SnapshotConflict, match="'old' of 'w' was replaced"):
        shelf.open("w", snapshot_id="old")


def test_a_link_in_the_place_of_the_file(shelf: Shelf, tmp_path: Path) -> None:
    """A link in the place of a snapshot or its summary is refused; what it leads to is untouched (fault H11)."""
    shelf.write("v", fill(value("v")))
    victim = tmp_path / "victim"
    for suffix in (".snapshot", ".snapshot.json"):
        victim.write_text("mine")
        link = shelf.directory / f"{safe_name('w')}{suffix}"
        link.symlink_to(victim)
        with pytest.raises(SnapshotFailed, match="symbolic link"):
            shelf.write("w", fill(value()))
        assert victim.read_text() == "mine"
        link.unlink()


def test_only_its_owner_may_read(shelf: Shelf) -> None:
    """Files and directory are their owner's alone: arguments and results stand in them."""
    shelf.write("w", fill(value()))
    assert shelf.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in shelf.directory.iterdir()} == {0o600}


def test_litter_of_the_killed_is_swept(shelf: Shelf) -> None:
    """What a killed process left is removed after an hour by the next one that writes; what is fresh stays."""
    shelf.write("w", fill(value()))
    old, fresh = shelf.directory / ".x.snapshot.1.aa.tmp", shelf.directory / ".x.snapshot.2.bb.tmp"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    shelf.write("w", fill(value()))
    assert not old.exists()
    assert fresh.exists()


def test_memory_does_not_grow_with_the_body() -> None:
    """A body is written in pieces of about a megabyte at most, whatever its size."""

    class Sink(io.RawIOBase):
        largest = 0

        def write(self, data):
            self.largest = max(self.largest, len(data))
            return len(data)

    sink, noise = Sink(), random.Random(1)
    writer = SnapshotWriter(sink, HEADER)
    for number in range(40):
        writer.section("chunks", number, noise.randbytes(1 << 18))
    writer.finish(value().packed())
    assert 0 < sink.largest <= 1 << 20
