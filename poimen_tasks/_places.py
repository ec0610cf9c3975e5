"""Directories that somebody named in a setting or an option: whether anything can be kept there, said in words."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["unusable"]

_RIGHTS = {os.R_OK: "read", os.W_OK: "written"}


def unusable(directory: Path, *, write: bool = False) -> str:
    """Why a directory is of no use, as what follows "because"; empty: it is of use, or not there yet and can be made.

    Args:
        directory: where; links are followed.
        write: whether files are to be written there, and the directory to be made, too.
    """
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        return _not_there(directory, write=write)
    except NotADirectoryError:
        return _above(directory)
    except ValueError as error:
        return f"{str(directory)!r} is no path ({error})"
    except OSError as error:
        return f"{str(directory)!r} cannot be looked at ({error.strerror or error})"
    if not stat.S_ISDIR(mode):
        return f"{str(directory)!r} is a file, not a directory"
    return _forbidden(directory, os.R_OK) or (_forbidden(directory, os.W_OK) if write else "")


def _not_there(directory: Path, *, write: bool) -> str:
    for place in (directory, *directory.absolute().parents):
        if place.is_symlink():
            return f"{str(place)!r} is a symbolic link to {str(place.readlink())!r}, which is not there"
        if place.exists():
            return _forbidden(place, os.W_OK) if write else ""
    return ""


def _above(directory: Path) -> str:
    """One of those above it is none; looked for from the root on, since nothing below that can be looked at."""
    above = next((place for place in reversed(directory.absolute().parents) if not place.is_dir()), directory)
    return f"{str(above)!r} is a file, not a directory"


def _forbidden(directory: Path, right: int) -> str:
    if os.access(directory, right | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return ""
    return f"{str(directory)!r} may not be {_RIGHTS[right]} by this user ({os.geteuid()})"
