"""The verbs of pausing in the store, one method a script; see `lua/` for what each does.

A scope is a text: `*`, `w:<workflow>`, `b:<batch>`, `q:<queue>` or `a:<activity>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.client import Client
from poimen_tasks.store.scripts import calls_of, new_owner, tickets_of
from poimen_tasks.store.values import Ticket, WaitingCall

__all__ = ["HeldReleased", "ItemAsked", "PauseScripts", "RunningCall", "RunningLane", "ScopePaused", "ScopeRunning"]


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


class ScopeRunning(NamedTuple):
    """Reply of `scope_running`: what runs now; `epoch` None when the scope is not paused."""

    epoch: int | None
    running: list[RunningLane]
    calls: list[RunningCall]


class ItemAsked(NamedTuple):
    """What a running body is told.

    Attributes:
        cancelled: its batch is.
        revoked: it alone is.
        stop: it is paused, and the grace is over.
        mine: its lane holds the item still.
        state: what it saved before, where that was asked for; None for nothing.
    """

    cancelled: bool
    revoked: bool
    stop: bool
    mine: bool
    state: bytes | None


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


def _lanes(reply: dict[bytes, Any]) -> list[RunningLane]:
    return [
        RunningLane(batch.decode(), activity.decode(), list(ranges), float(since))
        for batch, activity, ranges, since in reply[b"running"] or ()
    ]


def _calls(reply: dict[bytes, Any]) -> list[RunningCall]:
    return [RunningCall(name.decode(), activity.decode()) for name, activity, *_ in reply[b"calls"] or ()]


def _asked(reply: dict[bytes, Any]) -> ItemAsked:
    return ItemAsked(
        cancelled=bool(reply[b"cancelled"]),
        revoked=bool(reply[b"revoked"]),
        stop=bool(reply[b"stop"]),
        mine=bool(reply[b"mine"]),
        state=reply.get(b"state") or None,
    )


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
        standing: bool = False,
    ) -> ScopePaused:
        """No item of the scope is claimed from now on; says what runs there. `standing`: a pause that stands stays."""
        request: dict[str, Any] = {
            "scope": scope,
            "id": request_id,
            "reason": reason,
            "actor": actor,
            "terminate": terminate,
            "standing": standing,
        }
        # An absent field is Lua's nil; msgpack's own is a value of another kind there.
        request |= {name: value for name, value in (("grace", grace), ("expires", expires)) if value is not None}
        reply = self._call("pause_scope", request)
        return ScopePaused(
            reply[b"epoch"],
            float(reply[b"at"]),
            _number(reply.get(b"stop_at")),
            bool(reply.get(b"again")),
            _lanes(reply),
            _calls(reply),
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

    def keep_ended(self, scope: str) -> bool:
        """Some more batches that ended before the pause keep their keys; True when there are more."""
        return bool(self._call("keep_ended", {"scope": scope})[b"left"])

    def scope_running(self, scope: str, *, patience: float | None = None) -> ScopeRunning:
        """What runs in a scope now; a server that does not answer is asked again for `patience` seconds."""
        reply = self._call("scope_running", {"scope": scope}, patience=patience)
        return ScopeRunning(reply.get(b"epoch"), _lanes(reply), _calls(reply))

    def reset_scope(self, scope: str, *, actor: str) -> bool:
        """Forget that a scope was ever paused; False when there was nothing to forget.

        Raises:
            InvalidArgument: it is paused.
        """
        return bool(self._call("reset_scope", {"scope": scope, "actor": actor})[b"known"])

    def repair_pauses(self, scopes: Sequence[str], *, repair: bool, actor: str) -> dict[str, list[str]]:
        """What is not as it should be, by scope; see the script for the words. At most 100 scopes."""
        request = {"scopes": list(scopes), "repair": repair, "actor": actor, "keep": max(1, int(self._keep))}
        found = self._call("repair_pauses", request)[b"found"] or ()
        return {scope.decode(): [word.decode() for word in words] for scope, words in found}

    def ask_item(self, batch: str, position: int, *, token: str, want: bool) -> ItemAsked:
        """What a running body is told when it asks; with `want` also what it saved before."""
        request = {"b": batch, "position": position, "token": token, "want": want}
        return _asked(self._call("ask_item", request))

    def save_checkpoint(self, batch: str, position: int, *, token: str, state: bytes) -> ItemAsked:
        """Save the state of a running item; nothing is saved when its lane holds it no more.

        Raises:
            StoreRefused: the server is out of memory.
        """
        request = {"b": batch, "position": position, "token": token}
        return _asked(self._call("save_checkpoint", request, payloads=(state,)))
