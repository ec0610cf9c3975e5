"""What a verification found, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from poimen_tasks.errors import AuditCorrupt

__all__ = ["Problem", "Progress", "Report"]

#: Called with the bytes that were read, and those that there are.
Progress = Callable[[int, int], None]


class Problem(NamedTuple):
    """Something that is not as it was sealed.

    Attributes:
        file: where.
        why: what is wrong with it, in words.
        line: the how manieth line of the file, from 1; None: the file itself.
        seq: the number of that line in the log; None: not known.
    """

    file: Path
    why: str
    line: int | None = None
    seq: int | None = None

    def __str__(self) -> str:
        place = "" if self.line is None else f" line {self.line}"
        place += "" if self.seq is None else f" (seq {self.seq})"
        return f"{self.file}{place}: {self.why}"


@dataclass(slots=True)
class Report:
    """What a verification found.

    Attributes:
        directory: the log; None: exported files were checked.
        origin: its name.
        size: how many lines its checkpoint covers.
        root: the signed hash over them, in hex.
        lines: whole lines that were read, also behind the checkpoint; of exported files, those that are proved.
        against: the sizes of the older checkpoints that it was held against.
        problems: what is wrong, the first bad line first.
        notes: what is no fault, but worth knowing.
    """

    directory: Path | None = None
    origin: str = ""
    size: int = 0
    root: str = ""
    lines: int = 0
    against: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything is as it was sealed."""
        return not self.problems

    def add(self, file: Path, why: str, line: int | None = None, seq: int | None = None) -> None:
        """One more problem."""
        self.problems.append(Problem(file, why, line, seq))

    def add_error(self, error: AuditCorrupt) -> None:
        """The same, from an error, whose text begins with the file."""
        file, _, why = str(error).partition(": ")
        self.add(Path(file), why)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "ok": self.ok, "directory": str(self.directory) if self.directory else None,
            "origin": self.origin, "size": self.size, "root": self.root, "lines": self.lines,
            "against": self.against, "notes": self.notes,
            "problems": [{**one._asdict(), "file": str(one.file)} for one in self.problems],
        }  # fmt: skip
