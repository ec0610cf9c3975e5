"""The audit log's files: sealing beside a bare append, verifying all of it, proofs; and what tampering and kills do."""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from poimen_tasks.audit.blocks import encode
from poimen_tasks.audit.log import Line, Lines, SealedLog
from poimen_tasks.audit.proof import prove_growth, prove_line
from poimen_tasks.audit.verify import verify
from poimen_tasks.errors import PoimenError
from tests.bench.appending import EVERY, append
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds
from tests.conftest import ROOT

__all__ = ["audit_log", "audit_log_kills", "audit_log_tampering"]

_ORIGIN = "bench.example"
_BEGIN = 1_764_417_600_000
_GROUP = 1_000
# Groups that are sealed at once: a round of a sealer that has work waiting.
_ROUND = 4
# An event as the system writes it, about 300 bytes.
_EVENT = (
    '{"event_id":"e%d","event_type":"item.finished","workflow_id":"nightly-2025-11-29","task_id":"T%d",'
    '"actor":"worker@host-1","timestamp":"2025-11-29T12:00:00.000000Z","action":"item finished","reasoning":"",'
    '"input":null,"output":null,"status":"success","error":null,"metadata":{"batch_id":"b1","position":%d}}'
)


def _lines(start: int, end: int) -> list[Line]:
    return [
        Line("e1", f"{_BEGIN + at // 5}-{at % 5}", 0, True, (_EVENT % (at, at, at)).encode())
        for at in range(start, end)
    ]


def audit_log(bench: Bench) -> Iterator[Row]:
    """Append and seal, verify, prove."""
    bench.stop()
    count = bench.size(1_000_000, 20_000)
    with tempfile.TemporaryDirectory(prefix="audit-") as place:
        log = Path(place) / "audit"
        yield from _sealing(Path(place), log, count)
        yield _verifying(log, count)
        yield from _proving(log, Path(place) / "older", count, bench.size(500, 50))


def _sealing(place: Path, directory: Path, count: int) -> Iterator[Row]:
    """Side by side: a part into the log, the same lines into a file."""
    parts, each = 5, count // 5
    position, tries = iter(range(parts + 1)), iter(range(parts + 1))

    with SealedLog.open(directory, origin=_ORIGIN) as log:

        def ours() -> float:
            part = next(position)
            groups = [_lines(at, at + _GROUP) for at in range(part * each, (part + 1) * each, _GROUP)]
            return each / seconds(lambda: _seal_groups(log, groups))

        def reference() -> float:
            return each / append(place / f"bare-{next(tries)}", encode(0, Lines.of(_lines(0, each))).splitlines())

        taken = alternating(parts, ours=ours, bare=reference)
        shutil.copy(directory / "checkpoint", place / "older")
        log.append(_lines(count, count + 1))
        log.seal()
    yield Row(
        name="audit log: lines a second, sealed by four thousand, tiles and checkpoints on",
        unit="/s",
        ours=middle(taken["ours"]),
        reference=middle(taken["bare"]),
        against=f"append of the same lines, one by one, fdatasync every {EVERY:,}",
        target=Target(of="ratio", at_least=0.2),
        samples=taken,
    )


def _seal(log: SealedLog, lines: Sequence[Line]) -> None:
    log.append(lines, day="2025-11-29")
    log.seal()


def _seal_groups(log: SealedLog, groups: Sequence[Sequence[Line]]) -> None:
    for at, group in enumerate(groups, 1):
        log.append(group, day="2025-11-29")
        if not at % _ROUND or at == len(groups):
            log.seal()


# In a process of its own, as `poimen audit verify` is: where there are other threads it does not fork.
_VERIFY = """
import os, sys, time
from pathlib import Path
from poimen_tasks.audit.keys import public_key_at
from poimen_tasks.audit.verify import verify
directory = Path(sys.argv[1])
began, used = time.perf_counter(), os.times()
report = verify(directory, key=public_key_at(directory / "key.pub"))
took, now = time.perf_counter() - began, os.times()
print(report.ok and report.lines, took, sum(now[:4]) - sum(used[:4]))
"""


