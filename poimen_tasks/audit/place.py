"""The directory of a log, before anything is looked for or written there."""

from __future__ import annotations

from pathlib import Path

from poimen_tasks._places import unusable
from poimen_tasks.errors import AuditUnavailable

__all__ = ["SETTING", "check_place"]

#: What says where the log is, unless a command was given its directory.
SETTING = (
    "set POIMEN_AUDIT_DIR to the log's directory; by default it is `audit` in POIMEN_DATA_DIR, or in that of --dir"
)


def check_place(directory: Path, *, write: bool = False, advice: str = SETTING) -> None:
    """Refuse what can hold no log: a file, a link that leads nowhere, a directory without the rights.

    Args:
        directory: where the log is, or is to be.
        write: whether it is to be written.
        advice: how to name another directory.

    Raises:
        AuditUnavailable: it is that.
    """
    if reason := unusable(directory, write=write):
        raise AuditUnavailable(f"no audit log can be {'kept' if write else 'read'} there: {reason}; {advice}")
