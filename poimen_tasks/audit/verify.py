"""Everything is read again, and has to lead to what was signed.

Every line: its form, strict JSON, its number, its CRC, its place in the order of the stream. Then the tree over all
lines: its tiles on disk, and its root, which the checkpoint signs. Older checkpoints that were kept elsewhere have to
lie on the way: that the log only grew. Payloads have to hold what their names say.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.keys import Verifier, private_key_problem, public_key_at
from poimen_tasks.audit.merkle import leaf_hashes
from poimen_tasks.audit.note import Checkpoint, open_checkpoint, read_note
from poimen_tasks.audit.report import Progress, Report
from poimen_tasks.audit.scan import differs
from poimen_tasks.audit.segments import Segment, read_lines, segments_in
from poimen_tasks.audit.tiles import HASH, WIDTH, Tile, parse_tile
from poimen_tasks.audit.walk import Tree, Walk
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable

__all__ = ["verify"]


def verify(
    directory: Path,
    *,
    key: Verifier | None = None,
    against: Sequence[Path] = (),
    progress: Progress = lambda _done, _total: None,
) -> Report:
    """Read a whole log again and compare it with what was signed. A sealer may write on meanwhile.

    Args:
        directory: the log.
        key: its public key as it was handed out. None: the one in the directory, which only shows that key, checkpoint
            and lines fit each other: who can write the directory can replace all of them.
        against: older checkpoints that were kept elsewhere.
        progress: called now and then.

    Raises:
        AuditUnavailable: there is no log, or it, the key or an older checkpoint cannot be read.
    """
    report = Report(directory)
    try:
        path = directory / "checkpoint"
        if not path.exists():
            segments_in(directory)
        verifier = key or _own_key(directory)
        checkpoint = open_checkpoint(read_note(path), verifier, where=str(path))
        segments = segments_in(directory)
    except AuditCorrupt as error:
        report.add_error(error)
        return report
    report.origin, report.size, report.root = checkpoint.origin, checkpoint.size, checkpoint.root.hex()
    _Verification(directory, report, checkpoint, segments, verifier).run(against, progress)
    return report


def _own_key(directory: Path) -> Verifier:
    path = directory / "key.pub"
    if not path.exists():
        raise AuditUnavailable(f"{path}: the log's public key is not there; give it, or its file, with --key")
    return public_key_at(path)


class _Verification:
    """The steps, each of which trusts only what those before it established."""

    def __init__(
        self, directory: Path, report: Report, checkpoint: Checkpoint, segments: list[Segment], verifier: Verifier
    ) -> None:
        self._report, self._checkpoint, self._segments, self._verifier = report, checkpoint, segments, verifier
        self._directory = directory

    def run(self, against: Sequence[Path], progress: Progress) -> None:
        walk = Walk(self._segments, self._checkpoint.size, self._directory)
        tree = walk.run(progress)
        self._report.lines = walk.lines
        self._note_end(walk)
        if not self._segments and self._checkpoint.size:
            self._report.add(self._directory / "segments", f"lines 0 to {self._checkpoint.size - 1} are missing")
        elif walk.problem:
            self._report.problems.append(walk.problem)
        else:
            self._check_tree(walk, tree)
            self._check_payloads(walk)
        for path in against:
            self._check_grown(path, tree, complete=walk.lines >= self._checkpoint.size and not walk.problem)
        if why := private_key_problem(self._directory):
            file, _, why = why.partition(": ")
            self._report.add(Path(file), why)

    def _note_end(self, walk: Walk) -> None:
        if walk.problem:
            return
        if behind := walk.lines - self._checkpoint.size:
            self._report.notes.append(f"{behind} lines behind the checkpoint are not sealed yet")
        if walk.torn:
            self._report.notes.append(f"{walk.torn} bytes behind the last line: being written, or torn by a crash")

    def _check_tree(self, walk: Walk, tree: Tree) -> None:
        """The signed root, then the tiles; where the root is another one, the tiles may tell which line it was."""
        wrong = [*walk.tiles, *self._wrong_tiles(tree)]
        if tree.root() != self._checkpoint.root:
            self._blame(walk, wrong)
            return
        for tile, at in wrong:
            self._report.add(self._directory / tile.name, _tile_problem(tile, at))
        self._check_tile_files(tree)

    def _wrong_tiles(self, tree: Tree) -> Iterator[tuple[Tile, int]]:
        for tile, hashes in tree.tiles():
            if (at := differs(self._directory, tile, hashes)) is not None:
                yield tile, at

    def _blame(self, walk: Walk, wrong: Sequence[tuple[Tile, int]]) -> None:
        for tile, at in wrong:
            if tile.level == 0 and at >= 0:
                seq = tile.number * WIDTH + at
                place = bisect_right([segment.first for segment in walk.segments], seq) - 1
                segment = walk.segments[place]
                why = "its bytes are not those that were sealed: its hash is not the one in the tree"
                self._report.add(segment.path, why, seq - segment.first + 1, seq)
                return
        self._report.add(
            self._directory / "checkpoint",
            f"the {self._checkpoint.size} lines do not lead to the root that it signs: lines were changed, and the "
            "tiles with them",
        )

    def _check_tile_files(self, tree: Tree) -> None:
        """Partial tiles of earlier sizes, and files that are no tiles."""
        place = self._directory / "tile"
        for path in sorted(_files_below(place)):
            tile = parse_tile(path.relative_to(place).as_posix())
            if (tile is None and os.path.lexists(path)) or path.is_symlink():
                self._report.add(path, "a foreign file among the tiles")
            elif tile and tile.width < WIDTH and (hashes := self._hashes(tile, tree)) is not None:
                at = differs(self._directory, tile, hashes)
                if at is not None and not any(problem.file == path for problem in self._report.problems):
                    self._report.add(path, _tile_problem(tile, at))

    def _hashes(self, tile: Tile, tree: Tree) -> bytes | None:
        """What a partial tile has to hold; None: it is behind the checkpoint, left by a crash, and nobody reads it."""
        if tile.number * WIDTH + tile.width > tree.size // WIDTH**tile.level:
            return None
        if tile.level:
            return tree.levels[tile.level][tile.number * WIDTH * HASH :][: tile.width * HASH]
        if tile.number == tree.size // WIDTH:
            return tree.levels[0][: tile.width * HASH]
        try:
            return (self._directory / tile._replace(width=WIDTH).name).read_bytes()[: tile.width * HASH]
        except OSError:
            return None

    def _check_payloads(self, walk: Walk) -> None:
        store = ContentStore(self._directory)
        for seq, digest in walk.payloads:
            if not store.path(digest).is_file():
                place = bisect_right([segment.first for segment in walk.segments], seq) - 1
                segment = walk.segments[place]
                why = f"its payload content/{digest[:2]}/{digest} is missing"
                self._report.add(segment.path, why, seq - segment.first + 1, seq)
        for path, why in store.problems():
            self._report.add(path, why)

    def _check_grown(self, path: Path, tree: Tree, *, complete: bool) -> None:
        """Whether the log begins with what an older checkpoint signed."""
        try:
            old = open_checkpoint(read_note(path), self._verifier, where=str(path))
        except AuditCorrupt as error:
            self._report.add(path, str(error).partition(": ")[2])
            return
        self._report.against.append(old.size)
        if old.size > self._checkpoint.size:
            self._report.add(
                self._directory / "checkpoint",
                f"it covers {self._checkpoint.size} lines, but {path} signs {old.size}: the log was cut or rolled back",
            )
        elif complete and self._root_at(old.size, tree) != old.root:
            self._report.add(
                path, f"the first {old.size} lines of the log are not those that it signs: the log was changed"
            )

    def _root_at(self, size: int, tree: Tree) -> bytes:
        start = size // WIDTH * WIDTH
        lines = islice(read_lines(self._directory, start), size - start)
        return tree.root(size, leaf_hashes([line for _, line in lines]))


def _files_below(place: Path) -> Iterator[Path]:
    """Files and links; a sealer at work removes partial tiles and their directories meanwhile, which is no problem."""
    for folder, directories, files in os.walk(place):
        yield from (Path(folder, name) for name in files)
        yield from (path for name in directories if (path := Path(folder, name)).is_symlink())


def _tile_problem(tile: Tile, at: int) -> str:
    if at < 0:
        return f"the tile is missing, or has not {tile.width * HASH} bytes"
    return f"its hash {at} is not that of the lines, which lead to the signed root"
