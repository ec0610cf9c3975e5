"""A check of the pauses: what is known about each scope is held against whether it is paused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from poimen_tasks.health.batches import MOST_KEYS
from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.health.repairs import REPAIR, Repairs

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = ["check_pauses"]

_SLICE = 100
_LONG = 86_400.0
_OPTIONS = {"*": "--everything", "w": "--workflow", "b": "--batch", "q": "--queue", "a": "--activity"}
_WORDS = {
    "unstated": "it is paused, and nothing says who did it",
    "unlisted": "it is paused, and no list has it",
    "unmarked": "it was paused, and the mark is gone: work goes on",
    "listed": "a list has it as paused, and it is not",
    "due": "it is to be resumed, and is not paused",
    "held": "work that it held back is not released",
}


def check_pauses(store: Store, repairs: Repairs | None) -> Iterator[Finding]:
    """Every scope that is or was paused; those that are paused for more than a day are told.

    Args:
        store: the store.
        repairs: put right what is not; None only looks.
    """
    scopes, whole = store.pause_reads.mentioned(most=MOST_KEYS)
    good = whole
    for at in range(0, len(scopes), _SLICE):
        for finding in _drift(store, scopes[at : at + _SLICE], repairs):
            good = False
            yield finding
    if not whole:
        yield Finding(Level.WARNING, "pauses", "server", f"only about {MOST_KEYS:,} keys were looked at")
    count = 0
    for some in store.pause_reads.scopes(paused=True):
        count += len(some)
        yield from _long(store, some)
    if good:
        yield Finding(
            Level.OK,
            "pauses",
            f"{count} scope{'' if count == 1 else 's'} paused",
            "each has its state, and nothing is left behind",
        )


def _drift(store: Store, scopes: list[str], repairs: Repairs | None) -> Iterator[Finding]:
    actor = repairs.actor if repairs else "doctor"
    found = store.pauses.repair_pauses(scopes, repair=repairs is not None, actor=actor)
    for scope, words in found.items():
        level = Level.ERROR if {"held", "unmarked"} & set(words) else Level.WARNING
        text = "; ".join(_WORDS[word] for word in words)
        yield Finding(level, "pauses", scope, text, REPAIR, repairable=True, repaired=repairs is not None)


def _long(store: Store, scopes: list[str]) -> Iterator[Finding]:
    now = store.reads.now()
    for scope, state in zip(scopes, store.pause_reads.states(scopes), strict=True):
        lasts = now - float((state or {}).get("paused_at", now))
        if state is None or lasts < _LONG:
            continue
        who, why = state.get("actor", b"unknown").decode(), state.get("reason", b"").decode()
        option = f"{_OPTIONS[scope[0]]} {scope[2:]}".rstrip()
        yield Finding(
            Level.WARNING, "pauses", scope, f"paused for {lasts / _LONG:.0f} d by {who}{f': {why}' if why else ''}",
            f"is it still meant? `poimen resume -A APP {option}` lets it go on",
        )  # fmt: skip
