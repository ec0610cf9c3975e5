"""Opening a log again: what the last writer left is read back, checked, and made whole.

Only the last segment is read, and the tiles at the right edge of the tree: enough to go on, and to see that they lead
to the signed root. Everything else is for `verify`. What stands behind the checkpoint was not promised to anybody:
whole entries are kept, the rest is cut off and comes again from the stream, which is only trimmed below the checkpoint.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.lines import Place, problem_of
from poimen_tasks.audit.merkle import leaf_hash
from poimen_tasks.audit.note import Checkpoint
from poimen_tasks.audit.scan import differs
from poimen_tasks.audit.segments import Segment, read_lines, segments_in
from poimen_tasks.audit.tiles import HASH, WIDTH, Edge, Tile, TileReader, parse_tile
from poimen_tasks.errors import AuditCorrupt

__all__ = ["Recovered", "day_of", "recover"]


class Recovered(NamedTuple):
    """What a log is opened with.

    Attributes:
        edge: the tree at the checkpoint.
        pending: the hashes of lines behind the checkpoint that were kept.
        place: where the last line stands; None: there is none.
        tail: the last segment, with the bytes that it keeps; None: there is none.
        day: the UTC day of its first line.
        tiles: full ones of the last segment, which may not be synced.
        report: what was cut or written again; empty: nothing.
    """

    edge: Edge
    pending: list[bytes]
    place: Place | None
    tail: Segment | None
    day: str
    tiles: list[Path]
    report: str


def day_of(place: Place) -> str:
    """The UTC day of a line, by the id of its entry; empty where that is no time."""
    try:
        return datetime.fromtimestamp(place.ms / 1000, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return ""


def recover(directory: Path, checkpoint: Checkpoint, disk: Disk) -> Recovered:
    """Read the end of a log, cut what is not whole, and write tiles again that a crash took.

    Raises:
        AuditCorrupt: something below the checkpoint is missing or was changed.
        AuditUnavailable: a file cannot be read.
        AuditDiskError: the cut, or a tile, cannot be written.
    """
    segments = segments_in(directory)
    if not segments:
        if checkpoint.size:
            raise AuditCorrupt(f"{directory / 'segments'}: lines 0 to {checkpoint.size - 1} are missing")
        return Recovered(Edge(), [], None, None, "", [], "")
    if segments[0].first:
        raise AuditCorrupt(f"{directory / 'segments'}: lines 0 to {segments[0].first - 1} are missing")
    if segments[-1].first > checkpoint.size:
        raise AuditCorrupt(
            f"{segments[-1].path}: it begins with line {segments[-1].first}, the checkpoint covers {checkpoint.size}"
        )
    return _Reading(directory, checkpoint, disk, segments[-1]).run()


class _Reading:
    """One pass over the last segment, begun at a full tile and at least one line earlier."""

    def __init__(self, directory: Path, checkpoint: Checkpoint, disk: Disk, tail: Segment) -> None:
        self._directory, self._checkpoint, self._disk, self._tail = directory, checkpoint, disk, tail
        self._base = max(0, tail.first - 1) // WIDTH * WIDTH
        self._leaves: list[bytes] = []
        self._pending: list[bytes] = []
        self._half: list[bytes] = []
        # Where the last line stands, and the last one that ends an entry, with the bytes of the last segment up to it.
        self._place: Place | None = None
        self._kept: Place | None = None
        self._bytes = self._kept_bytes = 0
        self._day = ""
        self._full: list[tuple[Tile, bytes]] = []

    def run(self) -> Recovered:
        problem = ""
        for seq, line in read_lines(self._directory, self._base, unsealed=True):
            head, problem = problem_of(line, seq, self._place, ordered=seq > self._base or seq == 0)
            if head is None:
                break
            self._take(seq, line, head.place)
        have = self._base + len(self._leaves)
        if have < self._checkpoint.size:
            raise self._bad(have, problem or "it is missing, or not whole")
        edge = self._read_edge()
        notes = [*self._cut(problem), *self._mend_tiles(edge)]
        tail = self._tail._replace(size=self._kept_bytes)
        tiles = [self._directory / tile.name for tile, _ in self._full]
        return Recovered(edge, self._pending, self._kept, tail, self._day, tiles, "; ".join(notes))

    def _take(self, seq: int, line: bytes, place: Place) -> None:
        self._place = place
        if seq == self._tail.first:
            self._day = day_of(place)
        if seq >= self._tail.first:
            self._bytes += len(line) + 1
        if seq < self._checkpoint.size:
            self._leaves.append(leaf_hash(line))
            if seq == self._checkpoint.size - 1 and not place.last:
                raise self._bad(seq, "the checkpoint ends within an entry")
        else:
            self._half.append(leaf_hash(line))
        if place.last:
            self._pending += self._half
            self._half = []
            self._kept, self._kept_bytes = place, self._bytes

    def _bad(self, seq: int, problem: str) -> AuditCorrupt:
        if seq < self._tail.first:
            return AuditCorrupt(f"{self._directory / 'segments'} (seq {seq}): {problem}")
        return AuditCorrupt(f"{self._tail.path} line {seq - self._tail.first + 1} (seq {seq}): {problem}")

    def _cut(self, problem: str) -> list[str]:
        """Take away what is not whole at the end."""
        surplus = self._tail.size - self._kept_bytes
        if not surplus:
            return []
        if not problem and self._bytes < self._tail.size:
            problem = "the last line is not whole"
        self._disk.cut(self._tail.path, self._kept_bytes)
        line = self._checkpoint.size + len(self._pending) - self._tail.first + 1
        why = problem or "the last entry is only half there"
        return [f"cut {surplus} bytes from line {line} of {self._tail.path.name} on, behind the checkpoint: {why}"]

    def _read_edge(self) -> Edge:
        """The tree at the checkpoint, proved to be the signed one."""
        edge = TileReader(self._directory, self._checkpoint.size).edge(self._base)
        self._full = edge.extend(b"".join(self._leaves))
        if edge.root() == self._checkpoint.root:
            return edge
        for tile, hashes in (*self._full, *edge.partial()):
            if tile.level == 0 and (at := differs(self._directory, tile, hashes)) not in {None, -1}:
                raise self._bad(tile.number * WIDTH + at, "its bytes are not those that were sealed")
        raise AuditCorrupt(
            f"{self._directory}: the lines and tiles do not lead to the root that the checkpoint signs; "
            "`poimen audit verify` looks for the place"
        )

    def _mend_tiles(self, edge: Edge) -> list[str]:
        """Write missing and torn tiles again: those of the last segment are not synced before it is closed."""
        mended = [tile for tile, hashes in (*self._full, *edge.partial()) if self._mend(tile, hashes)]
        for tile, _ in self._full:
            self._clear_partials(tile, b"")
        for tile, hashes in edge.partial():
            self._clear_partials(tile, hashes)
        return [f"wrote {len(mended)} tiles again that were missing or torn"] if mended else []

    def _mend(self, tile: Tile, hashes: bytes) -> bool:
        path = self._directory / tile.name
        at = differs(self._directory, tile, hashes)
        if at is None:
            return False
        # Some file systems give a file that was not synced its length, but zeros for bytes.
        if at >= 0 and path.read_bytes()[at * HASH :][:HASH].strip(b"\0"):
            raise AuditCorrupt(f"{path}: hash {at} is not that of the lines, which are as they were sealed")
        self._disk.put(path, hashes)
        return True

    def _clear_partials(self, tile: Tile, hashes: bytes) -> None:
        """Remove partial tiles that a crash left torn, or ahead of the checkpoint, or beside their full tile."""
        place = tile.partials(self._directory)
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            other = parse_tile(f"{tile.level}/{path.relative_to(self._directory / 'tile' / str(tile.level))}")
            width = other.width * HASH if other else 0
            if not 0 < width <= len(hashes) or path.read_bytes() != hashes[:width]:
                self._disk.remove(path)
