"""Nobody changes a sealed log unseen: every line, sampled bits of every file, ends cut off, the log rolled back."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from contextlib import contextmanager

import pytest

from poimen_tasks.audit import walk
from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.keys import Signer, public_key_at
from poimen_tasks.audit.log import SealedLog, read_lines
from poimen_tasks.audit.merkle import leaf_hashes, root_of
from poimen_tasks.audit.note import Checkpoint, sign_checkpoint
from poimen_tasks.audit.tiles import WIDTH, Edge, Tile
from poimen_tasks.audit.verify import verify
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable
from tests.unit.audit_logs import ORIGIN, build, entries, entry, files_of

SIZE, HALF = 1_000, 612


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """A log of a thousand lines in some segments, and its checkpoint at 612 lines; tests put back what they change."""
    place = tmp_path_factory.mktemp("sealed") / "audit"
    build(place, HALF, segment_bytes=40_000, step=68)
    shutil.copy(place / "checkpoint", place.parent / "older")
    shutil.copytree(place, place.parent / "before")
    with SealedLog.open(place, origin=ORIGIN, segment_bytes=40_000) as log:
        payload = ContentStore(place).put(b"a payload " * 100)
        content = {"reasoning": {"sha256": payload, "bytes": 1_000}}
        for number in range(HALF, SIZE - 1):
            log.append(entry(number))
        log.append(entry(SIZE - 1, content=content))
        log.seal()
    assert verify(place, against=[place.parent / "older"]).to_dict()["problems"] == []
    return place


@contextmanager
def changed(path, data):
    """The file with other bytes, None: without it, for a while."""
    before, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    if data is not None:
        path.write_bytes(data)
        path.chmod(mode)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(before)
        path.chmod(mode)


def found(place, **options):
    """Whether a verification finds anything, and its report where it gives one."""
    try:
        report = verify(place, **options)
    except (AuditUnavailable, AuditCorrupt):
        return True, None
    return not report.ok, report


def places(sealed):
    """Segment and position in it of every line."""
    return [
        (path, at) for path in sorted((sealed / "segments").iterdir()) for at in range(path.read_bytes().count(b"\n"))
    ]


def delete(lines, at):
    """The lines without one; the bad line is the one that follows."""
    return lines[:at] + lines[at + 1 :], 0


def swap(lines, at):
    """The line and one beside it exchanged; the first of them is bad."""
    other = at + 1 if at + 1 < len(lines) else at - 1
    made = list(lines)
    made[at], made[other] = made[other], made[at]
    return made, min(0, other - at)


def duplicate(lines, at):
    """The line twice; the second one is bad."""
    return [*lines[: at + 1], *lines[at:]], 1


# ------------------------------------------------------------------------------------------- lines
@pytest.mark.parametrize("way", range(3))
def test_every_line_counts(sealed, way):
    """Each of 1,000 lines deleted, exchanged or written twice is found, and named by its number (promise A6)."""
    spoil = (delete, swap, duplicate)
    for seq, (path, at) in list(enumerate(places(sealed)))[way::3]:
        lines = path.read_bytes().splitlines(keepends=True)
        made, shift = spoil[(seq // 3 + way) % 3](lines, at)
        with changed(path, b"".join(made)):
            bad, report = found(sealed)
        assert bad, f"line {seq}"
        assert report.problems[0].seq == seq + shift, report.problems[0]
        assert report.problems[0].file.parent == path.parent


def test_a_line_with_everything_around_it_put_right(sealed):
    """A line whose event was replaced, with its CRC, is found by the tree; the tile names the line (promise A6)."""
    path, at = places(sealed)[700]
    lines = path.read_bytes().splitlines(keepends=True)
    was = b'"action":"line 700.0"'
    event = lines[at].split(b'"event":')[1].rstrip(b"\n")[:-1].replace(was, b'"action":"line 7000.0"')
    head = lines[at].split(b'"crc":')[0]
    lines[at] = head + b'"crc":"%08x","event":%b}\n' % (zlib.crc32(event), event)
    with changed(path, b"".join(lines)):
        _, report = found(sealed)
        assert report.problems[0].seq == 700
        assert "its bytes are not those that were sealed" in report.problems[0].why
        tile = Tile(0, 700 // WIDTH)
        hashes = leaf_hashes([line for _, line in read_lines(sealed)])[tile.number * WIDTH * 32 :][: WIDTH * 32]
        with changed(sealed / tile.name, hashes):
            _, report = found(sealed)
        assert f"the {SIZE} lines do not lead to the root that it signs" in report.problems[0].why


def test_a_log_written_anew_with_another_key(sealed, tmp_path):
    """A whole log made anew is found by the public key that was handed out, and by an older checkpoint (promise A6)."""
    key = public_key_at(sealed / "key.pub")
    forged = build(tmp_path / "forged", SIZE)
    assert verify(forged).ok
    assert "did not sign it" in verify(forged, key=key).problems[0].why
    report = verify(forged, against=[sealed.parent / "older"])
    assert "did not sign it" in report.problems[0].why


def test_a_log_written_anew_with_the_stolen_key(sealed, tmp_path):
    """Who has the private key can sign another history, but not one that an older checkpoint allows (promise A6)."""
    forged = tmp_path / "forged"
    forged.mkdir()
    for name in ("key", "key.pub"):
        shutil.copy(sealed / name, forged / name)
    with SealedLog.open(forged, origin=ORIGIN) as log:
        log.append([*entry(0, action="another"), *entries(1, SIZE)])
        log.seal()
    assert verify(forged, key=public_key_at(sealed / "key.pub")).ok
    report = verify(forged, against=[sealed.parent / "older"])
    assert [problem.why for problem in report.problems] == [
        f"the first {HALF} lines of the log are not those that it signs: the log was changed"
    ]


@pytest.mark.parametrize("parallel", [0, 1 << 30])
def test_long_logs_are_read_in_parts(sealed, monkeypatch, parallel):
    """A log that is read in parts, by one process or several, is judged as one that is read at once (promise A6)."""
    monkeypatch.setattr(walk, "_PART", 3_000)
    monkeypatch.setattr(walk, "_PARALLEL", parallel)
    report = verify(sealed, against=[sealed.parent / "older"])
    assert (report.ok, report.lines) == (True, SIZE)
    chance = random.Random(4)
    lines_of = places(sealed)
    for seq in chance.sample(range(SIZE), 25):
        path, at = lines_of[seq]
        lines = path.read_bytes().splitlines(keepends=True)
        for spoil in (delete, swap, duplicate):
            made, shift = spoil(lines, at)
            with changed(path, b"".join(made)):
                assert verify(sealed).problems[0].seq == seq + shift


# ------------------------------------------------------------------------------------------- bits and ends
def test_sampled_bits_of_every_file(sealed):
    """A flipped bit anywhere, in lines, tiles, checkpoint, keys and payloads, is found; 150 of them (promise A6)."""
    chance = random.Random(20251129)
    files = files_of(sealed)
    picks = [(name, bit) for name in files for bit in chance.sample(range(len(files[name]) * 8), 8)]
    lines = [name for name in files if name.startswith("segments/")]
    picks += [
        (name, chance.randrange(len(files[name]) * 8)) for name in chance.choices(lines, k=max(0, 150 - len(picks)))
    ]
    unseen = []
    for name, bit in picks:
        wrong = bytearray(files[name])
        wrong[bit // 8] ^= 1 << bit % 8
        with changed(sealed / name, bytes(wrong)):
            if not found(sealed)[0]:
                unseen.append((name, bit))
    assert unseen == []
    assert {name.split("/")[0] for name, _ in picks} >= {"segments", "tile", "checkpoint", "key", "key.pub", "content"}


def test_truncated_and_missing_files(sealed):
    """A file that was cut anywhere, emptied, or taken away is found (promise A6)."""
    chance = random.Random(7)
    kept = {tile.name for tile, _ in edge_of(sealed).partial()}
    for name, data in files_of(sealed).items():
        cuts = [data[:size] for size in {0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(5))}]
        for wrong in cuts:
            with changed(sealed / name, wrong):
                assert found(sealed)[0], (name, len(wrong))
        with changed(sealed / name, None):
            # Partial tiles of earlier sizes may go, as C2SP tlog-tiles says; the private key stays with the sealer.
            may_go = name == "key" or (".p/" in name and name not in kept)
            assert found(sealed)[0] is not may_go, name


def edge_of(place):
    """The right edge of the tree over a log's lines."""
    edge = Edge()
    edge.extend(leaf_hashes([line for _, line in read_lines(place)]))
    return edge


