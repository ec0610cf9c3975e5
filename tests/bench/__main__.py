"""`python -m tests.bench`: measures, prints the table, writes the JSON file; missed targets do not make it fail."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

from tests.bench import report
from tests.bench.apps import Bench, open_bench
from tests.bench.measure import Row
from tests.bench.peers import compare

# Group → the module of this package that has a function of the group's name: the bodies load when they are measured.
# Neighbours share their workers where they can.
GROUPS = {
    "enqueue": "enqueue",
    "throughput": "throughput",
    "latency": "latency",
    "memory": "memory",
    "million": "million",
    "cost": "million",
    "loglevel": "throughput",
    "events": "events",
    "speedup": "speedup",
    "parity": "latency",
    "hosts": "speedup",
    "fairness": "fairness",
    "scaling": "scaling",
    "late": "scaling",
    "recovery": "recovery",
    "kills": "kills",
    "plain_calls": "plain_calls",
    "cache": "cache",
    "cache_order": "cache",
    "cache_callers": "cache",
    "cache_kills": "cache_kills",
    "pause": "pause",
    "pause_trials": "pause",
    "snapshots": "snapshots",
    "snapshot_cycles": "snapshots",
    "snapshots_at_once": "snapshots",
    "board": "board",
    "sealer": "sealer",
    "seal_lag": "sealer",
    "audit_kills": "audit_kills",
    "audit_log": "audit_log",
    "audit_log_tampering": "audit_log",
    "audit_log_kills": "audit_log",
    "audit_record": "audit_query",
    "audit_query": "audit_query",
    "peers": "peers.compare",
}


def measuring(group: str) -> Callable[[Bench], Iterator[Row]]:
    """The function that measures this group."""
    return getattr(importlib.import_module(f"tests.bench.{GROUPS[group]}"), group)


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, a minute or two in all: shows that everything runs.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(GROUPS)), help="Measure only this group; may be repeated."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/bench.json"), show_default=True)
def main(*, quick: bool, only: tuple[str, ...], out: Path) -> None:
    """Measure Poimen beside plain Celery and its peers, on private servers in a temporary directory."""
    os.environ["TEST_PLAIN_STARTS"] = "1"  # what is measured starts as it does for users
    names = only or tuple(GROUPS)
    if "peers" in names and (absent := compare.missing()):
        raise click.ClickException(f"not installed: {', '.join(absent)}; `make bench` does it, or --only without peers")
    console = Console()
    if not console.is_terminal:
        console.width = 200
    began = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, open_bench(Path(directory), quick=quick) as bench:
        for name in names:
            since = time.monotonic()
            rows += measuring(name)(bench)
            console.print(f"{name}: {time.monotonic() - since:.1f} s", style="dim", highlight=False)
    report.print_table(rows, console=console)
    report.print_sides(rows, console=console)
    report.print_missed(rows, console=console)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report.as_dict(rows, quick=quick, took=time.monotonic() - began), indent=1))
    console.print(f"written to {out}")
    if page := report.markdown(rows):
        out.with_suffix(".md").write_text(page)
        console.print(f"written to {out.with_suffix('.md')}")


if __name__ == "__main__":
    main()
