"""What is known about the pauses of a scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

from poimen_tasks.model import moment
from poimen_tasks.pause.scope import Scope

__all__ = ["HeldBack", "PauseState", "PauseStats"]

_TIMES = ("paused_at", "updated_at", "stop_at", "expires_at", "resumed_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseState:
    """The last pause of a scope, whether it lasts or not.

    Attributes:
        scope: what it covers.
        paused: whether it lasts.
        epoch: its number; each pause of any scope has a higher one.
        reason, actor: who paused, and why.
        paused_at: since when it is paused, or was.
        updated_at: when it was paused anew while it was.
        grace: seconds that running items had; None: as long as they take.
        stop_at: when running items are asked to stop; None: never.
        terminate: whether the processes of those that do not stop are ended.
        expires_at: when it is resumed by itself; None: never.
        resumed_at, resume_reason, resume_actor: of the resume.
        rate: items a second that might start at first after the resume; None: no limit.
        held: how much it holds back: batches, and plain calls; more while a resume goes on.
        snapshot: what was saved with it, if anything.
    """

    scope: Scope
    paused: bool
    epoch: int
    reason: str
    actor: str
    paused_at: datetime | None
    updated_at: datetime | None = None
    grace: float | None = None
    stop_at: datetime | None = None
    terminate: bool = False
    expires_at: datetime | None = None
    resumed_at: datetime | None = None
    resume_reason: str | None = None
    resume_actor: str | None = None
    rate: float | None = None
    held: int = 0
    snapshot: str | None = None

    @classmethod
    def read(cls, scope: Scope, fields: Mapping[str, bytes]) -> Self:
        """From what the store has."""
        times = {name: moment(_number(fields.get(name))) for name in _TIMES}
        paused = fields.get("state") == b"paused"
        return cls(
            scope=scope,
            paused=paused,
            epoch=int(fields.get("epoch", 0)),
            reason=_text(fields.get("reason")) or "",
            actor=_text(fields.get("actor")) or "unknown",
            grace=_number(fields.get("grace")),
            terminate=fields.get("terminate") == b"1",
            resume_reason=_text(fields.get("resume_reason")),
            resume_actor=_text(fields.get("resume_actor")),
            rate=_number(fields.get("rate")),
            held=int(fields.get("held", 0)),
            snapshot=_text(fields.get("snapshot")) or None,
            **times,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        data = asdict(self)
        for name in _TIMES:
            data[name] = data[name].isoformat() if data[name] else None
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseStats:
    """Totals.

    Attributes:
        total: scopes that have a state: paused ones, and those resumed within the retention.
        paused, resumed: how many of them are either.
        pauses, resumes: how often anything was paused and resumed so far.
    """

    total: int
    paused: int
    resumed: int
    pauses: int
    resumes: int

    def to_dict(self) -> dict[str, int]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Some of what a scope holds back.

    Attributes:
        batches: ids of batches that have items which could start but for the pause, or that keep their keys under it;
            of a callback `<batch>@<kind>.<round>`.
        calls: ids of plain calls that are parked.
    """

    batches: tuple[str, ...]
    calls: tuple[str, ...]

    @classmethod
    def of(cls, members: Iterable[str]) -> Self:
        """From what the store has."""
        pairs = [member.split("\t", 1) for member in members]
        return cls(
            batches=tuple(name for kind, name in pairs if kind == "b"),
            calls=tuple(name for kind, name in pairs if kind == "c"),
        )

    def to_dict(self) -> dict[str, list[str]]:
        """Plain values."""
        return {"batches": list(self.batches), "calls": list(self.calls)}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _number(value: bytes | None) -> float | None:
    return float(value) if value else None
