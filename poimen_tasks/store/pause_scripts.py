"""The verbs of pausing in the store, one method a script; see `lua/` for what each does.

A scope is a text: `*`, `w:<workflow>`, `b:<batch>`, `q:<queue>` or `a:<activity>`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from poimen_tasks.store.client import Client
from poimen_tasks.store.scripts import calls_of, new_owner, tickets_of
from poimen_tasks.store.values import Ticket, WaitingCall

__all__ = ["HeldReleased", "PauseScripts", "RunningCall", "RunningLane", "ScopePaused"]


class RunningLane(NamedTuple):
    """What one lane holds: flat ranges of positions of a batch, and when they were claimed (seconds since 1970)."""

    batch: str
    activity: str
    ranges: list[int]
    since: float


class RunningCall(NamedTuple):
    """A plain call that runs."""

    id: str
    activity: str


class ScopePaused(NamedTuple):
    """Reply of `pause_scope`.

    Attributes:
        epoch: of this pause.
        at: when, in seconds since 1970 by the server's clock.
        stop_at: when running items are asked to stop; None for never.
        again: the request id was answered before, and this is that answer.
        running: what lanes hold at that instant.
        calls: plain calls that run at that instant.
    """

    epoch: int
    at: float
    stop_at: float | None
    again: bool
    running: list[RunningLane]
    calls: list[RunningCall]


class HeldReleased(NamedTuple):
    """What a resume lets go: to be published; `left`: call `release_held` for more. `epoch` is that of the pause."""

    epoch: int
    at: float
    again: bool
    left: bool
    released: int
    tickets: list[Ticket]
    calls: list[WaitingCall]


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _released(reply: dict[bytes, Any]) -> HeldReleased:
    return HeldReleased(
        reply.get(b"epoch") or 0,
        float(reply.get(b"at") or 0.0),
        bool(reply.get(b"again")),
        bool(reply[b"left"]),
        reply[b"released"],
        tickets_of(reply),
        calls_of(reply),
    )


class PauseScripts:
    """The verbs of pausing."""

    def __init__(self, client: Client) -> None:
        self.client = client
        settings = client.settings
        self._bounds = {"unsealed": settings.audit_unsealed_limit, "overdue": settings.ticket_overdue}
        self._keep = settings.retention

    def _call(self, name: str, request: dict[str, Any], **options: Any) -> Any:
        return self.client.call(name, request | self._bounds, owner=new_owner(), sequence=1, **options)

    def pause_scope(
        self,
        scope: str,
        *,
        reason: str,
        actor: str,
        grace: float | None = None,
        terminate: bool = False,
        expires: float | None = None,
        request_id: str = "",
    ) -> ScopePaused:
        """No item of the scope is claimed from now on; says what runs there."""
        request: dict[str, Any] = {
            "scope": scope,
            "id": request_id,
            "reason": reason,
            "actor": actor,
            "terminate": terminate,
        }
        # An absent field is Lua's nil; msgpack's own is a value of another kind there.
        request |= {name: value for name, value in (("grace", grace), ("expires", expires)) if value is not None}
        reply = self._call("pause_scope", request)
        return ScopePaused(
            reply[b"epoch"],
            float(reply[b"at"]),
            _number(reply.get(b"stop_at")),
            bool(reply.get(b"again")),
            [
                RunningLane(batch.decode(), activity.decode(), list(ranges), float(since))
                for batch, activity, ranges, since in reply[b"running"] or ()
            ],
            [RunningCall(name.decode(), activity.decode()) for name, activity, *_ in reply[b"calls"] or ()],
        )

    def resume_scope(
        self,
        scope: str,
        *,
        reason: str,
        actor: str,
        epoch: int | None = None,
        rate: float | None = None,
        request_id: str = "",
    ) -> HeldReleased:
        """The scope is paused no more; the first portion of what it held back is to be published.

        Raises:
            NotPaused: it is not paused.
            StaleEpoch: it is paused under another epoch.
        """
        request: dict[str, Any] = {
            "scope": scope,
            "id": request_id,
            "reason": reason,
            "actor": actor,
            "keep": self._keep,
        }
        request |= {name: value for name, value in (("epoch", epoch), ("rate", rate)) if value is not None}
        return _released(self._call("resume_scope", request))

    def release_held(self, scope: str) -> HeldReleased:
        """Some more of what a resumed scope had held back."""
        return _released(self._call("release_held", {"scope": scope}))
