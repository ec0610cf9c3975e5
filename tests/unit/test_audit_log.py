"""The sealed log on disk: what is written, and what happens when the disk, or somebody, does not behave."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import zlib

import pytest

from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.keys import Signer, Verifier, public_key_at
from poimen_tasks.audit.lines import Place, follows, head_of, problem_of
from poimen_tasks.audit.log import Line, SealedLog, read_lines, sealed_size
from poimen_tasks.audit.merkle import leaf_hash, root_of
from poimen_tasks.audit.note import open_checkpoint
from poimen_tasks.audit.proof import prove_growth, prove_line
from poimen_tasks.audit.segments import line_at
from poimen_tasks.audit.verify import verify
from poimen_tasks.errors import AuditCorrupt, AuditDiskError, AuditUnavailable, InvalidArgument, SealerConflict
from tests.conftest import ROOT
from tests.unit.audit_logs import BEGIN, ORIGIN, build, entries, entry, event, files_of


@pytest.fixture
def place(tmp_path):
    """Where a log may be."""
    return tmp_path / "audit"


def opened(place, **options):
    """A log, open for writing."""
    return SealedLog.open(place, origin=ORIGIN, **options)


def segments(place):
    """Its segments, in order."""
    return sorted((place / "segments").iterdir())


# ------------------------------------------------------------------------------------------- what is written
def test_a_line_on_disk(place):
    """A line is strict JSON in ASCII with its number, place in the stream, CRC and event (promise A3)."""
    with opened(place) as log:
        log.append(
            [Line("ab12", "1732893000000-7", 0, False, event(1)), Line("ab12", "1732893000000-7", 1, True, b"{}")]
        )
        assert (log.size, log.unsealed, sealed_size(place)) == (0, 2, 0)
        assert log.seal() == log.size == sealed_size(place) == 2
    crc, empty = zlib.crc32(event(1)), zlib.crc32(b"{}")
    frame = b'{"seq":%d,"epoch":"ab12","id":"1732893000000-7","n":%d,%b"crc":"%08x","event":%b}\n'
    assert segments(place)[0].read_bytes() == (
        frame % (0, 0, b"", crc, event(1)) + frame % (1, 1, b'"last":true,', empty, b"{}")
    )
    assert segments(place)[0].name == "00000000000000000000.jsonl"


def test_the_checkpoint_signs_the_tree_over_the_lines(place):
    """The signed root is that of RFC 6962 over the lines' bytes, without their newlines (promise A6)."""
    build(place, 300)
    lines = [line for _, line in read_lines(place)]
    found = open_checkpoint((place / "checkpoint").read_bytes(), public_key_at(place / "key.pub"), where="it")
    assert (found.size, found.origin) == (300, ORIGIN)
    assert found.root == root_of(b"".join(map(leaf_hash, lines)))
    assert all(json.loads(line)["seq"] == at for at, line in enumerate(lines))


def test_a_log_goes_on_where_it_was(place):
    """Opening a log again changes nothing of it, and the next line follows the last (promise A6)."""
    build(place, 300)
    before = files_of(place)
    with opened(place) as log:
        assert (log.size, log.recovered, log.cursor) == (300, "", ("e1", f"{BEGIN + 299}-0"))
        assert files_of(place) == before
        log.append(entry(300))
        log.seal()
    assert line_at(place, 300).startswith(b'{"seq":300,')
    assert verify(place).ok


def test_segments_are_closed_by_size_and_by_day(place):
    """A segment that is full, or of yesterday, is closed read-only; the next is named by its first line."""
    with opened(place, segment_bytes=2_500) as log:
        for number in range(20):
            log.append(entry(number))
        log.append(entry(20, ms=BEGIN + 86_400_000))
        log.append(entry(21, ms=BEGIN + 86_400_001))
        log.seal()
    found = segments(place)
    assert len(found) > 3
    assert [int(path.stem) for path in found][-1] == 20
    assert [oct(path.stat().st_mode & 0o777) for path in found[:-1]] == ["0o444"] * (len(found) - 1)
    assert all(path.stat().st_size <= 2_500 for path in found)
    assert verify(place).ok
    with opened(place, segment_bytes=2_000) as log:
        assert log.size == 22


def test_a_day_is_the_callers_word(place):
    """A sealer may say which day it is; else the first line's id does."""
    with opened(place) as log:
        log.append(entry(0), day="2025-01-01")
        log.append(entry(1), day="2025-01-01")
        log.append(entry(2), day="2025-01-02")
        log.seal()
    assert [int(path.stem) for path in segments(place)] == [0, 2]


