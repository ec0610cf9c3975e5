"""`audit.stats`: how much a log holds, of what, and how far the index and the disk are behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from poimen_tasks.audit.event import iso

__all__ = ["AuditStats", "Tally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStats:
    """Numbers of an audit log.

    Attributes:
        source: where `events` and what follows were counted: `index` (the sealed log) or `stream` (what is not sealed).
        events: how many events that has; one that was recorded twice under the same id counts once.
        types, actors, statuses: how many of them have each, the most frequent first.
        first, last: the earliest and the latest moment of an event; None: there is none.
        sealed: lines in the sealed log; None: there is none at hand.
        bytes: what the log's segments take on the disk.
        segments: how many of them there are.
        waiting: entries of the stream that are not sealed; None: Redis does not answer.
        dropped: entries dropped while no sealer was registered.
        vanished: entries that somebody removed from the stream before they were sealed.
    """

    source: str
    events: int = 0
    types: dict[str, int] = field(default_factory=dict)
    actors: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    first: datetime | None = None
    last: datetime | None = None
    sealed: int | None = None
    bytes: int = 0
    segments: int = 0
    waiting: int | None = None
    dropped: int = 0
    vanished: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "source": self.source,
            "events": self.events,
            "types": self.types,
            "actors": self.actors,
            "statuses": self.statuses,
            "first": None if self.first is None else iso(self.first),
            "last": None if self.last is None else iso(self.last),
            "sealed": self.sealed,
            "bytes": self.bytes,
            "segments": self.segments,
            "waiting": self.waiting,
            "dropped": self.dropped,
            "vanished": self.vanished,
        }


class Tally:
    """Counts events by type, actor and status."""

    def __init__(self, rows: Iterable[tuple[str, str, str, int]]) -> None:
        counters: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
        self.events = 0
        for *names, count in rows:
            self.events += count
            for counter, name in zip(counters, names, strict=True):
                counter[str(name)] += count
        # By number, then by name: the same log gives the same answer.
        self.types, self.actors, self.statuses = (
            dict(sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))) for counter in counters
        )
