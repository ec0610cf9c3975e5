"""`poimen watch`: follows a batch until it is over."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from poimen_tasks.cli.loading import app_options, load
from poimen_tasks.cli.one_batch import advice_on
from poimen_tasks.cli.output import console, duration, json_option, one_line, print_json, share, with_app
from poimen_tasks.dispatch import Batch
from poimen_tasks.errors import BatchTimeout
from poimen_tasks.model import BatchState, BatchStatus, ItemStatus

__all__ = ["watch"]

_EVERY = 0.25
_EVERY_LINE = 2.0
_SHOWN = 5
_DETACHED = 130


@click.command()
@app_options
@json_option
@click.argument("batch")
@click.option("--after", type=click.IntRange(min=0), metavar="CURSOR", help="With --json: go on behind this outcome.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop watching after that; exits 1.")
@click.pass_context
def watch(
    ctx: click.Context, *, app: str | None, directory: Path | None, as_json: bool, batch: str, after: int | None,
    timeout: float | None,
) -> None:  # fmt: skip
    """Follow BATCH until it is over; Ctrl-C leaves it running.

    Exits 0 when every item succeeded, 1 when the batch failed or was cancelled. With --json it prints one object an
    outcome as they come in, each with a cursor for --after.
    """
    if after is not None and not as_json:
        raise click.UsageError("--after goes on with a stream of outcomes; give --json too")
    watched = load(app, directory).batch(batch)
    try:
        if as_json:
            for outcome in watched.outcomes(after=after, timeout=timeout):
                print_json({**outcome.to_dict(), "cursor": outcome.cursor})
        else:
            _follow(watched, timeout)
    except KeyboardInterrupt:
        again = with_app(f"`poimen watch -A APP {batch}` follows it again")
        click.echo(f"\ndetached: batch {batch} goes on; {again}", err=True)
        ctx.exit(_DETACHED)
    ctx.exit(0 if watched.status().state is BatchState.COMPLETED else 1)


def _follow(batch: Batch, timeout: float | None) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    screen = console()
    last = _live(screen, batch, deadline) if screen.is_terminal else _lines(screen, batch, deadline)
    screen.print(_ending(last))
    if last.failed:
        _failures(screen, batch, last)


def _look(batch: Batch, deadline: float | None) -> BatchStatus:
    """The state now; an error when the deadline has passed."""
    found = batch.status()
    if not found.is_over and deadline is not None and time.monotonic() >= deadline:
        raise BatchTimeout(f"batch {batch.id!r} is not over yet: {share(found.finished, found.total)}; it goes on")
    return found


def _live(screen: Console, batch: Batch, deadline: float | None) -> BatchStatus:
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TimeRemainingColumn(),
        console=screen, expand=True, speed_estimate_period=60,
    )  # fmt: skip
    task = bar.add_task(batch.id, total=None)
    with Live(bar, console=screen, refresh_per_second=8) as live:
        while True:
            found = _look(batch, deadline)
            bar.update(task, total=found.total, completed=found.finished)
            live.update(Group(bar, _counts(found)))
            if found.is_over:
                return found
            time.sleep(_EVERY)


def _lines(screen: Console, batch: Batch, deadline: float | None) -> BatchStatus:
    """Without a terminal: a line now and then, when something has changed."""
    shown, at = "", 0.0
    while True:
        found = _look(batch, deadline)
        text = _counts(found).plain
        if found.is_over:
            return found
        if text != shown and time.monotonic() - at >= _EVERY_LINE:
            screen.print(f"{batch.id} {share(found.finished, found.total)}  {text}")
            shown, at = text, time.monotonic()
        time.sleep(_EVERY)


def _counts(found: BatchStatus) -> Text:
    names = ("running", "pending", "delayed", "waiting", "succeeded", "failed", "cancelled", "skipped")
    words = [f"{getattr(found, name):,} {name}" for name in names if getattr(found, name) or name == "running"]
    text = Text(f"{found.state}: " + ", ".join(words))
    for line in advice_on(found):
        text.append(f"\n{line}", style="yellow")
    return text


def _ending(found: BatchStatus) -> Text:
    color = "green" if found.state is BatchState.COMPLETED else "red"
    ran = (found.finished_at - found.started_at).total_seconds() if found.finished_at and found.started_at else None
    text = Text.assemble((str(found.state), color), f": {found.succeeded:,} of {found.total:,} items succeeded")
    for name in ("failed", "cancelled", "skipped"):
        if getattr(found, name):
            text.append(f", {getattr(found, name):,} {name}")
    return text.append(f", in {duration(ran)}" if ran is not None else "")


def _failures(screen: Console, batch: Batch, found: BatchStatus) -> None:
    """The first failed items with their reasons."""
    failed = (outcome for outcome in batch.outcomes() if outcome.status is ItemStatus.FAILED)
    for outcome in islice(failed, min(_SHOWN, found.failed)):
        screen.print(Text(f"  item {one_line(outcome.item_id)}: {one_line(str(outcome.error))}"))
    if found.failed > _SHOWN:
        rest = with_app(f"`poimen watch -A APP {batch.id} --json` has them all")
        screen.print(f"  and {found.failed - _SHOWN:,} more: {rest}")