def _verifying(directory: Path, count: int) -> Row:
    command = [sys.executable, "-c", _VERIFY, str(directory)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    if told[0] != str(count + 1):
        raise RuntimeError(f"the log is not whole: {told}")
    took, cpu = float(told[1]), float(told[2])
    return Row(
        name=f"audit log: lines verified a second, of {count:,}",
        unit="/s",
        ours=count / took,
        target=Target(of="ours", at_least=200_000),
        samples={"seconds": took, "cpu_us_per_line": cpu / count * 1e6, "cores": os.cpu_count()},
    )


def _proving(directory: Path, older: Path, count: int, proofs: int) -> Iterator[Row]:
    chance = random.Random(1)
    for name, prove in (
        ("a line is in it", lambda: prove_line(directory, chance.randrange(count))),
        ("it grew", lambda: prove_growth(directory, older)),
    ):
        samples = sorted(seconds(prove) * 1e3 for _ in range(proofs))
        yield Row(
            name=f"audit log: a proof that {name}, p99, of {count:,} lines",
            unit="ms",
            ours=samples[len(samples) * 99 // 100],
            target=Target(of="ours", at_most=5),
            samples={"p50": samples[len(samples) // 2], "most": samples[-1]},
        )


def audit_log_tampering(bench: Bench) -> Iterator[Row]:
    """Every line deleted, exchanged, written twice; sampled bits of every file; files cut: how many were missed."""
    size, bits = bench.size(1_000, 100), bench.size(5_000, 100)
    with tempfile.TemporaryDirectory(prefix="audit-") as place:
        log = Path(place) / "audit"
        with SealedLog.open(log, origin=_ORIGIN, segment_bytes=60_000) as sealed:
            for at in range(0, size, 100):
                _seal(sealed, _lines(at, at + 100))
        tried = missed = 0
        for spoil in (*_spoiled_lines(log), *_spoiled_files(log, bits)):
            tried += 1
            missed += not spoil()
    yield Row(
        name=f"audit log: changes that verify did not find, of {tried:,}, {size:,} lines",
        unit="",
        ours=missed,
        target=Target(of="ours", at_most=0),
        samples={"tried": tried},
    )


def _spoiled_lines(log: Path) -> Iterator[Callable[[], bool]]:
    for path in sorted((log / "segments").iterdir()):
        lines = path.read_bytes().splitlines(keepends=True)
        for at, line in enumerate(lines):
            other = at + 1 if at + 1 < len(lines) else at - 1
            swapped = list(lines)
            swapped[at], swapped[other] = swapped[other], swapped[at]
            for made in ([*lines[:at], *lines[at + 1 :]], swapped, [*lines[: at + 1], line, *lines[at + 1 :]]):
                yield partial(_found, log, path, b"".join(made))


def _spoiled_files(log: Path, bits: int) -> Iterator[Callable[[], bool]]:
    chance = random.Random(3)
    files = [path for path in sorted(log.rglob("*")) if path.is_file() and path.name != "lock"]
    for at in range(bits):
        path = files[at % len(files)]
        wrong = bytearray(path.read_bytes())
        bit = chance.randrange(len(wrong) * 8)
        wrong[bit // 8] ^= 1 << bit % 8
        cut = bytes(wrong[: chance.randrange(len(wrong))])
        yield partial(_found, log, path, bytes(wrong))
        yield partial(_found, log, path, cut)


def _found(log: Path, path: Path, data: bytes) -> bool:
    before, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    path.write_bytes(data)
    path.chmod(mode)
    try:
        return not verify(log).ok
    except PoimenError:
        return True
    finally:
        path.unlink()
        path.write_bytes(before)
        path.chmod(mode)


def audit_log_kills(bench: Bench) -> Iterator[Row]:
    """Sealers killed at seeded calls of the disk, every second one with what was not synced."""
    kills = bench.size(1_000, 20)
    with tempfile.TemporaryDirectory(prefix="audit-") as place:
        command = [sys.executable, "-m", "tests.unit.audit_kills", str(Path(place) / "audit"), "1", str(kills)]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    counts = ast.literal_eval(done.stdout) if done.returncode == 0 else {"fault": done.stderr[-2_000:]}
    yield Row(
        name=f"audit log: lines lost, twice or out of order after {kills:,} kills of a sealer",
        unit="",
        ours=counts.get("faults", 1),
        target=Target(of="ours", at_most=0),
        samples=counts,
    )
