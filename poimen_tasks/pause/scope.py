"""What a pause covers: everything, a workflow, a batch, a queue or an activity."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from poimen_tasks._checks import check_flag
from poimen_tasks.errors import InvalidArgument
from poimen_tasks.ids import check_label, check_name

__all__ = ["Kind", "Scope"]

Kind = Literal["everything", "workflow", "batch", "queue", "activity"]

_LETTERS: dict[str, Kind] = {"w": "workflow", "b": "batch", "q": "queue", "a": "activity"}
_KEYWORDS = ("workflow", "batch", "queue", "activity", "everything")
_RULE = "exactly one of workflow=, batch=, queue=, activity= and everything=True"


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope.

    Attributes:
        kind: what it is.
        id: of the workflow or batch, or the name of the queue or task; empty for everything.
    """

    kind: Kind
    id: str = ""

    @classmethod
    def of(
        cls,
        *,
        workflow: str | None = None,
        batch: str | None = None,
        queue: str | None = None,
        activity: Any = None,
        everything: bool = False,
    ) -> Self:
        """From the arguments that every verb of pausing takes; an activity may be given as its task.

        Raises:
            InvalidArgument: none or several are given.
            InvalidId: one breaks its rule.
        """
        check_flag("everything", everything)
        named = {"workflow": workflow, "batch": batch, "queue": queue, "activity": activity}
        given = {kind: value for kind, value in named.items() if value is not None}
        if len(given) + everything != 1:
            names = [*given, *(["everything"] if everything else [])]
            raise InvalidArgument(f"what to pause: expected {_RULE}, got {', '.join(names) or 'none of them'}")
        if everything:
            return cls("everything")
        ((kind, value),) = given.items()
        if kind == "activity":
            return cls("activity", check_label(getattr(value, "name", value), "activity"))
        if kind == "queue":
            return cls("queue", check_label(value, "queue"))
        return cls("workflow" if kind == "workflow" else "batch", check_name(value, f"{kind} id"))

    @classmethod
    def among(cls, given: Mapping[str, Any], *own: str) -> Self:
        """From the keywords of a verb that are not its own.

        Args:
            given: those.
            *own: the names of its own ones, for the error.

        Raises:
            InvalidArgument: one is neither, or none or several scopes are given.
            InvalidId: one breaks its rule.
        """
        for name in given:
            if name not in _KEYWORDS:
                allowed = (*own, *_KEYWORDS)
                near = difflib.get_close_matches(name, allowed, n=1)
                meant = f"; did you mean {near[0]}=?" if near else "."
                raise InvalidArgument(f"{name}=: no such option{meant} Allowed are {', '.join(allowed)}")
        return cls.of(**given)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text that the store knows it by."""
        return cls("everything") if text == "*" else cls(_LETTERS[text[0]], text[2:])

    @property
    def text(self) -> str:
        """What the store, the audit log and `BatchStatus.paused_by` know it by: `*`, `w:<workflow>` and so on."""
        return "*" if self.kind == "everything" else f"{self.kind[0]}:{self.id}"

    def __str__(self) -> str:
        return self.kind if self.kind == "everything" else f"{self.kind} {self.id}"
