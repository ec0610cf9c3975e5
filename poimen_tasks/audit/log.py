"""The log on disk, as its one writer has it: lines in segments, a hash tree over them, a signed checkpoint.

The order of every seal: lines written → fdatasync → tiles → checkpoint (aside, fsync, rename, fsync of the directory).
Killed between any two of them, the next `open` finds what the checkpoint covers as it was, keeps whole entries behind
it and cuts the rest. Tiles are synced when their segment is closed; until then `open` can make them from the lines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from poimen_tasks.audit.blocks import encode, msgspec_module
from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.keys import Signer, check_origin, key_at
from poimen_tasks.audit.lines import PRINTABLE, Columns, Line, Lines, event_type, follows, in_order, places_of
from poimen_tasks.audit.merkle import EMPTY, leaf_hashes
from poimen_tasks.audit.note import Checkpoint, open_checkpoint, read_note, sign_checkpoint
from poimen_tasks.audit.recovery import Recovered, day_of, recover
from poimen_tasks.audit.segments import read_lines, sealed_size, segments_in
from poimen_tasks.audit.tail import Lock, Tail, identity
from poimen_tasks.audit.tiles import Tile, TileReader
from poimen_tasks.errors import AuditCorrupt, AuditDiskError, AuditUnavailable, InvalidArgument

__all__ = ["Line", "Lines", "SealedLog", "read_lines", "sealed_size"]

_MIB = 1 << 20
# Bytes of a line beside its event, at most about; and lines that are made at a time.
_FRAME, _SLICE = 200, 1_000


class SealedLog:
    """A log that is open for writing; take it from `open`.

    Attributes:
        directory: where it is.
        origin: its name, as it stands in checkpoints.
        size: how many lines the checkpoint on disk covers.
        unsealed: how many lines were appended since.
        recovered: what `open` had to cut or write again; empty: nothing.
    """

    def __init__(self, directory: Path, signer: Signer, lock: Lock, found: Recovered, disk: Disk) -> None:
        self.directory, self.origin = directory, signer.verifier.origin
        self.size, self.recovered = found.edge.size, found.report
        self._signer, self._lock, self._disk, self._limit = signer, lock, disk, 64 * _MIB
        self._edge, self._place, self._pending = found.edge, found.place, list(found.pending)
        self.unsealed = len(found.pending)
        self._tail = Tail.resume(found.tail, found.day, disk) if found.tail else None
        self._unsynced = list(found.tiles)
        # Partial tiles of this size that are on the disk: written once, since readers may have them open.
        self._partials = {tile for tile, _ in found.edge.partial()}
        self._checkpoint = identity(directory / "checkpoint")
        # The kernel writes while the lines are hashed.
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="audit-sync")
        self._failed = ""

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        origin: str,
        segment_bytes: int = 64 * _MIB,
        create: bool = True,
        disk: Disk | None = None,
    ) -> Self:
        """Take the log for writing: lock it, read its end, cut what a crash left unfinished, seal what is whole.

        Args:
            directory: where it is, or is to be.
            origin: its name, for ever: 1 to 128 visible ASCII characters without plus.
            segment_bytes: a segment is closed before it grows over this, unless one call of `append` is larger.
            create: begin a log where there is none.
            disk: how files are written.

        Raises:
            SealerConflict: another process writes it.
            AuditCorrupt: something that was sealed is missing or was changed; nothing was written.
            AuditUnavailable: there is none, or it cannot be read, or others may read its key, or a package is missing.
            AuditDiskError: it cannot be written.
            InvalidArgument: it has another origin.
        """
        check_origin(origin)
        msgspec_module()
        disk = disk or Disk()
        if not create and not (directory / "checkpoint").exists():
            raise AuditUnavailable(f"{directory}: there is no audit log; `poimen audit seal` begins one")
        disk.make_directory(directory)
        lock = Lock(directory / "lock")
        try:
            signer = key_at(directory, origin, disk=disk)
            checkpoint = _begin(directory, signer, disk)
            log = cls(directory, signer, lock, recover(directory, checkpoint, disk), disk)
            log._limit = segment_bytes
            log.seal()
        except BaseException:
            lock.close()
            raise
        return log

    @property
    def public_key(self) -> str:
        """The line with the public key, for those who verify."""
        return str(self._signer.verifier)

    @property
    def cursor(self) -> tuple[str, str] | None:
        """Epoch and id of the last line; None: there is none."""
        return (self._place.epoch.decode(), self._place.id) if self._place else None

    def append(self, lines: Sequence[Line] | Lines, *, day: str | None = None) -> None:
        """Write whole entries behind the last line; they are on the disk after the next `seal`.

        Args:
            lines: in order, one by one or as columns; the last one ends its entry.
            day: the UTC day, as 2025-11-29; another one than before closes the segment. None: that of the first
                line's id.

        Raises:
            InvalidArgument: a line may not stand where it would, or is none; nothing was written.
            AuditCorrupt: the files were changed by somebody else.
            AuditDiskError: the disk is full or broken; open the log again.
        """
        block = lines if isinstance(lines, Lines) else Lines.of(lines)
        if not block.events:
            return
        with self._usable():
            columns, count = self._checked(block), len(block.events)
            length = sum(map(len, block.events)) + count * _FRAME
            tail = self._room(length, day_of(columns.place(0)) if day is None else day)
            # By slices that stay in the processor's cache: a line is made, written and hashed while it is there.
            for at in range(0, count, _SLICE):
                data = encode(self.size + self.unsealed, block.part(at, at + _SLICE))
                made = data.splitlines()
                self._pending.append(leaf_hashes(made))
                self.unsealed += len(made)
                tail.write(data)
            self._place = columns.place(-1)

    def seal(self) -> int:
        """Bring what was appended to the disk, and sign it; returns the new `size`.

        Raises:
            AuditCorrupt: the files were changed by somebody else.
            AuditDiskError: the disk is full or broken; what was sealed before is as it was. Open the log again.
        """
        if self.unsealed:
            with self._usable():
                self._check_untouched()
                synced = self._pool.submit(self._tail.sync) if self._tail else None
                full = self._edge.extend(b"".join(self._pending))
                if synced:
                    synced.result()
                self._sign(full)
        return self.size

    def root(self, size: int) -> bytes:
        """The root of the tree over the first lines, as many as this; they must be sealed."""
        if size == self.size and not self._pending:
            return self._edge.root()
        return TileReader(self.directory, self.size).subtree(0, size) if size else EMPTY

    def close(self) -> None:
        """Give the log free; what was not sealed is left to the next `open`."""
        self._pool.shutdown()
        if self._tail:
            self._tail.close()
        self._lock.close()
        self._failed = self._failed or "it was closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ parts
    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """After a failure in the middle nobody knows what is on the disk: only `open` finds out."""
        if self._failed:
            raise AuditDiskError(f"{self.directory}: the log is not open any more: {self._failed}")
        try:
            yield
        except InvalidArgument:
            raise
        except BaseException as error:
            self._failed = str(error) or type(error).__name__
            raise

    def _checked(self, lines: Lines) -> Columns:
        try:
            columns = places_of(lines)
        except ValueError as error:
            raise InvalidArgument(f"lines: {error}") from None
        if follows(self._place, columns.place(0), "") or not in_order(columns):
            places = [columns.place(at) for at in range(len(lines.events))]
            for before, place, event in zip((self._place, *places), places, lines.events, strict=False):
                if follows(before, place, "") and (why := follows(before, place, event_type(event))):
                    raise InvalidArgument(f"lines: {why}")
        _check_events(lines)
        if not lines.lasts[-1]:
            raise InvalidArgument(f"lines: entry {lines.ids[-1]} is only half there; append whole entries")
        return columns

    def _room(self, more: int, day: str) -> Tail:
        """The segment for the next lines: the open one, or a new one when that is full or of another day."""
        tail = self._tail
        if tail and not tail.closed:
            if not tail.size or (tail.size + more <= self._limit and tail.day == day):
                tail.day = day
                return tail
            self.seal()
            self._sync_tiles()
            tail.lock_up()
        self._tail = Tail.begin(self.directory, self.size, day, self._disk)
        return self._tail

    def _sync_tiles(self) -> None:
        """Those of a segment, before it is closed; at once, so that they share the journal's commits."""
        for paths in (self._unsynced, {path.parent for path in self._unsynced}):
            list(self._pool.map(self._disk.sync_path, paths))
        self._unsynced = []

    def _sign(self, full: list[tuple[Tile, bytes]]) -> None:
        """Tiles and checkpoint for the lines that are on the disk."""
        for tile, hashes in full:
            self._disk.put(self.directory / tile.name, hashes)
            self._unsynced.append(self.directory / tile.name)
        partial = self._edge.partial()
        for tile, hashes in partial:
            if tile not in self._partials:
                self._disk.put(self.directory / tile.name, hashes)
        checkpoint = Checkpoint(self.origin, self._edge.size, self._edge.root())
        path = self.directory / "checkpoint"
        self._disk.replace(path, sign_checkpoint(checkpoint, self._signer))
        self._checkpoint = identity(path)
        self.size, self._pending, self.unsealed = checkpoint.size, [], 0
        self._partials = {tile for tile, _ in partial}
        for tile, _ in full:
            self._remove_partials(tile)

    def _remove_partials(self, tile: Tile) -> None:
        """The full tile serves for them."""
        place = tile.partials(self.directory)
        with contextlib.suppress(FileNotFoundError):
            for path in list(place.iterdir()):
                self._disk.remove(path)
            place.rmdir()

    def _check_untouched(self) -> None:
        """Whether the files are still those that this process opened, and as long as it made them."""
        self._lock.check()
        path = self.directory / "checkpoint"
        if identity(path) != self._checkpoint:
            raise AuditCorrupt(f"{path}: somebody else replaced it while the log was open")
        if self._tail:
            self._tail.check()


def _check_events(lines: Lines) -> None:
    text, between = b"\n".join(lines.events), len(lines.events) - 1
    if not (text.startswith(b"{") and text.endswith(b"}") and text.count(b"}\n{") == between):
        for ident, event in zip(lines.ids, lines.events, strict=True):
            if not (event.startswith(b"{") and event.endswith(b"}")):
                raise InvalidArgument(f"lines: the event of entry {ident} is no JSON object: {event!r:.60}")
    if text.translate(None, PRINTABLE) != b"\n" * between:
        raise InvalidArgument("lines: an event holds a control character, or one that is not ASCII")


def _begin(directory: Path, signer: Signer, disk: Disk) -> Checkpoint:
    """The checkpoint of a log; of a new one, that of no lines."""
    path = directory / "checkpoint"
    disk.remove(directory / "checkpoint.tmp")
    if not path.exists():
        disk.make_directory(directory / "segments")
        if segments_in(directory):
            raise AuditCorrupt(f"{path}: the checkpoint is gone, but there are segments")
        disk.replace(path, sign_checkpoint(Checkpoint(signer.verifier.origin, 0, EMPTY), signer))
    return open_checkpoint(read_note(path), signer.verifier, where=str(path))