def test_lines_are_read_from_any_number_on(place):
    """Readers begin at any line, and never see one behind the checkpoint unless they ask."""
    build(place, 250, segment_bytes=5_000)
    with opened(place, segment_bytes=5_000) as log:
        log.append(entry(250))
        for start in (0, 1, 99, 100, 249, 250, 400):
            assert [seq for seq, _ in read_lines(place, start)] == list(range(start, 250))
        assert [seq for seq, _ in read_lines(place, 249, unsealed=True)] == [249, 250]
    assert head_of(line_at(place, 123)).seq == 123
    with pytest.raises(InvalidArgument, match="the log has no line 300"):
        line_at(place, 300)


def test_a_line_that_is_being_written_is_none_yet(place):
    """Readers stop at the last newline."""
    build(place, 3)
    path = segments(place)[0]
    with path.open("ab") as file:
        file.write(b'{"seq":3,"epo')
    assert [seq for seq, _ in read_lines(place, unsealed=True)] == [0, 1, 2]


# ------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([Line("e1", "5-0", 0, True, b"[]")], "no JSON object"),
        ([Line("e1", "5-0", 0, True, b'{"a":"\n"}')], "control character"),
        ([Line("e1", "5-0", 0, True, '{"a":"ä"}'.encode())], "not ASCII"),
        ([Line("E1", "5-0", 0, True, b"{}")], "epoch 'E1' is not 1 to 64 hex digits"),
        ([Line("e1", "5", 0, True, b"{}")], "id '5' is no id of a stream"),
        ([Line("e1", "5-0\n", 0, True, b"{}")], "is no id of a stream"),
        ([Line("e1", "5-0", 1, True, b"{}")], "line 1 of entry 5-0"),
        ([Line("e1", "5-0", 0, False, b"{}")], "only half there; append whole entries"),
        ([Line("e1", "5-0", 0, True, b"{}"), Line("e1", "5-0", 0, True, b"{}")], "stands behind 5-0"),
        ([Line("e1", "5-0", 0, True, b"{}"), Line("e1", "4-9", 0, True, b"{}")], "stands behind 5-0"),
        ([Line("e1", "5-0", 0, False, b"{}"), Line("e1", "5-0", 2, True, b"{}")], "line 1 of it is missing"),
        ([Line("e1", "5-0", 0, True, b"{}"), Line("e2", "6-0", 0, True, b"{}")], "without an audit.epoch event"),
    ],
)
def test_lines_that_may_not_stand_there(place, lines, why):
    """A line that is none, or out of the stream's order, is refused before anything is written; the log goes on."""
    with opened(place) as log:
        with pytest.raises(InvalidArgument, match=why):
            log.append(lines)
        log.append(entry(0))
        assert log.seal() == 1
    assert verify(place).ok


def test_marks_allow_what_order_forbids(place):
    """Behind audit.epoch the stream is another, behind store.rollback it is at an earlier id; audit.… repeats one."""
    with opened(place) as log:
        log.append(entry(5))
        log.append(entry(5, event_type="audit.recovered"))
        log.append(entry(3, event_type="store.rollback"))
        log.append(entry(4))
        log.append(entry(1, epoch="e2", event_type="audit.epoch"))
        log.append(entry(2, epoch="e2"))
        assert log.seal() == 6
    assert verify(place).ok


def test_what_a_line_may_look_like():
    """What is wrong with a line is said in words."""
    good = b'{"seq":7,"epoch":"e1","id":"5-0","n":0,"last":true,"crc":"%08x","event":{}}' % zlib.crc32(b"{}")
    before = Place(b"e1", 4, 0, 0, True)
    assert problem_of(good, 7, before)[1] == ""
    assert problem_of(good, 8, before)[1] == "it says seq 7 where line 8 has to stand"
    assert "CRC" in problem_of(good.replace(b"{}}", b'{"a":1}}'), 7, before)[1]
    assert problem_of(b"", 7, before)[1] == "it is blank"
    assert problem_of(b"hello", 7, before)[1] == 'it does not begin with {"seq":'
    assert problem_of(good[:-3], 7, before)[1] == "it ends early"
    assert problem_of(good.replace(b'"n":0', b'"n":00'), 7, before)[1].startswith("its keys or values")
    assert "control character" in problem_of(good.replace(b"{}}", b'{"\t":1}}'), 7, before)[1]
    assert "stands behind 9-0" in problem_of(good, 7, Place(b"e1", 9, 0, 0, True))[1]
    assert follows(None, Place(b"e1", 1, 0, 0, True), "") == ""