def test_a_log_cut_at_its_end(sealed):
    """The last line, entry or segment taken away is found, since the checkpoint signs their number (promise A6)."""
    path = max((sealed / "segments").iterdir())
    lines = path.read_bytes().splitlines(keepends=True)
    for keep in {0, 1, len(lines) - 1, *random.Random(1).sample(range(len(lines)), 10)}:
        with changed(path, b"".join(lines[:keep])):
            bad, report = found(sealed)
        assert bad
        assert report.problems[0].seq == int(path.stem) + keep


# ------------------------------------------------------------------------------------------- rollback
def test_a_log_rolled_back(sealed):
    """An older copy of a log is whole by itself; a checkpoint that was kept elsewhere tells (promise A6)."""
    before = sealed.parent / "before"
    assert verify(before).ok
    report = verify(before, against=[sealed / "checkpoint"])
    assert f"it covers {HALF} lines, but {sealed / 'checkpoint'} signs {SIZE}" in report.problems[0].why
    assert "rolled back" in report.problems[0].why


def test_every_older_checkpoint_holds(sealed, tmp_path):
    """A log is proved to have grown from a checkpoint at any size; one of another history is told (promise A6)."""
    hashes = leaf_hashes([line for _, line in read_lines(sealed)])
    signer = Signer.parse((sealed / "key").read_text().strip(), where="key")
    paths, wrong = [], []
    for size in (0, 1, 2, 255, 256, 257, 511, 512, 767, 999, SIZE):
        for listed, root in ((paths, root_of(hashes[: size * 32])), (wrong, b"x" * 32)):
            path = tmp_path / f"{len(listed)}{root[:2].hex()}"
            path.write_bytes(sign_checkpoint(Checkpoint(ORIGIN, size, root), signer))
            listed.append(path)
    report = verify(sealed, against=paths)
    assert report.ok
    assert report.against[-1] == SIZE
    for path in wrong:
        assert [problem.file for problem in verify(sealed, against=[path]).problems] == [path]


