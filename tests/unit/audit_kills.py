"""Kills a sealer at every step of its work, and looks after each kill whether all is there once, in order.

`python -m tests.unit.audit_kills DIRECTORY SEED KILLS` prints what it did; it fails on the first loss. Every second
kill takes the power away too: what was not synced is gone, in part, or there, as a disk may have it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.lines import head_of
from poimen_tasks.audit.log import Line, SealedLog, read_lines, sealed_size
from poimen_tasks.audit.verify import verify
from tests.unit.audit_logs import BEGIN, EPOCH, ORIGIN, event

# Kills before the log is begun anew; calls of the disk before a kill, at most; bytes of a segment.
_ROUNDS, _CALLS, _SEGMENT = 40, 60, 6_000


class _Power:
    """What a disk may forget: bytes behind the last sync of a file, and names since the last sync of a directory."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.synced: dict[Path, int] = {}
        self.names: dict[Path, bytes | None] = {}

    def fail(self) -> None:
        """Forget some of it, each by chance."""
        for path, size in self.synced.items():
            if path.exists() and path.stat().st_size > size and self._chance.random() < 0.7:
                self._cut(path, self._chance.randint(size, path.stat().st_size))
        for path, before in self.names.items():
            if self._chance.random() < 0.5:
                path.unlink(missing_ok=True)
                if before is not None:
                    path.write_bytes(before)

    @staticmethod
    def _cut(path: Path, size: int) -> None:
        path.chmod(0o644)
        os.truncate(path, size)


