"""A part of a segment, read and checked line by line; `verify` does many at a time, in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from poimen_tasks.audit.blocks import Block, take_apart
from poimen_tasks.audit.lines import Place, event_type, head_of, in_order, problem_of, read_event
from poimen_tasks.audit.merkle import leaf_hashes, root_of
from poimen_tasks.audit.tiles import HASH, WIDTH, Tile

__all__ = ["Part", "Scanned", "differs", "scan"]

_CONTENT = b'"content":{'


class Part(NamedTuple):
    """What to read.

    Attributes:
        directory: that of the log; None: there are no tiles to compare with.
        path: the segment.
        start, end: bytes; a line begins at both.
        size: how many lines the checkpoint covers.
    """

    directory: Path | None
    path: Path
    start: int
    end: int
    size: int


class Scanned(NamedTuple):
    """What was found.

    Attributes:
        lines: whole ones.
        torn: bytes behind the last newline.
        seq: the number of the first line, as it says; -1: it cannot be read.
        first, last: where the first and the last line stand.
        kind: the type of the first line's event.
        problem: which line, from 0, is the first bad one, and why.
        lead: hashes of sealed lines before the first full tile.
        roots: roots of the full tiles.
        rest: hashes of sealed lines behind them.
        tile: the first full tile that is not as on disk, and which hash of it; -1: it is missing or has another length.
        payloads: numbers of lines, from 0, and the digests that they name.
    """

    lines: int
    torn: int
    seq: int = -1
    first: Place | None = None
    last: Place | None = None
    kind: str = ""
    problem: tuple[int, str] | None = None
    lead: bytes = b""
    roots: bytes = b""
    rest: bytes = b""
    tile: tuple[Tile, int] | None = None
    payloads: tuple[tuple[int, str], ...] = ()


def scan(part: Part) -> Scanned:
    """Read and check a part."""
    with part.path.open("rb") as file:
        file.seek(part.start)
        data = file.read(part.end - part.start)
    whole = data.rfind(b"\n") + 1
    torn, data = len(data) - whole, data[:whole]
    if not data:
        return Scanned(0, torn)
    lines = data.split(b"\n")
    lines.pop()
    block = take_apart(data)
    if block is None or block.seqs != list(range(block.seqs[0], block.seqs[0] + len(lines))):
        return _damaged(Scanned(len(lines), torn), lines, part.size)
    (seq, *_), places, events = block
    made = Scanned(len(lines), torn, seq, places.place(0), places.place(-1), event_type(events[0]))
    if problem := _problem(part, block, lines):
        return made._replace(problem=problem)
    payloads = tuple(_payloads(events)) if _CONTENT in data else ()
    return _tiles(part, made._replace(payloads=payloads), leaf_hashes(lines[: max(0, part.size - seq)]))


def _damaged(made: Scanned, lines: Sequence[bytes], size: int) -> Scanned:
    """A line is none, or has a wrong number or CRC; whether the first one has is seen when parts are joined."""
    problem = _first_problem(lines, size) or (0, "it cannot be read")
    if not problem[0]:
        return made._replace(problem=problem)
    head = head_of(lines[0])
    return made._replace(problem=problem, seq=head.seq, first=head.place, kind=event_type(head.event))


def _problem(part: Part, block: Block, lines: Sequence[bytes]) -> tuple[int, str] | None:
    """The first line that may not stand behind the one before it, or ends the sealed ones too early."""
    end = part.size - 1 - block.seqs[0]
    cut = 0 <= end < len(lines) and not block.places.lasts[end]
    return _first_problem(lines, part.size) if cut or not in_order(block.places) else None


def _first_problem(lines: Sequence[bytes], size: int) -> tuple[int, str] | None:
    """The same, line by line; the first one's number and place are for the caller."""
    before, seq = None, -1
    for at, line in enumerate(lines):
        head, why = problem_of(line, seq, before, ordered=at > 0, strict=True)
        if head is None:
            return at, why
        if head.seq == size - 1 and not head.place.last:
            return at, "the checkpoint ends within its entry"
        before, seq = head.place, head.seq + 1
    return None


def _payloads(events: Sequence[bytes]) -> list[tuple[int, str]]:
    found = []
    for at, event in enumerate(events):
        content = read_event(event).get("content") if _CONTENT in event else None
        if isinstance(content, dict):
            found += [(at, str(one["sha256"])) for one in content.values() if isinstance(one, dict) and "sha256" in one]
    return found


def _tiles(part: Part, made: Scanned, leaves: bytes) -> Scanned:
    """Join the hashes to full tiles, and compare these with the files."""
    lead = min(-made.seq % WIDTH, len(leaves) // HASH) * HASH
    step, roots, wrong = WIDTH * HASH, [], None
    number, end = -(-made.seq // WIDTH), len(leaves) - (len(leaves) - lead) % (WIDTH * HASH)
    for at in range(lead, end, step):
        tile = leaves[at : at + step]
        roots.append(root_of(tile))
        place = Tile(0, number + len(roots) - 1)
        if part.directory and wrong is None and (hash_ := differs(part.directory, place, tile)) is not None:
            wrong = place, hash_
    return made._replace(lead=leaves[:lead], roots=b"".join(roots), rest=leaves[end:], tile=wrong)


def differs(directory: Path, tile: Tile, hashes: bytes) -> int | None:
    """Which hash of a tile is another one on disk; -1: the file is missing or has another length; None: none."""
    data = _read(directory, tile, len(hashes))
    if data == hashes:
        return None
    if len(data) != len(hashes):
        return -1
    return next(at for at in range(tile.width) if data[at * HASH :][:HASH] != hashes[at * HASH :][:HASH])


def _read(directory: Path, tile: Tile, length: int) -> bytes:
    """A tile's bytes; the full tile serves for a partial one, which a sealer at work removes."""
    try:
        return (directory / tile.name).read_bytes()
    except OSError:
        pass
    try:
        return (directory / tile._replace(width=WIDTH).name).read_bytes()[:length]
    except OSError:
        return b""
