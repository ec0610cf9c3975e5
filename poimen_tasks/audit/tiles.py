"""The hash tree on disk: files of up to 256 hashes, in the layout of C2SP tlog-tiles (https://c2sp.org/tlog-tiles).

A tile of level 0 has the hashes of 256 lines; one of level L has the roots of 256 full tiles of the level below. The
last tile of a level is partial; there is one for each size at which a checkpoint was signed, until the tile is full.
Any hash of the tree can be computed from at most a tile of each level, so a proof costs a few small reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from poimen_tasks.audit.merkle import fold, root_of
from poimen_tasks.errors import AuditCorrupt

__all__ = ["HASH", "WIDTH", "Edge", "Tile", "TileReader", "parse_tile", "tiles_of"]

#: Bytes of a hash, and hashes of a full tile.
HASH, WIDTH = 32, 256
_BITS = 8
_NUMBER = re.compile(r"(\d{1,2})/((?:x\d{3}/)*\d{3})(?:\.p/([1-9]\d{0,2}))?")


class Tile(NamedTuple):
    """Which tile: its level, its number within the level, and how many hashes it has."""

    level: int
    number: int
    width: int = WIDTH

    @property
    def name(self) -> str:
        """Its path below the directory of the log."""
        parts = [f"{self.number % 1000:03d}"]
        rest = self.number // 1000
        while rest:
            parts.insert(0, f"x{rest % 1000:03d}")
            rest //= 1000
        partial = "" if self.width == WIDTH else f".p/{self.width}"
        return f"tile/{self.level}/{'/'.join(parts)}{partial}"

    def partials(self, directory: Path) -> Path:
        """The directory of its partial ones."""
        return directory / f"{self._replace(width=WIDTH).name}.p"


def parse_tile(name: str) -> Tile | None:
    """The tile with this path below `tile/`; None: no tile has it."""
    match = _NUMBER.fullmatch(name)
    if match is None:
        return None
    index = int(match[2].replace("x", "").replace("/", ""))
    tile = Tile(int(match[1]), index, int(match[3]) if match[3] else WIDTH)
    return tile if tile.name == f"tile/{name}" else None


def tiles_of(size: int) -> Iterator[Tile]:
    """The rightmost tile of each level in a tree of this size, where it is partial."""
    level = 0
    while size:
        if size % WIDTH:
            yield Tile(level, size // WIDTH, size % WIDTH)
        size, level = size // WIDTH, level + 1


class Edge:
    """The right edge of a growing tree: the hashes of each level that no full tile holds yet.

    Args:
        size: how many leaves the tree has; a multiple of 256.
        levels: the hashes at its edge, a level each; the lowest is empty.
    """

    def __init__(self, size: int = 0, levels: list[bytes] | None = None) -> None:
        self.size = size
        self._levels = levels or [b""]

    def extend(self, leaves: bytes) -> list[tuple[Tile, bytes]]:
        """Add hashes of leaves; returns the tiles that became full, lower levels first."""
        full: list[tuple[Tile, bytes]] = []
        self._add(0, leaves, self.size, full)
        self.size += len(leaves) // HASH
        return full

    def _add(self, level: int, hashes: bytes, before: int, full: list[tuple[Tile, bytes]]) -> None:
        if level == len(self._levels):
            self._levels.append(b"")
        waiting = self._levels[level] + hashes
        index, step = before // WIDTH, WIDTH * HASH
        roots: list[bytes] = []
        cut = len(waiting) - len(waiting) % step
        for at in range(0, cut, step):
            tile = waiting[at : at + step]
            full.append((Tile(level, index + len(roots)), tile))
            roots.append(root_of(tile))
        self._levels[level] = waiting[cut:]
        if roots:
            self._add(level + 1, b"".join(roots), index, full)

    def partial(self) -> list[tuple[Tile, bytes]]:
        """The partial tiles of the tree as it is."""
        return [(tile, self._levels[tile.level]) for tile in tiles_of(self.size)]

    def root(self) -> bytes:
        """The root of the tree as it is."""
        return fold(self._levels)


class TileReader:
    """Hashes of a tree with `size` leaves, from its tiles; nothing of them is trusted before a root was compared.

    Args:
        directory: that of the log.
        size: leaves of the tree, as its checkpoint says.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self.size = size
        self._tile = lru_cache(maxsize=64)(self._read)

    def subtree(self, start: int, end: int) -> bytes:
        """The root over the leaves [start, end), a subtree of this tree."""
        if end - start == 1:
            return self._hashes(0, start, 1)
        level = ((end - start - 1).bit_length() - 1) // _BITS
        unit = WIDTH**level
        first, rest = start // unit, (end - start) % unit
        hashes = self._hashes(level, first, (end - start) // unit)
        return root_of(hashes + (self.subtree(end - rest, end) if rest else b""))

    def edge(self, size: int) -> Edge:
        """The right edge at a smaller size, a multiple of 256."""
        levels, level, count = [b""], 1, size // WIDTH
        while count:
            width = count % WIDTH
            levels.append(self.prefix(Tile(level, count // WIDTH), width) if width else b"")
            level, count = level + 1, count // WIDTH
        return Edge(size, levels)

    def prefix(self, tile: Tile, width: int) -> bytes:
        """The first hashes of a tile; where it is missing (a partial one is not synced) from those below it."""
        try:
            return self._tile(tile.level, tile.number)[: width * HASH]
        except AuditCorrupt:
            if tile.level == 0:
                raise
            below = (Tile(tile.level - 1, tile.number * WIDTH + at) for at in range(width))
            return b"".join(root_of(self.prefix(one, WIDTH)) for one in below)

    def _hashes(self, level: int, first: int, count: int) -> bytes:
        at = first % WIDTH
        if at + count > WIDTH:
            raise ValueError(f"hashes {first} to {first + count} of level {level} are in more than one tile")
        found = self._tile(level, first // WIDTH)[at * HASH : (at + count) * HASH]
        if len(found) != count * HASH:
            raise AuditCorrupt(f"{self.directory / Tile(level, first // WIDTH).name}: hash {at + count - 1} is missing")
        return found

    def _read(self, level: int, index: int) -> bytes:
        """The widest form of a tile that this size of the tree calls for; the full one serves too."""
        width = min(WIDTH, self.size // WIDTH**level - index * WIDTH)
        for tile in dict.fromkeys((Tile(level, index, width), Tile(level, index))):
            path = self.directory / tile.name
            try:
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if len(data) != tile.width * HASH:
                raise AuditCorrupt(
                    f"{path}: {len(data)} bytes where a tile of {tile.width} hashes has {tile.width * HASH}"
                )
            return data
        raise AuditCorrupt(f"{self.directory / Tile(level, index, width).name}: the tile is missing")