class _Deadly(Disk):
    """Ends the process in the chosen call: before it, in its middle, or behind it."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self._left, self._when = chance.randint(1, _CALLS), chance.choice(["before", "middle", "after"])
        self._chance, self._power = chance, _Power(chance) if seed % 2 else None

    def _die(self) -> None:
        if self._power:
            self._power.fail()
        os.kill(os.getpid(), signal.SIGKILL)

    def _at(self, call: Callable[[], Any], middle: Callable[[], Any] = lambda: None) -> Any:
        self._left -= 1
        if self._left == 0 and self._when == "before":
            self._die()
        if self._left == 0 and self._when == "middle":
            middle()
            self._die()
        done = call()
        if self._left == 0:
            self._die()
        return done

    def create(self, path: Path, *, mode: int = 0o644) -> int:
        """A new file, whose name is not synced."""
        if self._power:
            self._power.names[path], self._power.synced[path] = None, 0
        made: int = self._at(lambda: super(_Deadly, self).create(path, mode=mode))
        return made

    def write(self, fd: int, data: bytes, path: Path) -> None:
        """Bytes that are not synced; the middle is anywhere in them."""
        if self._power:
            self._power.synced.setdefault(path, os.fstat(fd).st_size)
        part = data[: self._chance.randint(0, len(data))]
        self._at(lambda: super(_Deadly, self).write(fd, data, path), lambda: os.write(fd, part))

    def sync(self, fd: int, path: Path) -> None:
        """All of a file is there from now on."""
        self._at(lambda: super(_Deadly, self).sync(fd, path))
        if self._power:
            self._power.synced[path] = os.fstat(fd).st_size

    def sync_path(self, path: Path) -> None:
        """The same; of a directory, the names in it."""
        self._at(lambda: super(_Deadly, self).sync_path(path))
        if self._power:
            if path.is_dir():
                self._power.names = {name: was for name, was in self._power.names.items() if name.parent != path}
            else:
                self._power.synced[path] = path.stat().st_size

    def put(self, path: Path, data: bytes) -> None:
        """A file of which nothing is synced."""
        if self._power and not path.exists():
            self._power.names[path] = None
        super().put(path, data)
        if self._power:
            self._power.synced[path] = 0

    def rename(self, source: Path, target: Path) -> None:
        """Another name, which is not synced."""
        if self._power:
            self._power.names[target] = target.read_bytes() if target.exists() else None
            self._power.names.pop(source, None)
            self._power.synced.pop(source, None)
        self._at(lambda: super(_Deadly, self).rename(source, target))

    def cut(self, path: Path, size: int) -> None:
        """A shorter file."""
        self._at(lambda: super(_Deadly, self).cut(path, size))


def lines_of(number: int) -> list[Line]:
    """The lines of an entry of the endless stream: one to five, some of them long."""
    count = number % 5 + 1
    text = "x" * (number * 7919 % 400)
    return [Line(EPOCH, f"{BEGIN + number}-0", n, n == count - 1, event(number, reasoning=text)) for n in range(count)]


def expected(number: int) -> Iterator[tuple[int, int]]:
    """Entry and line number of every line, from this entry on."""
    while True:
        yield from ((number, n) for n in range(number % 5 + 1))
        number += 1


def seal(directory: Path, seed: int, told: int) -> None:
    """A sealer: goes on behind what is on the disk, and tells each size that it sealed; is killed at some point."""
    chance = random.Random(seed)
    with SealedLog.open(directory, origin=ORIGIN, segment_bytes=_SEGMENT, disk=_Deadly(seed)) as log:
        while True:
            number = int(log.cursor[1].partition("-")[0]) - BEGIN + 1 if log.cursor else 0
            for _ in range(chance.randint(1, 3)):
                amount = chance.randint(1, 20)
                log.append([line for at in range(number, number + amount) for line in lines_of(at)])
                number += amount
            os.write(told, b"%d\n" % log.seal())


def kill_once(directory: Path, seed: int) -> int:
    """Run a sealer until it is killed; returns the last size that it told."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.close(read)
        try:
            seal(directory, seed, write)
        except BaseException as error:  # noqa: BLE001 - the parent tells by the exit code
            os.write(2, f"seed {seed}: {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os.close(write)
    with os.fdopen(read) as file:
        told = [int(line) for line in file if line.endswith("\n")]
    status = os.waitpid(child, 0)[1]
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise AssertionError(f"seed {seed}: the sealer ended by itself, {os.waitstatus_to_exitcode(status)}")
    return told[-1] if told else 0


def look(directory: Path, seed: int, told: int, known: list[tuple[int, int]]) -> None:
    """After a kill: what was told is sealed, and every line of every entry is there once, in order."""
    size = sealed_size(directory) if (directory / "checkpoint").exists() else 0
    if size < told:
        raise AssertionError(f"seed {seed}: {told} lines were sealed, {size} are there")
    if size < len(known):
        raise AssertionError(f"seed {seed}: {len(known)} lines were sealed before, {size} are there")
    if not size:
        return
    for seq, line in read_lines(directory, len(known)):
        place = head_of(line).place
        known.append((place.ms - BEGIN, place.n))
        if seq != len(known) - 1:
            raise AssertionError(f"seed {seed}: line {seq} stands where {len(known) - 1} has to")


def run(directory: Path, seed: int, kills: int) -> dict[str, int]:
    """Kill so many sealers; raises on the first fault."""
    counts: Counter[str] = Counter()
    known: list[tuple[int, int]] = []
    for at in range(kills):
        look(directory, seed + at, kill_once(directory, seed + at), known)
        if at % _ROUNDS == _ROUNDS - 1 or at == kills - 1:
            finish(directory, seed + at, known, counts)
            known = []
    return {"kills": kills, "faults": 0, **counts}


def finish(directory: Path, seed: int, known: list[tuple[int, int]], counts: Counter[str]) -> None:
    """A last sealer that nobody kills; then all is read, and the log begun anew."""
    with SealedLog.open(directory, origin=ORIGIN, segment_bytes=_SEGMENT) as log:
        counts["recovered"] += bool(log.recovered)
        log.seal()
    look(directory, seed, 0, known)
    if known != [place for place, _ in zip(expected(0), known, strict=False)]:
        raise AssertionError(f"seed {seed}: lines are lost, twice, or out of order")
    if not (report := verify(directory)).ok or report.lines != len(known):
        raise AssertionError(f"seed {seed}: {report.problems[0] if report.problems else report.lines}")
    counts["lines"] += len(known)
    shutil.rmtree(directory)


if __name__ == "__main__":
    click.echo(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
