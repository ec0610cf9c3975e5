"""Directories of settings and options: why one is of no use."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from poimen_tasks._places import unusable

_NOBODY = 65_534


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory that every user may look into; pytest's own ones are for one user alone."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Rights count: root, who has all of them, is somebody else meanwhile."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("write", [False, True])
def test_of_use(top: Path, *, write: bool) -> None:
    """A directory, one behind a link, and one that is not there yet are of use; nothing is made by asking."""
    (top / "link").symlink_to(top)
    assert unusable(top, write=write) == ""
    assert unusable(top / "link", write=write) == ""
    assert unusable(top / "a" / "b", write=write) == ""
    assert [path.name for path in top.iterdir()] == ["link"]


@pytest.mark.parametrize("write", [False, True])
def test_no_directory(top: Path, *, write: bool) -> None:
    """A file, what would be below one, and links that lead nowhere or in a circle are named."""
    (top / "file").touch()
    (top / "lost").symlink_to(top / "nowhere")
    (top / "round").symlink_to(top / "round")
    for path in (top / "file", top / "file" / "a" / "b"):
        assert unusable(path, write=write) == f"'{top}/file' is a file, not a directory"
    for path in (top / "lost", top / "lost" / "a"):
        said = unusable(path, write=write)
        assert said == f"'{top}/lost' is a symbolic link to '{top}/nowhere', which is not there"
    assert "cannot be looked at (Too many levels of symbolic links)" in unusable(top / "round", write=write)


def test_rights(top: Path) -> None:
    """What this user may not read or write is told, with the user; also where the directory is yet to be made."""
    for name, mode in (
        ("closed", 0o700 if os.geteuid() == 0 else 0),
        ("readable", 0o755 if os.geteuid() == 0 else 0o555),
    ):
        (top / name).mkdir()
        (top / name).chmod(mode)
    with without_rights():
        user = os.geteuid()
        assert unusable(top / "closed") == f"'{top}/closed' may not be read by this user ({user})"
        assert unusable(top / "closed" / "in" / "it") == f"'{top}/closed/in/it' cannot be looked at (Permission denied)"
        assert unusable(top / "readable") == ""
        for path in (top / "readable", top / "readable" / "new"):
            assert unusable(path, write=True) == f"'{top}/readable' may not be written by this user ({user})"


def test_no_path_at_all(top: Path) -> None:
    """A text that can be no path, as one with a NUL in it, is told like any other that is of no use."""
    assert unusable(Path(f"{top}/a\0b"), write=True) == f"'{top}/a\\x00b' is no path (embedded null byte)"
