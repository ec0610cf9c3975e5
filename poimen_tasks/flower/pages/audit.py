"""The newest events of the audit log, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poimen_tasks.audit import AuditEvent, AuditPage
from poimen_tasks.errors import PoimenError
from poimen_tasks.flower.blocks import Block, Cell, cards, cell, form, links, notice, state, table
from poimen_tasks.flower.pages.page import Asked, Page
from poimen_tasks.flower.system import System
from poimen_tasks.flower.words import count

__all__ = ["PAGE"]

ROWS = 50
#: Events of a long stream that are looked through at once, a portion at a time.
MOST_SCANNED, _PORTION = 2_000, 200
_FIELDS: dict[str, Callable[[AuditEvent], str | None]] = {
    "workflow": lambda event: event.workflow,
    "type": lambda event: event.event_type,
}
_SOURCES = {
    "index": "From the sealed log.",
    "stream": "From the stream in Redis alone, with what is not sealed yet: the sealed log's directory is not here.",
    "index+stream": "From the sealed log, and from the stream in Redis what is not sealed yet.",
}


def read(system: System, asked: Asked) -> dict[str, Any]:
    """A page of events, newest first, without what they were given and what came of it."""
    workflow, kind = asked.name("workflow"), asked.name("type")
    given = {"workflow": workflow, "type": kind}
    filters = {name: value for name, value in given.items() if value is not None}
    stream, after = _stream(system), asked.query.get("after") or None
    if filters and (stream["waiting"] or 0) > MOST_SCANNED:
        events, page, scanned = _scan(system, filters, after)
    else:
        page = system.audit.query(limit=ROWS, newest_first=True, after=after, **filters)
        events, scanned = list(page), None
    return {
        **given,
        **stream,
        "events": [_shown(one) for one in events],
        "scanned": scanned,
        "source": page.source,
        "next": page.cursor if page.more else None,
        "after": after or "",
    }


def _scan(system: System, filters: dict[str, Any], after: str | None) -> tuple[list[AuditEvent], AuditPage, int]:
    """A part of the log, looked through here: the stream has no index, and all of it could take a minute.

    Returns:
        What the filters leave, the last page that was looked at, and how many events that were.
    """
    found, scanned = list[AuditEvent](), 0
    while True:
        page = system.audit.query(
            limit=_PORTION,
            newest_first=True,
            after=after,
        )
        scanned += len(page)
        found += [one for one in page if all(_FIELDS[name](one) == value for name, value in filters.items())]
        after = page.cursor
        if not page.more or len(found) >= ROWS or scanned >= MOST_SCANNED:
            return found, page, scanned


def _shown(event: AuditEvent) -> dict[str, Any]:
    kept = {name: value for name, value in event.to_dict().items() if name not in {"input", "output", "metadata"}}
    return {**kept, "sequence": event.sequence}


def _stream(system: System) -> dict[str, Any]:
    """The stream and its sealer in numbers; Nones while the store is away: what is sealed is there all the same."""
    try:
        stream = system.store.audit.describe_audit(patience=0.0)
    except PoimenError:
        return dict.fromkeys(("sealer", "alive", "sealed", "waiting"))
    return {"sealer": stream.who or None, "alive": stream.alive, "sealed": stream.sealed, "waiting": stream.length}


def show(data: dict[str, Any], asked: Asked) -> list[Block]:
    """Cards, filters, the source, events."""
    known = data["sealed"] is not None
    sealer = "?" if not known else "alive" if data["alive"] else "away" if data["sealer"] else "none"
    chosen = {"workflow": data["workflow"], "type": data["type"]}
    older = [("Older", asked.link("/audit", **chosen, after=data["next"]), False)] if data["next"] else []
    return [
        cards(
            [
                ("Sealed lines", count(data["sealed"]) if known else "?", "success"),
                ("In the stream", count(data["waiting"]) if known else "?", "active"),
                ("Sealer", sealer, "success" if data["alive"] else "danger"),
            ]
        ),
        form(
            asked.link("/audit"),
            [("workflow", "Workflow", data["workflow"] or ""), ("type", "Type", data["type"] or "")],
        ),
        notice(_SOURCES.get(data["source"], data["source"])),
        table(
            "Events",
            ("Time (UTC)", "Type", "Workflow", "Task", "Actor", "Action", "Status", "Line"),
            [_row(one, asked) for one in data["events"]],
            spare=("Workflow", "Task", "Actor", "Line"),
            numbers=("Line",),
            long=("Type", "Action"),
            empty="none among these" if data["scanned"] else "no such event",
            note=f"Looked for among {data['scanned']:,} events; Older goes on." if data["scanned"] else "",
        ),
        links([("Newest", asked.link("/audit", **chosen), not data["after"]), *older]),
    ]


def _row(one: dict[str, Any], asked: Asked) -> list[Cell]:
    workflow = one["workflow_id"]
    return [
        cell((one["timestamp"] or "-")[:19].replace("T", " ")),
        cell(one["event_type"], href=asked.link("/audit", type=one["event_type"]), strong=True),
        cell(workflow or "-", href=asked.link("/audit", workflow=workflow) if workflow else ""),
        cell(one["task_id"] or "-", most=60),
        cell(one["actor"]),
        cell(one["error"] or one["action"], most=160),
        state(one["status"]),
        cell("not sealed" if one["sequence"] is None else count(one["sequence"])),
    ]


PAGE = Page("audit", "/audit", "Audit log", read, show, ("workflow", "type", "after"))
