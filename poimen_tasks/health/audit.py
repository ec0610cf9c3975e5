"""A check of the audit stream: whether a sealer lives and keeps up, and whether it got every entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poimen_tasks._places import unusable
from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.settings import Settings
from poimen_tasks.store.audit_scripts import StreamState

__all__ = ["Lag", "check_audit", "lag_of"]

#: Seconds that the oldest entry may wait before that is worth a warning.
LATE = 60.0
#: Seconds for which lost entries are an error; a warning stays, because the log will always lack them.
RECENT = 86_400.0
_START = "start it: `poimen audit seal`"
_FORGET = "or do without one: `poimen audit seal --unregister`"


@dataclass(frozen=True, slots=True)
class Lag:
    """What is not on disk yet.

    Attributes:
        entries: how many entries wait in the stream.
        seconds: how long the oldest of them has waited; 0 when there is none.
    """

    entries: int
    seconds: float


def lag_of(state: StreamState) -> Lag:
    """What waits in the stream."""
    return Lag(state.length, state.lag)


def check_audit(state: StreamState, settings: Settings) -> Iterator[Finding]:
    """The sealer, what waits for it, and what it never got.

    Args:
        state: the stream as it is now.
        settings: those that say how much may wait.
    """
    yield _sealer(state, lag_of(state)) if state.sealer else _no_sealer(state)
    yield from _backlog(state, settings)
    yield from _place(settings)
    yield from _vanished(state)
    if state.sealer and state.dropped:
        text = f"it lacks {state.dropped:,} entries that were dropped while no sealer was registered"
        advice = "nothing is to be done now; the log has an `audit.unsealed_dropped` event"
        yield Finding(Level.WARNING, "audit", "audit log", text, advice)


def _no_sealer(state: StreamState) -> Finding:
    if not state.dropped:
        text = f"no entry was dropped; no sealer is registered, {state.length:,} entries are kept in Redis"
        return Finding(Level.OK, "audit", "audit stream", text)
    text = f"{state.dropped:,} old entries were dropped: nothing moves them to disk"
    advice = "if you need the audit log, run a sealer: `poimen audit seal`"
    return Finding(Level.WARNING, "audit", "audit stream", text, advice)


def _sealer(state: StreamState, lag: Lag) -> Finding:
    waiting = f"{lag.entries:,} entries wait, the oldest for {lag.seconds:.1f} s"
    if not state.alive:
        ended = "stopped" if not state.beat else f"was last heard of {state.now - state.beat:.0f} s ago"
        level = Level.WARNING if lag.seconds < LATE else Level.ERROR
        text = f"the sealer ({state.who}) {ended}; {waiting}"
        return Finding(level, "audit", "sealer", text, f"{_START}, {_FORGET}")
    text = f"{state.sealed:,} lines are sealed by {state.who}; {waiting}"
    if lag.seconds < LATE:
        return Finding(Level.OK, "audit", "sealer", text)
    return Finding(Level.WARNING, "audit", "sealer", text, "look at its log, and at how fast its disk is")


def _backlog(state: StreamState, settings: Settings) -> Iterator[Finding]:
    if not state.sealer or state.length <= settings.audit_backlog:
        return
    hard = state.length > settings.audit_backlog_hard
    what = "running batches claim no more items" if hard else "dispatch is refused"
    name = f"POIMEN_AUDIT_BACKLOG{'_HARD' if hard else ''}"
    text = f"{state.length:,} entries wait for the sealer, more than {name} allows: {what}"
    yield Finding(Level.ERROR, "audit", "backlog", text, f"wait for the sealer, {_START} if it does not run, {_FORGET}")


def _place(settings: Settings) -> Iterator[Finding]:
    """A log may be on another machine; but where its directory is named here, it had better be one."""
    if reason := unusable(settings.audit_dir):
        advice = "set POIMEN_AUDIT_DIR to the log's directory; by default it is `audit` in POIMEN_DATA_DIR"
        yield Finding(Level.WARNING, "audit", "directory", f"no audit log can be read there: {reason}", advice)


def _vanished(state: StreamState) -> Iterator[Finding]:
    if not state.vanished_at:
        return
    ago = state.now - state.vanished_at
    lost = f"{state.vanished:,} entries" if state.vanished else "an unknown number of entries"
    text = f"{lost} were removed from the stream before they were sealed, the last time {ago:.0f} s ago"
    advice = "find out who removed them; the log has an `audit.gap` event. config/users.acl keeps most from doing it"
    yield Finding(Level.ERROR if ago < RECENT else Level.WARNING, "audit", "audit gap", text, advice)
