"""The options of the verbs, for type checkers; `Poimen.pause` and `Poimen.resume` say what they mean."""

from __future__ import annotations

from typing import Any, TypedDict

__all__ = ["OtherScopes", "PauseOptions", "ResumeOptions", "ScopeOptions", "own_options"]


class OtherScopes(TypedDict, total=False):
    """A scope that is no workflow."""

    batch: str | None
    queue: str | None
    activity: Any
    everything: bool


class ScopeOptions(OtherScopes, total=False):
    """What to pause: exactly one of them."""

    workflow: str | None


class PauseOptions(ScopeOptions, total=False):
    """Of `pause`."""

    reason: str
    actor: str | None
    grace: float | None
    terminate: bool
    expires: float | None
    request_id: str | None


class ResumeOptions(ScopeOptions, total=False):
    """Of `resume`."""

    reason: str
    actor: str | None
    rate: float | None
    epoch: int | None
    request_id: str | None


def own_options(options: type) -> tuple[str, ...]:
    """The names of a verb's options that are no scopes."""
    return tuple(name for name in options.__annotations__ if name not in ScopeOptions.__annotations__)