def test_only_the_checkpoint_rolled_back(sealed):
    """Lines behind an older checkpoint are told as unsealed; the newer one proves the rollback (promise A6)."""
    newer = (sealed / "checkpoint").read_bytes()
    (sealed.parent / "newer").write_bytes(newer)
    with changed(sealed / "checkpoint", (sealed.parent / "older").read_bytes()):
        report = verify(sealed)
        assert report.notes == [f"{SIZE - HALF} lines behind the checkpoint are not sealed yet"]
        assert not verify(sealed, against=[sealed.parent / "newer"]).ok


# ------------------------------------------------------------------------------------------- what does not belong there
@pytest.mark.parametrize("name", ["segments/notes.txt", "segments/1.jsonl", "tile/0/000.bak", "content/ab/hello"])
def test_foreign_files(sealed, name):
    """A file that is no part of a log is named where it could be taken for one (promise A6)."""
    path = sealed / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("hello")
    try:
        report = verify(sealed)
        assert (report.problems[0].file, "foreign file" in report.problems[0].why) == (path, True)
    finally:
        path.unlink()
    if name.startswith("content"):
        path.parent.rmdir()


def test_a_foreign_segment_stops_the_sealer(sealed, tmp_path):
    """The sealer refuses a log with a foreign file among its segments, and one changed below the checkpoint."""
    place = shutil.copytree(sealed, tmp_path / "copy")
    (place / "segments" / "x.jsonl").write_text("")
    with pytest.raises(AuditCorrupt, match=r"x\.jsonl: a foreign file among the segments"):
        SealedLog.open(place, origin=ORIGIN)
    (place / "segments" / "x.jsonl").unlink()
    path = max((place / "segments").iterdir())
    path.write_bytes(path.read_bytes().replace(b"line 990.0", b"line 991.0"))
    with pytest.raises(AuditCorrupt, match=r"\(seq 990\): its event does not have its CRC"):
        SealedLog.open(place, origin=ORIGIN)


def test_unreadable_lines_are_named(sealed):
    """A line that is no line is reported with its place, never passed over (promise A7, fault H03)."""
    path, at = places(sealed)[5]
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (
        b"\n",
        b"hello\n",
        lines[at][:50] + b"\n",
        b"\xff" + lines[at][1:],
        lines[at].replace(b"5.0", b"5\x000"),
    ):
        with changed(path, b"".join([*lines[:at], wrong, *lines[at + 1 :]])):
            report = verify(sealed)
        assert (report.problems[0].line, report.problems[0].seq) == (6, 5)
        assert json.loads(json.dumps(report.to_dict()))["problems"][0]["seq"] == 5


def test_a_missing_payload_is_named(sealed):
    """A payload that a line names and that is gone is told with the line (promise A6)."""
    path = next(path for path in (sealed / "content").rglob("*") if path.is_file())
    with changed(path, None):
        report = verify(sealed)
    assert report.problems[0].seq == SIZE - 1
    assert "is missing" in report.problems[0].why