# ------------------------------------------------------------------------------------------- one writer
def test_a_second_sealer_is_refused(place):
    """One process writes a log; another one is told which, and gets it when the first is gone (promise A6).

    So nobody rotates, renames or writes to another one's files (fault H05).
    """
    with opened(place) as log:
        log.append(entry(0))
        with pytest.raises(SealerConflict, match=f"another sealer writes this log, process {os.getpid()}"):
            opened(place)
        assert log.seal() == 1
    with opened(place) as log:
        assert log.size == 1


def test_a_second_process_is_refused(place):
    """The same between processes, where the first one was not closed."""
    code = (
        "import sys, pathlib\nfrom poimen_tasks.audit.log import SealedLog\nfrom poimen_tasks.errors import *\n"
        "try: SealedLog.open(pathlib.Path(sys.argv[1]), origin='log.example')\nexcept SealerConflict: sys.exit(7)"
    )
    with opened(place):
        done = subprocess.run([sys.executable, "-c", code, str(place)], cwd=ROOT, check=False)
        assert done.returncode == 7
    assert subprocess.run([sys.executable, "-c", code, str(place)], cwd=ROOT, check=False).returncode == 0


def test_verifying_and_proving_beside_a_sealer(place):
    """Whoever verifies, reads or proves while the log is sealed finds nothing wrong (promise A6)."""
    build(place, 10)
    code = (
        "import sys, pathlib\nfrom tests.unit.audit_logs import *\n"
        "log = SealedLog.open(pathlib.Path(sys.argv[1]), origin=ORIGIN, segment_bytes=30_000)\n"
        "for number in range(10, 1_500, 7): log.append(entries(number, number + 7)); log.seal()\n"
    )
    sealer = subprocess.Popen([sys.executable, "-c", code, str(place)], cwd=ROOT)
    older, sizes = place.parent / "older", []
    while sealer.poll() is None:
        shutil.copy(place / "checkpoint", older)
        report = verify(place, against=[older])
        assert report.ok, report.to_dict()
        assert prove_line(place, report.size - 1).index == report.size - 1
        assert prove_growth(place, older).index <= report.size
        assert len(list(read_lines(place))) >= report.size
        sizes.append(report.size)
    assert sealer.returncode == 0
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 1


def test_another_file_in_place_of_the_lock(place):
    """A sealer whose lock was removed seals nothing any more: another one may have the new file."""
    with opened(place) as log:
        log.append(entry(0))
        (place / "lock").unlink()
        with pytest.raises(SealerConflict, match="removed or replaced"):
            log.seal()
        with pytest.raises(AuditDiskError, match="not open any more"):
            log.append(entry(1))
    with opened(place) as log:
        assert log.size == 1


def test_a_segment_that_others_touched(place):
    """A segment that was rotated away, or written to by somebody else, is found before it is signed (fault H05)."""
    with opened(place) as log:
        log.append(entry(0))
        log.seal()
        path = segments(place)[0]
        with path.open("ab") as file:
            file.write(b"hello\n")
        log.append(entry(1))
        with pytest.raises(AuditCorrupt, match="somebody else wrote to it"):
            log.seal()
    shutil.rmtree(place)
    with opened(place) as log:
        log.append(entry(0))
        segments(place)[0].rename(place / "away")
        with pytest.raises(AuditCorrupt, match="renamed, removed or replaced"):
            log.seal()


def test_a_log_of_another_name_or_none(place):
    """A log has one name; where there is none, readers and a sealer that may not begin one say so."""
    with pytest.raises(AuditUnavailable, match="there is no audit log; `poimen audit seal` begins one"):
        SealedLog.open(place, origin=ORIGIN, create=False)
    with pytest.raises(AuditUnavailable, match="there is no audit log"):
        verify(place)
    assert not place.exists()
    build(place, 1)
    with pytest.raises(InvalidArgument, match=r"is of 'log\.example', not of 'other'"):
        SealedLog.open(place, origin="other")


