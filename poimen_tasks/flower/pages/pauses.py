"""What is paused, by whom and why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from poimen_tasks.flower.blocks import Block, Cell, cards, cell, table
from poimen_tasks.flower.pages.page import Asked, Page
from poimen_tasks.flower.system import System
from poimen_tasks.flower.words import count, when
from poimen_tasks.pause import PauseState, Scope
from poimen_tasks.store import Store

__all__ = ["PAGE", "pause_table", "states_of"]

ROWS = 100


def read(system: System, asked: Asked) -> dict[str, Any]:  # noqa: ARG001 - every page is read so
    """Some of what is paused, and totals."""
    reads = system.store.pause_reads
    scopes = next(reads.scopes(paused=True), [])
    totals = reads.totals()
    return {
        "now": system.store.reads.now(),
        "pauses": states_of(system.store, scopes[:ROWS]),
        "paused": totals.paused,
        "pauses_so_far": totals.pauses,
        "resumes_so_far": totals.resumes,
    }


def states_of(store: Store, scopes: Sequence[str]) -> list[dict[str, Any]]:
    """The state of each of these scopes, as plain values."""
    found = store.pause_reads.states(scopes) if scopes else []
    return [
        {**PauseState.read(Scope.parse(text), fields).to_dict(), "covers": text}
        for text, fields in zip(scopes, found, strict=True)
        if fields is not None
    ]


def show(data: dict[str, Any], asked: Asked) -> list[Block]:
    """Cards and a table."""
    return [
        cards(
            [
                ("Paused", count(data["paused"]), "active" if data["paused"] else "success"),
                ("Pauses so far", count(data["pauses_so_far"]), ""),
                ("Resumes so far", count(data["resumes_so_far"]), ""),
            ]
        ),
        pause_table(
            "Paused",
            data["pauses"],
            asked,
            note=f"{ROWS} of {data['paused']:,}."
            if data["paused"] > ROWS
            else "The command poimen resume lets one go on.",
        ),
    ]


def pause_table(title: str, pauses: Sequence[dict[str, Any]], asked: Asked, *, note: str = "") -> Block:
    """Pauses, one a row."""
    names = ("What", "Since (UTC)", "By", "Why", "Held", "Stops", "Ends (UTC)")
    return table(
        title, names, [_row(one, asked) for one in pauses],
        spare=("By", "Held", "Stops", "Ends (UTC)"), numbers=("Held",), empty="nothing is paused", note=note,
    )  # fmt: skip


def _row(one: dict[str, Any], asked: Asked) -> list[Cell]:
    kind, name = one["scope"]["kind"], one["scope"]["id"]
    hrefs = {"batch": asked.batch(name), "workflow": asked.link("", workflow=name, state="all")}
    times = {
        key: datetime.fromisoformat(one[key]) if one[key] else None for key in ("paused_at", "stop_at", "expires_at")
    }
    stops = (
        "-" if times["stop_at"] is None else f"{when(times['stop_at'])}{', ended by force' if one['terminate'] else ''}"
    )
    return [
        cell(f"{kind} {name}".strip(), href=hrefs.get(kind, ""), strong=True),
        cell(when(times["paused_at"])),
        cell(one["actor"]),
        cell(one["reason"]),
        cell(count(one["held"])),
        cell(stops),
        cell(when(times["expires_at"])),
    ]


PAGE = Page("pauses", "/pauses", "Pauses", read, show)
