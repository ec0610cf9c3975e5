"""A producer in a fresh process: dispatches no-ops, waits, reads everything; prints what it took as one JSON line."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from tests.bench.measure import peak_rss


def produce(items: int) -> dict[str, Any]:
    """One batch, end to end: seconds of each part, and the memory after all results were seen."""
    from tests.bench.tasks_poimen import noop, poimen

    began = time.perf_counter()
    batch = poimen.dispatch(poimen.map(noop, range(items)))
    dispatched = time.perf_counter()
    report = batch.wait(timeout=900)
    waited = time.perf_counter()
    seen = sum(1 for _ in report.results.items())
    iterated = time.perf_counter()
    if seen != items:
        raise click.ClickException(f"{seen} of {items} items succeeded")
    return {
        "items": items,
        "dispatch": dispatched - began,
        "wait": waited - dispatched,
        "iterate": iterated - waited,
        "end_to_end": waited - began,
        "with_results": iterated - began,
        "peak_mb": peak_rss(),
        "batch": batch.id,
    }


def read(batch_id: str) -> float:
    """Outcomes per second of a batch that is over."""
    from tests.bench.tasks_poimen import poimen

    began = time.perf_counter()
    count = sum(1 for _ in poimen.batch(batch_id).outcomes(timeout=600))
    return count / (time.perf_counter() - began)


@click.command()
@click.argument("items", type=int)
@click.option("--runs", default=1, help="Batches of this size, one after the other.")
@click.option("--warm", default=200, help="Items before it, so that imports and connections are not measured.")
@click.option("--read", "reads", default=0, help="How many times to read all outcomes of the last batch afterwards.")
def main(items: int, runs: int, warm: int, reads: int) -> None:
    """Measure and print."""
    baseline = peak_rss()
    produce(warm)
    batches = [produce(items) for _ in range(runs)]
    said = [read(batches[-1]["batch"]) for _ in range(reads)]
    click.echo(json.dumps({"batches": batches, "outcomes_per_second": said, "baseline_mb": baseline}))


if __name__ == "__main__":
    main()
