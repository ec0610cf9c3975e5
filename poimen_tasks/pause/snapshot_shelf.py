"""The directory of snapshots: which file is whose, and how a new one takes its place.

A file is named after a hash of its workflow, so no id leads elsewhere, meets another on a file system that does not
tell cases apart, or is a name that a system keeps for itself. What is readable of the id stands in front of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from poimen_tasks._places import unusable
from poimen_tasks.errors import PoimenError, SnapshotConflict, SnapshotCorrupt, SnapshotFailed
from poimen_tasks.pause.snapshot import Snapshot
from poimen_tasks.pause.snapshot_file import SnapshotReader, read_summary

__all__ = ["Shelf", "safe_name"]

log = logging.getLogger(__name__)

_SUFFIX = ".snapshot"
_JSON = ".snapshot.json"
_LOCK = ".lock"
_STALE = 3600.0
_RESUMED = ("resumed_at", "resume_attempts", "resume_success")
_FILE = re.compile(r"([A-Za-z0-9_-]{1,40}-[0-9a-f]{20})(?:\.(\d{1,3}))?\.snapshot").fullmatch


def safe_name(workflow: str) -> str:
    """The name of a workflow's files, without suffix: what is plain in its id, and a hash of all of it."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", workflow)[:40] or "-"
    return f"{plain}-{hashlib.sha256(workflow.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}"


