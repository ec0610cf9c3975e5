"""Reads lines in bulk, whole ones, each checked for its number and its checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poimen_tasks.audit.lines import LINE
from poimen_tasks.audit.segments import Segment, segments_in
from poimen_tasks.errors import AuditCorrupt

__all__ = ["portions"]

_READ = 4 << 20


def portions(directory: Path, first: int, offset: int, size: int) -> Iterator[tuple[list[Any], list[int], int]]:
    """The lines from `first` on, taken apart, with where each begins and the number of the first of them."""
    segments = segments_in(directory)
    at = _segment_of(segments, first)
    for segment in segments[at:]:
        if first >= size:
            return
        start = offset if segment.first < first else 0
        with segment.path.open("rb") as file:
            file.seek(start)
            rest = b""
            while first < size and (block := file.read(_READ)):
                block = rest + block
                cut = block.rfind(b"\n") + 1
                rest = block[cut:]
                whole = block[:cut].split(b"\n")[:-1][: size - first]
                if not whole:
                    continue
                lines = LINE.findall(block[: sum(map(len, whole)) + len(whole)])
                _check_lines(lines, whole, first, segment)
                starts = []
                for line in whole:
                    starts.append(start)
                    start += len(line) + 1
                starts.append(start)
                yield lines, starts, first
                first += len(whole)
    if first < size:
        raise AuditCorrupt(f"{directory}: lines {first} to {size - 1} are missing")


def _segment_of(segments: list[Segment], seq: int) -> int:
    at = 0
    for place, segment in enumerate(segments):
        if segment.first <= seq:
            at = place
    return at


def _check_lines(lines: list[Any], whole: list[bytes], first: int, segment: Segment) -> None:
    """Refuse what is no line, has another number, or is damaged."""
    if len(lines) == len(whole):
        for seq, line in enumerate(lines, first):
            if int(line[0]) != seq or zlib.crc32(line[-1]) != int(line[-2], 16):
                break
        else:
            return
    for seq, line in enumerate(whole, first):
        match = LINE.fullmatch(line)
        if match is None:
            raise AuditCorrupt(f"{segment.path}: line {seq} is no line of a log; `poimen audit verify` says more")
        if int(match[1]) != seq:
            raise AuditCorrupt(f"{segment.path}: line {int(match[1])} stands where line {seq} belongs")
        if zlib.crc32(match[8]) != int(match[7], 16):
            raise AuditCorrupt(f"{segment.path}: line {seq} was changed: its checksum does not fit")
