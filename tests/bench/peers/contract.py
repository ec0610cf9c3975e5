"""What the comparison needs to know of a task queue. Worker processes import this: it stays light."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OURS", "PROCESSES", "Peer", "module"]

# Worker processes of each side: as many as the machine has that the published figures are from.
PROCESSES = 2
OURS = "Poimen"


def _nothing(_queued: Any) -> None:
    """There is nothing to wait for beyond the last body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One task queue, with the settings under which its own documentation says it is fast.

    Attributes:
        name: as the tables show it.
        packages: distributions whose versions are shown.
        chosen: which of its ways was taken, in a few words.
        command: the command line of its workers at a log level, "warning" or "info".
        enqueue: enqueues so many no-ops by its fastest way.
        settle: waits, after the last body ran, until that is also recorded; gets what `enqueue` returned.
        env: environment of its workers.
        parts: what is measured of it, "enqueue" and "workers"; one of them where another side has the other one.
    """

    name: str
    packages: tuple[str, ...]
    chosen: str
    command: Callable[[str], list[str]]
    enqueue: Callable[[int], Any]
    settle: Callable[[Any], None] = _nothing
    env: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ("enqueue", "workers")


def module(name: str, *args: str) -> list[str]:
    """The command line that runs a module of this environment."""
    return [sys.executable, "-m", name, *args]
