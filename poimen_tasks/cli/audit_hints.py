"""A word on an empty answer: a filter may name what the audit log does not have, by a slip of the hand."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import click

from poimen_tasks.audit.asking import Asking
from poimen_tasks.cli.output import one_line

__all__ = ["explain_nothing"]

_SHOWN = 10


def explain_nothing(asked: Asking, wanted: Mapping[str, Any]) -> None:
    """Say on stderr which names among the filters no event of the log has, and which there are."""
    for text in _notes(asked, wanted):
        click.echo(f"note: {text}", err=True)


def _notes(asked: Asking, wanted: Mapping[str, Any]) -> Iterator[str]:
    given = [(kind, name) for kind in ("type", "actor", "status") for name in wanted.get(kind, ())]
    if given:
        tally = asked.names()
        known = {"type": tally.types, "actor": tally.actors, "status": tally.statuses}
        for kind, name in given:
            if name not in known[kind] and not asked.query(limit=1, **{kind: name}):
                yield f"no event has {kind} {name!r}{_others(name, known[kind])}"
    workflow = wanted.get("workflow")
    if workflow is not None and not asked.query(limit=1, workflow=workflow):
        yield f"no event is about workflow {workflow!r}"
    task = wanted.get("task")
    if task is not None and not asked.query(limit=1, task=task):
        yield f"no event is about task {task!r}"


def _others(name: str, known: Collection[str]) -> str:
    """What there is: all, where it is little; else what looks like the name, then the most frequent."""
    if not known:
        return ": the log has no event"
    near = difflib.get_close_matches(name, known, n=_SHOWN)
    names = sorted(known) if len(known) <= _SHOWN else list(dict.fromkeys((*near, *known)))[:_SHOWN]
    more = f", and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"; there are: {', '.join(map(one_line, names))}{more}"
