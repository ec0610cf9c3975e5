"""`python -m tests.bench`: measures, prints the table, writes the JSON file; missed targets do not make it fail."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

from tests.bench import (
    enqueue,
    fairness,
    kills,
    latency,
    memory,
    million,
    recovery,
    report,
    scaling,
    speedup,
    throughput,
)
from tests.bench.apps import Bench, open_bench
from tests.bench.measure import Row

# Neighbours share their workers where they can.
GROUPS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "enqueue": enqueue.enqueue,
    "throughput": throughput.throughput,
    "latency": latency.latency,
    "memory": memory.memory,
    "million": million.million,
    "cost": million.cost,
    "loglevel": throughput.loglevel,
    "speedup": speedup.speedup,
    "parity": latency.parity,
    "hosts": speedup.hosts,
    "fairness": fairness.fairness,
    "scaling": scaling.scaling,
    "late": scaling.late,
    "recovery": recovery.recovery,
    "kills": kills.kills,
}


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, under a minute in all: shows that everything runs.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(GROUPS)), help="Measure only this group; may be repeated."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/bench.json"), show_default=True)
def main(*, quick: bool, only: tuple[str, ...], out: Path) -> None:
    """Measure Poimen beside plain Celery, on private servers in a temporary directory."""
    console = Console()
    if not console.is_terminal:
        console.width = 200
    began = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, open_bench(Path(directory), quick=quick) as bench:
        for name in only or GROUPS:
            since = time.monotonic()
            rows += GROUPS[name](bench)
            console.print(f"{name}: {time.monotonic() - since:.1f} s", style="dim", highlight=False)
    report.print_table(rows, console=console)
    report.print_missed(rows, console=console)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report.as_dict(rows, quick=quick, took=time.monotonic() - began), indent=1))
    console.print(f"written to {out}")


if __name__ == "__main__":
    main()
