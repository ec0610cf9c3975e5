"""The census's report: one dictionary for `build/census.json`, and tables of it for the terminal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE, SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from examples.census.metrics import COUNTS, UnreadableSource

if TYPE_CHECKING:
    from poimen_tasks.model import Outcome

__all__ = ["failure", "is_content", "render", "write"]

_LARGEST = 15
_HEADINGS = {"functions": "funcs", "complexity": "cplx"}  # so that the table fits 80 columns


def failure(path: str, outcome: Outcome[Any]) -> dict[str, str]:
    """A file that was not measured, and why."""
    error = outcome.error
    return {
        "path": path,
        "status": str(outcome.status),
        "type": error.type.rpartition(".")[2] if error else "",
        "reason": (error.message if error else "").removeprefix(f"{path}: "),
    }


def is_content(entry: dict[str, str]) -> bool:
    """True when a file was not measured because of what is in it; anything else is a fault of the run."""
    return entry["type"] == UnreadableSource.__name__


def write(report: dict[str, Any], out: Path) -> None:
    """Write the report whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(out)


def render(report: dict[str, Any], console: Console) -> None:
    """Print the summary, the most complex functions, the failed files and what running in parallel gained."""
    console.print(Group(_packages(report), _most_complex(report), _failed(report), _speed(report)))


def _plain(title: str) -> Table:
    return Table(title=title, title_justify="left", show_header=False, box=SIMPLE, pad_edge=False)


def _packages(report: dict[str, Any]) -> Table:
    title = f"Python files below {escape(report['directory'])}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("package", overflow="fold")
    for name in COUNTS:
        table.add_column(_HEADINGS.get(name, name), justify="right", no_wrap=True)
    packages = sorted(report["packages"].items(), key=lambda entry: -entry[1]["code"])
    for name, counts in packages[:_LARGEST]:
        table.add_row(Text(name), *(f"{counts[count]:,}" for count in COUNTS))
    if len(packages) > _LARGEST:
        rest = [sum(counts[count] for _, counts in packages[_LARGEST:]) for count in COUNTS]
        table.add_row(f"{len(packages) - _LARGEST} more", *(f"{amount:,}" for amount in rest))
    table.add_section()
    table.add_row("total", *(f"{report['total'][count]:,}" for count in COUNTS), style="bold")
    return table


def _most_complex(report: dict[str, Any]) -> Table:
    table = Table(title="Most complex functions", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("complexity", justify="right")
    table.add_column("function", overflow="fold")
    table.add_column("where", overflow="fold")
    for function in report["most_complex"]:
        where = os.path.relpath(function["path"], report["directory"])
        table.add_row(str(function["complexity"]), function["name"], Text(f"{where}:{function['line']}"))
    return table


def _failed(report: dict[str, Any]) -> Table:
    table = _plain(f"Not measured: {len(report['failed'])}")
    table.add_column("file", overflow="fold")
    table.add_column("reason", overflow="fold")
    for entry in report["failed"]:
        where = os.path.relpath(entry["path"], report["directory"])
        reason = entry["reason"] or entry["status"]
        # Text: no markup in names
        table.add_row(Text(where), Text(reason if is_content(entry) else f"{entry['type']}: {reason}"))
    return table


def _speed(report: dict[str, Any]) -> Table:
    speed = report["speed"]
    table = _plain(f"Run with {report['workers']} worker{'s' if report['workers'] > 1 else ''}")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("wall time", f"{speed['wall_time']:.2f} s")
    table.add_row("sum of the files' times", f"{speed['total_task_time']:.2f} s")
    table.add_row("speedup", f"{speed['speedup']:.2f} x")
    table.add_row("efficiency", f"{speed['efficiency']:.0%}" if speed["efficiency"] is not None else "-")
    if speed["wall_time"]:
        table.add_row("files per second", f"{report['total']['files'] / speed['wall_time']:,.0f}")
    return table
