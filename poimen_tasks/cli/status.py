"""`poimen status`: what runs, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from poimen_tasks.app import Poimen
from poimen_tasks.cli.loading import app_options, load
from poimen_tasks.cli.one_batch import advice_on, show_batch
from poimen_tasks.cli.output import (
    console,
    duration,
    json_option,
    print_json,
    share,
    since,
    state_text,
    when,
    wide,
    with_app,
)
from poimen_tasks.cli.tables import table
from poimen_tasks.dispatch import Batch
from poimen_tasks.errors import BatchNotFound
from poimen_tasks.health import LIVE
from poimen_tasks.model import BatchState, BatchStatus
from poimen_tasks.store.reads import WorkerInfo

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["status"]

#: What a screen that is narrower than that can do without; which batch, how it is and how far remain.
_WHEN, _MORE = ("stage", "limit", "created (utc)"), ("workflow", "failed", "running")
_SPARE = ((48, (*_WHEN, *_MORE, "age")), (64, (*_WHEN, *_MORE)), (1_000, _WHEN))


@click.command()
@app_options
@json_option
@click.argument("batch", required=False)
@click.option("--workflow", metavar="W", help="Only batches of this workflow.")
@click.option("--state", type=click.Choice([str(state) for state in BatchState]), help="Only batches in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many batches.")
def status(
    *, app: str | None, directory: Path | None, as_json: bool, batch: str | None, workflow: str | None,
    state: str | None, limit: int,
) -> None:  # fmt: skip
    """Show batches and workers, or one BATCH in full. Batches are listed newest first."""
    if batch is not None and (workflow or state):
        raise click.UsageError("--workflow and --state choose among batches; leave them out when you name one")
    poimen = load(app, directory)
    if batch is not None:
        show_batch(poimen.batch(batch), as_json=as_json)
        return
    found, more = _newest(poimen, workflow, state, limit)
    now, workers = poimen.store.reads.now(), poimen.store.reads.workers()
    if as_json:
        print_json({"batches": found, "more": more, "workers": [_worker_dict(worker, now) for worker in workers]})
    else:
        _overview(console(), found, workers, now, more=more)


def _newest(poimen: Poimen, workflow: str | None, state: str | None, limit: int) -> tuple[list[BatchStatus], bool]:
    """The newest batches that match, and whether there are more."""
    found: list[BatchStatus] = []
    for one in _statuses(poimen.batches(workflow=workflow)):
        if state is None or one.state == state:
            if len(found) == limit:
                return found, True
            found.append(one)
    return found, False


def _statuses(batches: Sequence[Batch]) -> Iterator[BatchStatus]:
    for batch in batches:
        try:
            yield batch.status()
        except BatchNotFound:
            continue  # its retention ended, and no worker has tidied the list since


def _overview(screen: Console, found: list[BatchStatus], workers: list[WorkerInfo], now: float, *, more: bool) -> None:
    if found:
        screen.print(_batch_table(found, datetime.fromtimestamp(now, UTC), screen))
        if more:
            screen.print(f"and more: --limit {2 * len(found)} shows them, --workflow and --state choose among them")
    else:
        screen.print("no batches")
    screen.print()
    nobody = with_app("no workers: start one with `poimen worker -A APP`")
    screen.print(_worker_table(workers, now) if workers else nobody)
    for line in dict.fromkeys(line for one in found for line in advice_on(one)):
        screen.print(Text(f"\n{line}", style="yellow"))


def _batch_table(found: list[BatchStatus], now: datetime, screen: Console) -> Table:
    names = ["batch", "workflow", "stage", "state", "done", "failed", "running", "limit", "created (utc)", "age"]
    if not wide(screen):
        spare = next(spare for below, spare in _SPARE if screen.width < below)
        names = [name for name in names if name not in spare]
    made = table(
        *names, right=("done", "failed", "running", "limit", "created (utc)", "age"), cut=("workflow", "stage")
    )
    for one in found:
        cells: dict[str, str | Text] = {
            "batch": one.batch_id,
            "workflow": "its own" if one.workflow == one.batch_id else one.workflow,
            "stage": one.stage,
            "state": state_text(one.state),
            "done": share(one.finished, one.total),
            "failed": Text(f"{one.failed:,}", style="red" if one.failed else ""),
            "running": f"{one.running:,}",
            "limit": "all" if one.concurrency is None else f"{one.concurrency:,}",
            "created (utc)": when(one.created_at, zone=False),
            "age": since(one.created_at, now),
        }
        made.add_row(*(cells[name] for name in names))
    return made


def _worker_table(workers: list[WorkerInfo], now: float) -> Table:
    made = table("worker", "pid", "pool", "slots", "seen", "queues", right=("pid", "slots", "seen"))
    for worker in workers:
        row = _worker_dict(worker, now)
        made.add_row(
            row["hostname"],
            str(row["pid"]),
            row["pool"],
            str(row["slots"]),
            _seen(row),
            ", ".join(row["queues"]),
        )
    return made


def _seen(row: dict[str, Any]) -> str | Text:
    """When it last ticked, and what is special about it."""
    seen = f"{duration(round(row['last_seen']))} ago"
    if not row["alive"]:
        return Text(f"{seen}, lost?", style="red")
    return Text(f"{seen}, leaving", style="yellow") if row["leaving"] else seen


def _worker_dict(worker: WorkerInfo, now: float) -> dict[str, Any]:
    details = worker.details
    return {
        "name": worker.name,
        "hostname": details.get("hostname", worker.name),
        "pid": details.get("pid"),
        "pool": str(details.get("pool", "")).rpartition(".")[2],
        "queues": [queue for queue, _ in worker.offers],
        "slots": details.get("slots", 0),
        "last_seen": max(0.0, now - worker.seen),
        "alive": now - worker.seen <= LIVE,
        "leaving": worker.leaving,
    }
