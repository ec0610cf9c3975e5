"""A task of a board, what states it may have, and what may stand in a cell."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

from poimen_tasks._checks import expected
from poimen_tasks.errors import InvalidArgument, InvalidId
from poimen_tasks.ids import check_label

__all__ = [
    "COLUMNS",
    "MOST_CHARACTERS",
    "STATUS_RULE",
    "BoardTask",
    "TaskStatus",
    "cell_fault",
    "check_cell",
    "check_status",
    "check_task_id",
    "clean_cell",
    "meant",
]

#: The columns of a board's table, as they are written in a new one.
COLUMNS = ("ID", "Scope", "Status", "Branch", "Verification")

#: Most characters of a cell.
MOST_CHARACTERS = 2_000

#: What is no text on one line, or makes a line read otherwise than it is stored (control characters, separators of
#: lines, marks of direction, halves of characters). Other invisible ones, as in an emoji of several, are text.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class TaskStatus(StrEnum):
    """How far a task is. A board may write a status in any case, with spaces or hyphens: `In progress`."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    IN_REVIEW = "in_review"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def rank(self) -> int:
        """Its place in this list."""
        return _RANKS[self]

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The status that a text spells; None for none."""
        return cls._value2member_map_.get(_plain(text))  # type: ignore[return-value]


_RANKS = {status: rank for rank, status in enumerate(TaskStatus)}

STATUS_RULE = f"one of {', '.join(TaskStatus)}"

#: What people also write, and mean.
_MEANT = {
    **dict.fromkeys(("todo", "to_do", "open", "new", "planned", "ready", "waiting", "queued"), TaskStatus.PENDING),
    **dict.fromkeys(("wip", "doing", "started", "running", "active", "inprogress"), TaskStatus.IN_PROGRESS),
    **dict.fromkeys(("review", "reviewing", "verifying", "inreview"), TaskStatus.IN_REVIEW),
    **dict.fromkeys(("paused", "stuck", "on_hold"), TaskStatus.BLOCKED),
    **dict.fromkeys(("done", "complete", "finished", "merged", "closed", "succeeded", "passed"), TaskStatus.COMPLETED),
    **dict.fromkeys(("failure", "error", "broken"), TaskStatus.FAILED),
    **dict.fromkeys(("canceled", "abandoned", "skipped", "dropped"), TaskStatus.CANCELLED),
}


def _plain(text: str) -> str:
    return text.lower().replace(" ", "_").replace("-", "_")


def meant(text: str) -> TaskStatus | None:
    """The status that a text spells, or is likely to mean; None where there is no telling."""
    return TaskStatus.read(text) or _MEANT.get(_plain(text))


def check_status(value: object) -> TaskStatus:
    """A status from itself or its text.

    Raises:
        InvalidArgument: it is none.
    """
    found = TaskStatus.read(value) if isinstance(value, str) else None
    if found is None:
        raise expected("status", STATUS_RULE, value)
    return found


def check_task_id(value: object) -> str:
    """A task id as a plain `str`: a label that does not begin or end with a space, since a cell would lose it.

    Raises:
        InvalidId: it is none.
    """
    label = check_label(value, "task id")
    if label != label.strip(" "):
        raise InvalidId(f"task id: expected no space at either end, got {label[:60]!r}")
    return label


def cell_fault(text: str) -> str | None:
    """What keeps a text out of a cell, in words; None for nothing."""
    found = _FORBIDDEN.search(text)
    if found:
        return f"holds the character U+{ord(found[0]):04X}; allowed is text on one line without control characters"
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text):,} characters; allowed are at most {MOST_CHARACTERS:,}"
    return None


def clean_cell(text: str) -> str:
    """As much of a text as may stand in a cell."""
    return _FORBIDDEN.sub(" ", text).strip(" ")[:MOST_CHARACTERS].rstrip(" ")


def check_cell(what: str, value: object) -> str:
    """A cell's text as a plain `str`.

    Raises:
        InvalidArgument: it is no text, or none that stands in a cell as it is.
    """
    if not isinstance(value, str):
        raise expected(what, "a text", value)
    fault = cell_fault(value) or (None if value == value.strip(" ") else "begins or ends with a space")
    if fault:
        raise InvalidArgument(f"{what}: {fault}")
    return str.__str__(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTask:
    """One row of a board.

    Attributes:
        id: 1-256 printable characters; unique on its board.
        scope: what is to be done.
        status: how far it is; a text that spells one becomes it.
        branch: where the work is.
        verification: how it is shown to be done.

    Raises:
        InvalidId: the id breaks its rule.
        InvalidArgument: another part does: it is no text on one line, or no status.
    """

    id: str
    scope: str = ""
    status: TaskStatus = TaskStatus.PENDING
    branch: str = ""
    verification: str = ""

    def __post_init__(self) -> None:
        """Check every part."""
        object.__setattr__(self, "id", check_task_id(self.id))
        object.__setattr__(self, "status", check_status(self.status))
        for name in ("scope", "branch", "verification"):
            object.__setattr__(self, name, check_cell(name, getattr(self, name)))

    def to_dict(self) -> dict[str, str]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "status": str(self.status)}
