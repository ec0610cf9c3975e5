"""What a check says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """How bad it is: work goes wrong with an `error`, may go wrong with a `warning`."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        level: how bad it is.
        check: the check's name.
        subject: what it is about: a batch, a queue, a setting.
        message: what is the case.
        advice: what to do next; empty when nothing is to be done.
        repairable: whether `doctor` can put it right.
        repaired: whether it has.
    """

    level: Level
    check: str
    subject: str
    message: str
    advice: str = ""
    repairable: bool = False
    repaired: bool = False

    @property
    def is_failure(self) -> bool:
        """True for an error that stands."""
        return self.level is Level.ERROR and not self.repaired

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "level": str(self.level)}
