"""The files that hold the lines: `segments/<seq of the first line, 20 digits>.jsonl`; reading them, from any line on.

Readers take no lock. They go by the checkpoint, which names only lines that are on the disk, and by newlines: a line
that is being written is none yet.
"""

from __future__ import annotations

import mmap
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from poimen_tasks.audit.note import read_note, read_size
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable, InvalidArgument

__all__ = [
    "Segment",
    "exported_segment",
    "line_at",
    "numbered",
    "read_lines",
    "sealed_size",
    "segment_name",
    "segments_in",
]

_NAME = re.compile(r"(\d{20})\.jsonl")
_SEQ = re.compile(rb'\{"seq":(\d{1,20}),')
_BLOCK = 1 << 20
_HEAD = 32


class Segment(NamedTuple):
    """A file of lines.

    Attributes:
        first: the number of its first line, by its name.
        size: bytes, when the directory was listed.
    """

    first: int
    path: Path
    size: int


def segment_name(first: int) -> str:
    """The name of the segment that begins with this line."""
    return f"{first:020d}.jsonl"


def segments_in(directory: Path) -> list[Segment]:
    """The segments of a log, in order.

    Raises:
        AuditUnavailable: there is no log, or it cannot be read.
        AuditCorrupt: a file among them is none.
    """
    place = directory / "segments"
    try:
        with os.scandir(place) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
            return [_segment(entry) for entry in found]
    except (FileNotFoundError, NotADirectoryError):
        raise AuditUnavailable(f"{directory}: there is no audit log; `poimen audit seal` begins one") from None
    except OSError as error:
        raise AuditUnavailable(f"{place}: {error.strerror or error}") from error


def _segment(entry: os.DirEntry[str]) -> Segment:
    match = _NAME.fullmatch(entry.name)
    if match is None or not entry.is_file(follow_symlinks=False):
        raise AuditCorrupt(f"{entry.path}: a foreign file among the segments; their names are 20 digits and .jsonl")
    return Segment(int(match[1]), Path(entry.path), entry.stat().st_size)


def sealed_size(directory: Path) -> int:
    """How many lines the checkpoint covers; the signature is not looked at.

    Raises:
        AuditUnavailable: there is no log, or it cannot be read.
        AuditCorrupt: its checkpoint is damaged.
    """
    path = directory / "checkpoint"
    if not path.exists():
        segments_in(directory)
        raise AuditUnavailable(f"{path}: there is no checkpoint; `poimen audit seal` writes one")
    return read_size(read_note(path), where=str(path))


def read_lines(directory: Path, start: int = 0, *, unsealed: bool = False) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from `start` on, up to the checkpoint.

    A line is the bytes up to a newline, without it; what stands in it is for the caller to read. The numbers are those
    of the lines' places, so they are right even where a line is damaged.

    Args:
        directory: that of the log.
        start: the number of the first line wanted.
        unsealed: also lines behind the checkpoint, up to the last newline.

    Raises:
        InvalidArgument: `start` is below 0.
        AuditUnavailable: there is no log, or it cannot be read.
        AuditCorrupt: a segment does not begin where the one before it ends, or lines are missing.
    """
    if start < 0:
        raise InvalidArgument(f"start: expected a whole number from 0, got {start}")
    end = None if unsealed else sealed_size(directory)
    segments = segments_in(directory)
    at = max(0, bisect_right([segment.first for segment in segments], start) - 1)
    following = segments[at].first if segments else 0
    for segment in segments[at:]:
        if end is not None and max(start, following) >= end:
            return
        if segment.first != following:
            raise AuditCorrupt(f"{segment.path}: it begins with line {segment.first}, but line {following} is the next")
        for seq, line in numbered(segment, start):
            if seq == end:
                return
            following = seq + 1
            yield seq, line
    if end is not None and max(start, following) < end:
        raise AuditCorrupt(f"{directory / 'segments'}: lines {max(start, following)} to {end - 1} are missing")


def numbered(segment: Segment, start: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a segment with their numbers, from line `start` of the log on where that is in it."""
    seq, rest = segment.first, b""
    with segment.path.open("rb") as file:
        if start > seq:
            file.seek(_offset(segment, start))
            seq = start
        while block := file.read(_BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            yield from enumerate(lines, seq)
            seq += len(lines)


def exported_segment(path: Path) -> Segment | None:
    """A file of lines that was taken out of a log, numbered by its first line; None: it is empty.

    Raises:
        AuditUnavailable: it cannot be read.
        AuditCorrupt: it does not begin with a line of a log.
    """
    try:
        with path.open("rb") as file:
            head, size = file.read(_HEAD), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise AuditUnavailable(f"{path}: {error.strerror or error}") from error
    if head and _number(head) < 0:
        raise AuditCorrupt(f'{path}: it does not begin with a line of an audit log, which begins with {{"seq":')
    return Segment(_number(head), path, size) if head else None


def line_at(directory: Path, seq: int) -> bytes:
    """One line of the log, found by bisection.

    Raises:
        InvalidArgument: there is no such line.
        AuditUnavailable: there is no log, or it cannot be read.
    """
    segments = segments_in(directory)
    at = bisect_right([segment.first for segment in segments], seq) - 1
    if at >= 0:
        with segments[at].path.open("rb") as file:
            file.seek(_offset(segments[at], seq))
            line = file.readline()
        if line.endswith(b"\n") and _number(line) == seq:
            return line[:-1]
    raise InvalidArgument(f"seq: the log has no line {seq}")


def _offset(segment: Segment, seq: int) -> int:
    """Where a line begins in its segment, or would: by the numbers in the lines; where they are wrong, by counting."""
    with segment.path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return 0
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            found = _bisect(data, size, seq)
            if found == size or _number(data[found : found + _HEAD]) == seq:
                return found
            return _count(data, size, seq - segment.first)


def _bisect(data: mmap.mmap, size: int, seq: int) -> int:
    low, high = 0, size
    while low < high:
        middle = data.rfind(b"\n", low, (low + high) // 2) + 1 or low
        if _number(data[middle : middle + _HEAD]) < seq:
            low = data.find(b"\n", middle) + 1 or size
        else:
            high = middle
    return low


def _count(data: mmap.mmap, size: int, lines: int) -> int:
    at = 0
    for _ in range(lines):
        at = data.find(b"\n", at) + 1
        if not at:
            return size
    return at


def _number(line: bytes) -> int:
    match = _SEQ.match(line)
    return int(match[1]) if match else -1
