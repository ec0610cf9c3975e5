"""Pause, snapshot, kill everything, a new Redis, restore, resume, over and over; then compare with a quiet run.

The workers of each cycle are real processes on a server of its own; kill is SIGKILL, and what is left is the directory
of snapshots.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.acceptance.places import Place, Places, places
from tests.conftest import eventually

__all__ = ["CycleReport", "cycles"]

WORKFLOW, BATCH = "wf-cycles", "cycles"


@dataclass
class CycleReport:
    """What came of it.

    Attributes:
        done: cycles in which the workflow was not over yet.
        expected: what a quiet run gives: item to status and result.
        found: what it gave.
        again: items that ran although their outcome was in a snapshot.
        called: how often the callback ran.
    """

    done: int = 0
    expected: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    called: int = 0

    def wrong(self) -> dict[str, Any]:
        """What must not be."""
        differing = {
            item: (self.expected.get(item), self.found.get(item))
            for item in self.expected.keys() | self.found.keys()
            if self.expected.get(item) != self.found.get(item)
        }
        found = {"outcomes": differing, "again": self.again, "callbacks": self.called - 1}
        return {name: value for name, value in found.items() if value}


def cycles(directory: Path, *, count: int, items: int, seed: int) -> CycleReport:
    """Run so many cycles over one batch of so many items.

    Args:
        directory: of all that is kept and noted.
        count: cycles.
        items: of the batch; each takes some milliseconds, a few fail, a few are retried.
        seed: of the moments at which it is paused.
    """
    rng, report, notes = random.Random(seed), CycleReport(expected=_expected(items)), directory / "ran"
    recorded: set[str] = set()
    with places(directory) as made:
        place: Place | None = None
        for number in range(count):
            place = _next(made, notes, items, number, directory)
            seen = len(_lines(notes))
            batch = place.shop.poimen.batch(BATCH)
            goal = min(items, len(recorded) + rng.randint(1, max(1, items // count)))
            eventually(lambda batch=batch, goal=goal: batch.status().finished >= goal, timeout=60)  # type: ignore[misc]
            over = batch.status().finished == items
            kept = _pause_and_keep(place, rng, items)
            place.lose()
            report.again += sorted(set(_lines(notes)[seen:]) & recorded)
            recorded = kept
            report.done += not over
        place = _next(made, notes, items, count, directory)
        seen = len(_lines(notes))
        batch = place.shop.poimen.batch(BATCH)
        outcomes = list(batch.outcomes(timeout=120))
        report.again += sorted(set(_lines(notes)[seen:]) & recorded)
        doubled = [item for item, times in Counter(one.item_id for one in outcomes).items() if times > 1]
        report.found = {one.item_id: [str(one.status), one.result] for one in outcomes}
        report.found |= {f"{item} again": None for item in doubled}
        eventually(lambda: batch.status().callbacks_pending == 0, timeout=30)
        report.called = len(_lines(directory / "called", ""))
    return report


def _next(made: Places, notes: Path, items: int, number: int, directory: Path) -> Place:
    """A new place: the first begins the work, each other one takes it up."""
    place = made.open()
    place.start(concurrency=2)
    if number == 0:
        options = {"concurrency": 4, "on_complete": place.shop.tell.s(str(directory / "called"))}
        place.shop.poimen.dispatch(_work(place.shop, notes, items), workflow=WORKFLOW, batch_id=BATCH, **options)
    else:
        place.shop.poimen.snapshots.restore(WORKFLOW)
    return place


def _pause_and_keep(place: Place, rng: random.Random, items: int) -> set[str]:
    """Keep it at once while items run, or when none runs any more; returns what had its outcome before that."""
    receipt = place.shop.poimen.pause(workflow=WORKFLOW, reason="cycle")
    if rng.random() < 0.5:
        receipt.wait_quiet(timeout=30)
    batch = place.shop.poimen.batch(BATCH)
    recorded = {str(at) for at in range(items) if batch.is_complete(str(at))}
    place.shop.poimen.snapshots.create(WORKFLOW)
    return recorded


def _work(shop: ModuleType, notes: Path, items: int) -> list[Any]:
    return [shop.cycled.s(str(notes), number) for number in range(items)]


def _expected(items: int) -> dict[str, Any]:
    return {
        str(number): ["failed", None] if number % 17 == 5 else ["succeeded", number * number] for number in range(items)
    }


def _lines(path: Path, what: str = "run") -> list[str]:
    rows = path.read_text().splitlines() if path.exists() else []
    return [row.split()[-1] for row in rows if row.startswith(what)]
