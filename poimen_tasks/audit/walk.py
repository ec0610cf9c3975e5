"""From the first line to the last: parts are scanned, in several processes where it pays, and joined in order."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from poimen_tasks.audit.lines import Place, follows
from poimen_tasks.audit.merkle import fold, root_of
from poimen_tasks.audit.report import Problem, Progress
from poimen_tasks.audit.scan import Part, Scanned, differs, scan
from poimen_tasks.audit.segments import Segment
from poimen_tasks.audit.tiles import HASH, WIDTH, Tile
from poimen_tasks.errors import AuditUnavailable

__all__ = ["Tree", "Walk"]

_PART = 4 << 20
_PARALLEL = 32 << 20


@dataclass(slots=True)
class Tree:
    """The hashes that the lines lead to: `levels[0]` those behind the last full tile, above it all of a level."""

    size: int
    levels: list[bytes]

    @classmethod
    def of(cls, size: int, roots: bytes, rest: bytes) -> Tree:
        """From the roots of the full tiles, and the hashes of the lines behind them."""
        levels = [rest]
        while roots:
            levels.append(roots)
            step = WIDTH * HASH
            full = len(roots) - len(roots) % step
            roots = b"".join(root_of(roots[at : at + step]) for at in range(0, full, step))
        return cls(size, levels)

    def root(self, size: int | None = None, rest: bytes | None = None) -> bytes:
        """The root, also of the tree as it was at a smaller size: `rest` are the lines behind its last full tile."""
        size = self.size if size is None else size
        edge = [self.levels[0] if rest is None else rest]
        for level in range(1, len(self.levels)):
            count = size // WIDTH**level
            edge.append(self.levels[level][count // WIDTH * WIDTH * HASH : count * HASH])
        return fold(edge)

    def tiles(self) -> Iterator[tuple[Tile, bytes]]:
        """All tiles above level 0, and the partial one of level 0, with their hashes."""
        step = WIDTH * HASH
        for level, hashes in enumerate(self.levels):
            first = self.size // WIDTH if level == 0 else 0
            for number, at in enumerate(range(0, len(hashes), step), first):
                yield Tile(level, number, len(hashes[at : at + step]) // HASH), hashes[at : at + step]


@dataclass(slots=True)
class Walk:
    """One reading of the segments.

    Attributes:
        problem: the first bad line.
        lines: whole lines, also behind the checkpoint.
        torn: bytes behind the last newline.
        half: lines of the last entry, when it has no end.
        tiles: full tiles of level 0 that are not as on disk, with the hash that differs; -1: the file's length does.
        payloads: lines that name payloads, with the digests.
    """

    segments: Sequence[Segment]
    size: int
    directory: Path | None
    problem: Problem | None = None
    lines: int = 0
    torn: int = 0
    half: bool = False
    tiles: list[tuple[Tile, int]] = field(default_factory=list)
    payloads: list[tuple[int, str]] = field(default_factory=list)
    _place: Place | None = None
    _roots: bytearray = field(default_factory=bytearray)
    _rest: bytes = b""

    def run(self, progress: Progress) -> Tree:
        """Read everything, or up to the first bad line.

        Raises:
            AuditUnavailable: a segment cannot be read, or a process that read one was killed.
        """
        try:
            return self._run(progress)
        except BrokenExecutor:
            raise AuditUnavailable("a process that read the log was killed; is there enough memory?") from None
        except OSError as error:
            raise AuditUnavailable(f"{error.filename or self.directory}: {error.strerror or error}") from error

    def _run(self, progress: Progress) -> Tree:
        parts = [(segment, part) for segment in self.segments for part in self._parts(segment)]
        total, read, current = sum(segment.size for segment in self.segments), 0, None
        with _scanner(total) as scanned:
            for (segment, part), found in zip(parts, scanned([part for _, part in parts]), strict=True):
                if segment is not current:
                    self._begin(segment, current)
                    current = segment
                self._join(segment, found)
                if self.problem:
                    break
                progress(read := read + part.end - part.start, total)
        self._check_end()
        self.half = self._place is not None and not self._place.last
        return Tree.of(self.size, bytes(self._roots), self._rest)

    def _parts(self, segment: Segment) -> list[Part]:
        ends = _ends(segment)
        starts = [0, *ends][: len(ends)]
        return [Part(self.directory, segment.path, *bounds, self.size) for bounds in zip(starts, ends, strict=True)]

    def _begin(self, segment: Segment, before: Segment | None) -> None:
        """A segment begins where the one before it ends."""
        if before is None:
            if segment.first:
                self.problem = Problem(segment.path, f"lines 0 to {segment.first - 1} are missing before it")
        elif self.torn:
            self._bad(before, "the line is not whole")
        elif segment.first > self.lines:
            self._bad(before, f"the line is missing: the next segment begins with line {segment.first}")
        elif segment.first < self.lines:
            self._bad(before, "the line is one too many: the next segment begins with it", segment.first - self.lines)

    def _join(self, segment: Segment, part: Scanned) -> None:
        """Put a part behind those before it."""
        if part.lines and not self.problem:
            self._check_first(segment, part)
        if self.problem:
            return
        self.payloads += [(self.lines + at, digest) for at, digest in part.payloads]
        self.lines, self.torn = self.lines + part.lines, part.torn
        if part.lines:
            self._place = part.last
        if part.tile:
            self.tiles.append(part.tile)
        self._add(part)

    def _check_first(self, segment: Segment, part: Scanned) -> None:
        at, why = part.problem or (-1, "")
        if part.first is not None and part.seq != self.lines:
            at, why = 0, f"it says seq {part.seq} where line {self.lines} has to stand"
        elif part.first is not None and (order := follows(self._place, part.first, part.kind)):
            at, why = 0, order
        if why:
            self._bad(segment, why, at)

    def _add(self, part: Scanned) -> None:
        rest = self._rest + part.lead
        if len(rest) == WIDTH * HASH:
            tile = Tile(0, len(self._roots) // HASH)
            if self.directory and (at := differs(self.directory, tile, rest)) is not None:
                self.tiles.append((tile, at))
            self._roots += root_of(rest)
            rest = b""
        self._roots += part.roots
        self._rest = rest + part.rest

    def _bad(self, segment: Segment, why: str, at: int = 0) -> None:
        if self.problem is None:
            seq = self.lines + at
            self.problem = Problem(segment.path, why, seq - segment.first + 1, seq)

    def _check_end(self) -> None:
        if self.problem or self.lines >= self.size or not self.segments:
            return
        last = self.segments[-1]
        why = "the line is not whole" if self.torn else f"the line is missing, the checkpoint covers {self.size}"
        self._bad(last, why)


def _ends(segment: Segment) -> list[int]:
    """Where the parts of a segment end: at newlines, about every four megabytes."""
    if segment.size <= _PART:
        return [segment.size] if segment.size else []
    ends = []
    with segment.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = _PART
        while at < segment.size and (newline := data.find(b"\n", at, segment.size) + 1):
            ends.append(newline)
            at = newline + _PART
    return ends if ends and ends[-1] == segment.size else [*ends, segment.size]


@contextmanager
def _scanner(total: int) -> Iterator[Callable[[list[Part]], Iterator[Scanned]]]:
    """Something that scans parts in order: several processes for a long log, where they can be had safely."""
    workers = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    # A fork is cheap and needs no import of anybody's main module, but it is safe only while there is one thread.
    if total < _PARALLEL or workers < 2 or threading.active_count() > 1 or not hasattr(os, "fork"):
        yield lambda parts: map(scan, parts)
        return
    # What is made of a part has no cycles, and is much: looking for some would be a third of the work.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"), initializer=gc.disable)
    try:
        yield lambda parts: pool.map(scan, parts)
    finally:
        pool.shutdown(cancel_futures=True)