def test_a_directory_that_cannot_be_used(place, tmp_path):
    """A file where the directory should be is one clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditDiskError, match="file: File exists"):
        SealedLog.open(tmp_path / "file" / "audit", origin=ORIGIN)
    with pytest.raises(AuditUnavailable, match="there is no audit log"):
        verify(tmp_path / "file")
    build(place, 1)
    if os.geteuid():
        (place / "segments").chmod(0)
        with pytest.raises(AuditUnavailable, match="Permission denied"):
            verify(place)
        (place / "segments").chmod(0o755)


def test_unreadable_files_are_one_error(place):
    """A segment that is a directory, or a checkpoint that is one, is one clear error and no trace."""
    build(place, 3)
    (place / "checkpoint").rename(place / "away")
    (place / "checkpoint").mkdir()
    for ask in (verify, sealed_size, opened):
        with pytest.raises(AuditUnavailable, match="Is a directory"):
            ask(place)


# ------------------------------------------------------------------------------------------- the disk
def seal_all(place, numbers, **options):
    """Append and seal one entry after the other."""
    with opened(place, **options) as log:
        for number in numbers:
            log.append(entry(number))
            log.seal()


class Fault(Disk):
    """Fails the chosen call, once it has counted down to it; the calls are those of `Disk`."""

    def __init__(self, call, after, error):
        self.call, self.after, self.error, self.failed = call, after, error, 0

    def _count(self, call, path):
        if call == self.call:
            self.after -= 1
            if self.after < 0:
                self.failed += 1
                raise AuditDiskError(f"{path}: {os.strerror(self.error)}")

    def write(self, fd, data, path):  # noqa: D102
        if self.call == "write" and not self.after and data:
            super().write(fd, data[: len(data) // 2], path)
        self._count("write", path)
        super().write(fd, data, path)

    def sync(self, fd, path):  # noqa: D102
        self._count("sync", path)
        super().sync(fd, path)

    def sync_path(self, path):  # noqa: D102
        self._count("sync_path", path)
        super().sync_path(path)

    def put(self, path, data):  # noqa: D102
        self._count("put", path)
        super().put(path, data)

    def rename(self, source, target):  # noqa: D102
        self._count("rename", target)
        super().rename(source, target)


@pytest.mark.parametrize("call", ["write", "sync", "sync_path", "put", "rename"])
@pytest.mark.parametrize("after", range(4))
def test_a_failure_of_any_call_loses_nothing_sealed(place, call, after):
    """Where a write, fsync or rename fails, what was sealed stays, and the next sealer goes on (promise A6)."""
    build(place, 260, segment_bytes=20_000)
    disk = Fault(call, after, errno.ENOSPC)
    with pytest.raises(AuditDiskError, match="No space left"):
        seal_all(place, range(260, 1_000), disk=disk, segment_bytes=20_000)
    assert disk.failed
    assert verify(place).ok
    with opened(place) as log:
        size = log.size
        assert size >= 260
        log.append(entries(size, size + 10))
        assert log.seal() == size + 10
    assert [head_of(line).place.ms - BEGIN for _, line in read_lines(place)] == list(range(size + 10))
    assert verify(place).ok


def test_a_failed_fsync_is_never_tried_again(place):
    """After an fsync that failed the log is closed for good: a second one would report success falsely (promise A6)."""
    disk = Fault("sync", 10**9, errno.EIO)
    log = opened(place, disk=disk)
    log.append(entry(0))
    disk.after = 0
    with pytest.raises(AuditDiskError, match="Input/output error"):
        log.seal()
    disk.after = 10**9
    for use in (log.seal, lambda: log.append(entry(1))):
        with pytest.raises(AuditDiskError, match="not open any more"):
            use()
    log.close()
    assert disk.failed == 1
    assert sealed_size(place) == 0


def test_fsync_errors_of_the_kernel_are_told(tmp_path):
    """An fsync that the kernel itself refuses is an error that names the file."""
    read, write = os.pipe()
    with pytest.raises(AuditDiskError, match=r"fsync of .*it: Invalid argument"):
        Disk().sync(write, tmp_path / "it")
    os.close(read)
    os.close(write)
    with pytest.raises(AuditDiskError, match="No space left on device"):
        Disk().write(os.open("/dev/full", os.O_WRONLY), b"x", tmp_path / "it")


def test_a_full_disk(place):
    """A real limit of the kernel on the size of files: sealed lines stay, and the log goes on when there is room."""
    build(place, 50)
    before = sealed_size(place)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = segments(place)[0].stat().st_size + 1_500
    code = (
        "import sys, pathlib, resource, signal\nfrom tests.unit.audit_logs import *\n"
        "from poimen_tasks.errors import AuditDiskError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {hard}))\n"
        "log = SealedLog.open(pathlib.Path(sys.argv[1]), origin=ORIGIN)\n"
        "try:\n  for number in range(50, 500): log.append(entry(number)); log.seal()\n"
        "except AuditDiskError as error: print(error); sys.exit(7)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert "File too large" in done.stdout
    assert verify(place).ok
    with opened(place) as log:
        assert before < log.size
        assert "cut" in log.recovered
        log.append(entries(log.size, 500))
        log.seal()
    assert [head_of(line).place.ms - BEGIN for _, line in read_lines(place)] == list(range(500))


def test_a_torn_end_is_cut_and_told(place):
    """A half line, or a half entry, behind the checkpoint is cut when the log is opened, and said (promise A6).

    So is anything else that stands there; no line is glued to it (fault H03).
    """
    build(place, 3)
    path = segments(place)[0]
    whole = path.read_bytes()
    with opened(place) as log:
        log.append(entry(3, lines=3))
    written = path.read_bytes()
    for end in range(len(whole) + 1, len(written)):
        path.write_bytes(written[:end])
        with opened(place) as log:
            assert (log.size, path.read_bytes()) == (3, whole)
            assert log.recovered.startswith(f"cut {end - len(whole)} bytes from line 4 of {path.name} on")
    for tail in (b"\n", b"\n\n", b"\xc3", b'{"a":1}', b'{"a":1}\n'):
        path.write_bytes(whole + tail)
        with opened(place) as log:
            assert (log.size, path.read_bytes()) == (3, whole)
            log.append(entry(3, lines=3))
        assert path.read_bytes() == written, "the next line is not glued to it"
    path.write_bytes(written)
    with opened(place) as log:
        assert (log.size, log.recovered) == (6, "")


def test_tiles_that_a_crash_took_are_written_again(place):
    """Tiles that were not synced are made from the lines, and that is said."""
    build(place, 700)
    wanted = files_of(place)
    shutil.rmtree(place / "tile")
    with opened(place) as log:
        assert (log.size, log.recovered) == (700, "wrote 4 tiles again that were missing or torn")
    found = files_of(place)
    assert {name for name in wanted if not name.endswith(".p/88") or name in found} >= set(found)
    assert verify(place).ok


def test_torn_tiles_are_mended_and_changed_ones_refused(place):
    """Tiles that a lost power left short, zeroed or ahead are mended; other hashes are tampering (promise A6)."""
    build(place, 700)
    tile, full = place / "tile/0/002.p/188", place / "tile/0/001"
    good = tile.read_bytes()
    stale = tile.with_name("200")
    for path, wrong in ((tile, good[:64]), (tile, bytes(len(good))), (full, bytes(8_192)), (stale, b"x" * 6_400)):
        path.write_bytes(wrong)
        with opened(place) as log:
            assert log.size == 700
        assert verify(place).ok
    assert tile.read_bytes() == good
    assert not stale.exists()
    tile.write_bytes(b"x" * 32 + good[32:])
    with pytest.raises(AuditCorrupt, match=r"188: hash 0 is not that of the lines, which are as they were sealed"):
        opened(place)


# ------------------------------------------------------------------------------------------- payloads
def test_payloads_are_kept_by_digest(place):
    """A payload is found by its SHA-256, is written once, and is told when it was changed, or is gone."""
    store = ContentStore(place)
    digest = store.put(b"a large payload")
    assert store.put(b"a large payload") == digest
    assert store.get(digest) == b"a large payload"
    assert list(store.problems()) == []
    store.path(digest).write_bytes(b"another payload")
    with pytest.raises(AuditCorrupt, match="does not hold what its name says"):
        store.get(digest)
    assert [why for _, why in store.problems()] == ["it does not hold what its name says"]
    with pytest.raises(AuditUnavailable, match="No such file"):
        store.get("0" * 64)
    for wrong in ("../../etc/passwd", "", "A" * 64):
        with pytest.raises(InvalidArgument, match="expected 64 hex digits"):
            store.get(wrong)


def test_no_error_shows_a_private_key(tmp_path):
    """Who takes the private file for the public one finds nothing of it on the terminal."""
    signer = Signer.of("test", bytes(range(32)))
    with pytest.raises(InvalidArgument, match="got a private one") as caught:
        Verifier.parse(signer.secret_line(), where="--key")
    assert signer.secret_line()[30:50] not in str(caught.value)