class Shelf:
    """The snapshots of one namespace below a data directory. Nothing is made there before the first is written."""

    def __init__(self, data_dir: Path, *, namespace: str, keep: int) -> None:
        # A workflow's id says nothing about whose it is: several namespaces may have one of the same id.
        self.directory = Path(data_dir) / "snapshots" / namespace
        self._keep = keep

    def path(self, workflow: str, generation: int = 0) -> Path:
        """Where a snapshot of a workflow is; generation 0 is the newest."""
        return self._path(safe_name(workflow), generation)

    def _path(self, name: str, generation: int) -> Path:
        path = self.directory / (f"{name}.{generation}{_SUFFIX}" if generation else f"{name}{_SUFFIX}")
        if path.parent != self.directory or not _FILE(path.name):
            raise SnapshotFailed(f"snapshot {path.name!r} would not be in {str(self.directory)!r}")
        return path

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, workflow: str, fill: Callable[[IO[bytes]], Snapshot]) -> Snapshot:
        """Write a new snapshot of a workflow; the one before becomes generation 1.

        Args:
            workflow: whose.
            fill: writes the file, and returns its value.

        Raises:
            SnapshotFailed: it could not be written; what was there before is untouched.
        """
        target = self.path(workflow)
        scratch: Path | None = None
        try:
            self._make_directory(target)
            scratch = self.directory / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
            with _new_file(scratch) as file:
                snapshot = fill(file)
            with self._locked():
                self._shift(target.name.removesuffix(_SUFFIX))
                scratch.replace(target)
                self._write_json(target, snapshot)
                _sync(self.directory)
        except OSError as error:
            if isinstance(error, PoimenError):
                raise
            raise SnapshotFailed(
                f"snapshot of workflow {workflow!r} was not written to {str(target)!r} ({error.strerror or error}): "
                "what was there before is untouched"
            ) from error
        finally:
            if scratch is not None:
                scratch.unlink(missing_ok=True)
        return snapshot

    def _make_directory(self, target: Path) -> None:
        for path in (self.directory.parent, self.directory, target, _json_of(target)):
            if path.is_symlink():
                raise SnapshotFailed(f"{str(path)!r} is a symbolic link: snapshots are not written through one")
        self._check_place(write=True)
        self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for left in self.directory.glob(".*.tmp"):  # of a process that was killed
            with suppress(OSError):
                if time.time() - left.lstat().st_mtime > _STALE:
                    left.unlink()

    def _check_place(self, *, write: bool = False) -> None:
        if reason := unusable(self.directory, write=write):
            kept = "kept" if write else "read"
            raise SnapshotFailed(
                f"no snapshots can be {kept} there: {reason}; set POIMEN_DATA_DIR, or --dir, to another"
            )

    def _shift(self, name: str) -> None:
        """Each generation becomes one older; the newest stays in its place until it is replaced."""
        for generation in range(self._keep - 1, 0, -1):
            older, newer = self._path(name, generation), self._path(name, generation - 1)
            for old, new in ((older, newer), (_json_of(older), _json_of(newer))):
                if not new.is_file():
                    continue
                old.unlink(missing_ok=True)
                try:
                    os.link(new, old, follow_symlinks=False)
                except OSError:  # no links on this file system
                    new.rename(old)
        for generation, path in self._generations(name):
            if generation >= self._keep:
                _remove(path)

    def _write_json(self, target: Path, snapshot: Snapshot) -> None:
        """The readable summary; the snapshot is whole without it."""
        path = _json_of(target)
        scratch = self.directory / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        try:
            with _new_file(scratch) as file:
                file.write(json.dumps(snapshot.to_dict(), indent=1, default=str, ensure_ascii=False).encode())
            scratch.replace(path)
        except OSError as error:
            log.warning("the summary %s could not be written: %s", path, error)
        finally:
            scratch.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        number = os.open(self.directory / _LOCK, flags, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    def note_resumed(self, snapshot: Snapshot) -> None:
        """Keep what became of a snapshot in its summary."""
        target = self._path(safe_name(snapshot.workflow), snapshot.generation)
        try:
            with self._locked():
                self._write_json(target, snapshot)
        except OSError as error:
            log.warning("what became of snapshot %s could not be noted: %s", target, error)

    # --- reading -------------------------------------------------------------------------------------------------

    def open(self, workflow: str, generation: int = 0, *, snapshot_id: str | None = None) -> SnapshotReader:
        """The file of a workflow's snapshot, its checksum looked at.

        Raises:
            SnapshotConflict: it is not the one of this id any more: a newer one took its place meanwhile.
            SnapshotNotFound: there is none.
            SnapshotCorrupt: it is torn, altered, or another workflow's.
            SnapshotTooNew: a newer version wrote it.
        """
        reader = SnapshotReader(self.path(workflow, generation))
        if reader.summary.get("workflow") != workflow:
            raise SnapshotCorrupt(f"snapshot {str(reader.path)!r} is one of another workflow")
        if snapshot_id not in (None, reader.summary.get("id")):
            raise SnapshotConflict(
                f"snapshot {snapshot_id!r} of {workflow!r} was replaced by a newer one meanwhile: try again"
            )
        return reader

    def value(self, path: Path, generation: int) -> Snapshot:
        """The value of a file; what became of it is taken from the readable summary.

        Raises:
            SnapshotCorrupt, SnapshotTooNew, SnapshotNotFound: as `open`.
        """
        _, summary, size = read_summary(path)
        try:
            known = {**summary, "size": size, "generation": generation, **self._resumed(path, summary.get("id"))}
            snapshot = Snapshot.unpacked(known)
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise SnapshotCorrupt(f"snapshot {str(path)!r}: its summary has another form ({error})") from error
        if safe_name(snapshot.workflow) not in path.name:
            raise SnapshotCorrupt(f"snapshot {str(path)!r} is one of workflow {snapshot.workflow!r:.80}")
        return snapshot

    def _resumed(self, path: Path, snapshot_id: Any) -> dict[str, Any]:
        try:
            told = json.loads(_json_of(path).read_bytes())
            if told["id"] != snapshot_id:
                return {}
            found = {name: told[name] for name in _RESUMED}
            found["resumed_at"] = _seconds(found["resumed_at"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return found

    def files(self) -> Iterator[tuple[int, Path]]:
        """All files that are named as snapshots are: generation and path."""
        try:
            entries = sorted(os.scandir(self.directory), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            self._check_place()
            return
        except OSError as error:
            raise SnapshotFailed(
                f"snapshots in {str(self.directory)!r} cannot be read ({error.strerror or error})"
            ) from error
        for entry in entries:
            found = _FILE(entry.name)
            if found and stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                yield int(found[2] or 0), Path(entry.path)
            elif entry.name.endswith(_SUFFIX):
                yield -1, Path(entry.path)

    def _generations(self, name: str) -> list[tuple[int, Path]]:
        return [(at, path) for at, path in self.files() if at >= 0 and path.name.startswith(f"{name}.")]

    def remove(self, workflow: str) -> int:
        """Remove all snapshots of a workflow. Returns how many there were."""
        found = self._generations(safe_name(workflow))
        for _, path in found:
            _remove(path)
        return len(found)

    def is_there(self, path: Path) -> bool:
        """Whether there is a file, or anything else, of that name.

        Raises:
            SnapshotFailed: that cannot be seen.
        """
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            self._check_place()
            return False
        except OSError as error:
            raise SnapshotFailed(f"snapshot {str(path)!r} cannot be read ({error.strerror or error})") from error
        return True

    def remove_one(self, path: Path) -> None:
        """Remove one file and its summary."""
        _remove(path)


def _seconds(text: str | None) -> float | None:
    from datetime import datetime

    return None if text is None else datetime.fromisoformat(text).timestamp()


def _json_of(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(_SUFFIX) + _JSON)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        _json_of(path).unlink(missing_ok=True)
    except OSError as error:
        raise SnapshotFailed(f"snapshot {str(path)!r} cannot be removed ({error.strerror or error})") from error


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that nobody else has; on the disk when the block ends."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
