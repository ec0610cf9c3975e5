"""The result cache: counters, by activity, and what was used last."""

from __future__ import annotations

from typing import Any

from poimen_tasks._checks import expected
from poimen_tasks.cache import CacheStats
from poimen_tasks.flower.blocks import Block, Cell, cards, cell, facts, links, table
from poimen_tasks.flower.pages.page import Asked, Page
from poimen_tasks.flower.system import System
from poimen_tasks.flower.words import count, seconds, size

__all__ = ["PAGE"]

ROWS, ACTIVITIES = 50, 50
_COUNTED = ("puts", "evictions", "expired", "invalidated", "refused", "stale", "fenced", "corrupt", "uncacheable")


def read(system: System, asked: Asked) -> dict[str, Any]:
    """Counters, and a page of entries without their values."""
    counters, bounds = system.store.cache.counters(), system.settings
    sums: dict[str, int] = {}
    for counted in counters.values():
        for name, number in counted.items():
            sums[name] = sums.get(name, 0) + number

    def stats(counted: dict[str, int]) -> dict[str, Any]:
        most = {"max_entries": bounds.cache_max_entries, "max_bytes": bounds.cache_max_bytes}
        return CacheStats.from_counters(counted, **most).to_dict()

    busiest = sorted(counters, key=lambda name: -counters[name].get("bytes", 0))[:ACTIVITIES]
    entries, cursor = system.cache.entries(ROWS, _cursor(asked))
    return {
        "now": system.store.reads.now(),
        "stats": stats(sums),
        "activities": {name: stats(counters[name]) for name in busiest},
        "all_activities": len(counters),
        "entries": [one.to_dict() for one in entries],
        "next": cursor,
        "after": asked.query.get("after", ""),
    }


def _cursor(asked: Asked) -> float | None:
    text = asked.query.get("after", "")
    try:
        value = float(text) if text and len(text) < 40 else None
    except ValueError:
        value = float("nan")
    if (text and value is None) or (value is not None and not abs(value) < 1e18):
        raise expected("after", "the number that the page before gave", text)
    return value


def show(data: dict[str, Any], asked: Asked) -> list[Block]:
    """Cards, counters, activities, entries."""
    stats = data["stats"]
    asked_for = f"{count(stats['hits'])} hits, {count(stats['misses'])} misses, {count(stats['coalesced'])} waited"
    blocks = [
        cards(
            [
                ("Entries", count(stats["size"]), ""),
                ("Hit rate", f"{stats['hit_rate']:.0%}", "success"),
                ("Full", f"{stats['usage_ratio']:.0%}", "active"),
                ("Seconds saved", f"{stats['seconds_saved']:,.0f}", "success"),
            ]
        ),
        facts(
            "Counters",
            [
                ("Bytes", f"{size(stats['bytes'])} of {size(stats['max_bytes'])}"),
                ("Lookups", asked_for),
                ("Otherwise", ", ".join(f"{count(stats[name])} {name}" for name in _COUNTED if stats[name]) or "-"),
            ],
        ),
        _activity_table(data),
        _entry_table(data),
    ]  # fmt: skip
    more = [("Next", asked.link("/cache", after=repr(data["next"])), False)] if data["next"] is not None else []
    return [*blocks, links([("Newest", asked.link("/cache"), not data["after"]), *more])]


def _activity_table(data: dict[str, Any]) -> Block:
    rows = [
        [
            cell(name, strong=True), cell(count(one["size"])), cell(size(one["bytes"])), cell(count(one["hits"])),
            cell(count(one["misses"])), cell(f"{one['hit_rate']:.0%}"), cell(seconds(one["seconds_saved"])),
        ]
        for name, one in data["activities"].items()
    ]  # fmt: skip
    note = f"The largest {ACTIVITIES} of {data['all_activities']:,}." if data["all_activities"] > ACTIVITIES else ""
    names = ("Activity", "Entries", "Bytes", "Hits", "Misses", "Hit rate", "Saved")
    return table("Activities", names, rows, spare=("Bytes", "Misses", "Saved"), numbers=names[1:], note=note,
                 empty="nothing was cached yet")  # fmt: skip


def _entry_table(data: dict[str, Any]) -> Block:
    names = ("Activity", "Task", "Input", "Model", "Bytes", "Hits", "Saved", "Expires (UTC)")
    rows = [_entry_row(one) for one in data["entries"]]
    return table("Used last", names, rows, spare=("Input", "Model", "Saved", "Expires (UTC)"),
                 numbers=("Bytes", "Hits", "Saved"), empty="the cache is empty")  # fmt: skip


def _entry_row(one: dict[str, Any]) -> list[Cell]:
    key, expires = one["key"], (one["expires_at"] or "-")[:19].replace("T", " ")
    return [
        cell(key["activity"], strong=True), cell(one["task_id"]), cell(key["input_hash"][:12]), cell(key["model_id"]),
        cell(size(one["bytes"])), cell(count(one["hits"])), cell(seconds(one["seconds_saved"])), cell(expires),
    ]  # fmt: skip


PAGE = Page("cache", "/cache", "Cache", read, show, ("after",))
