"""How repairs are made: in whose name, and what becomes of the tickets that they issue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poimen_tasks.store.values import Ticket

__all__ = ["REPAIR", "Publish", "Repairs"]

#: Publishes tickets; what it cannot publish, the keeper issues again.
Publish = Callable[[Sequence[Ticket]], None]

#: The advice of everything that can be repaired.
REPAIR = "run `poimen doctor -A APP --repair`"


@dataclass(frozen=True, slots=True)
class Repairs:
    """Given to a check, it repairs; `actor` is who, for the audit log."""

    actor: str
    publish: Publish
