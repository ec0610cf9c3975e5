"""`poimen watch`: follows a batch until it is over."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from poimen_tasks.cli.loading import app_options, load
from poimen_tasks.cli.one_batch import failures_in_words
from poimen_tasks.cli.output import TIMED_OUT, Failure, console, json_option, print_json, share, with_app
from poimen_tasks.cli.progress import counts, ending, progress_bar
from poimen_tasks.dispatch import Batch
from poimen_tasks.errors import BatchTimeout
from poimen_tasks.model import BatchState, BatchStatus

__all__ = ["watch"]

_EVERY = 0.25
_EVERY_LINE = 2.0
_DETACHED = 130


@click.command()
@app_options
@json_option
@click.argument("batch")
@click.option("--after", type=click.IntRange(min=0), metavar="CURSOR", help="With --json: go on behind this outcome.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop watching after that; exits 124.")
@click.pass_context
def watch(
    ctx: click.Context, *, app: str | None, directory: Path | None, as_json: bool, batch: str, after: int | None,
    timeout: float | None,
) -> None:  # fmt: skip
    """Follow BATCH until it is over; Ctrl-C leaves it running.

    Exits 0 when every item succeeded, 1 when the batch failed or was cancelled, 124 when --timeout was over first, 130
    on Ctrl-C. With --json it prints one object an outcome as they come in, each with a cursor for --after.
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
        click.echo(f"\ndetached: batch {batch} goes on; {_again(batch)}", err=True)
        ctx.exit(_DETACHED)
    except BatchTimeout:
        found = watched.status()
        done = f"{found.finished:,} of {found.total:,} items are finished"
        raise Failure(
            f"{timeout:g} s are over and batch {batch} is not: {done}; it goes on, and {_again(batch)}",
            kind="BatchTimeout", exit_code=TIMED_OUT,
        ) from None  # fmt: skip
    ctx.exit(0 if watched.status().state is BatchState.COMPLETED else 1)


def _again(batch: str) -> str:
    return with_app(f"`poimen watch -A APP {batch}` follows it again")


def _follow(batch: Batch, timeout: float | None) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    screen = console()
    last = _live(screen, batch, deadline) if screen.is_terminal else _lines(screen, batch, deadline)
    screen.print(ending(last))
    if last.failed:
        _failures(screen, batch, last)


def _look(batch: Batch, deadline: float | None) -> BatchStatus:
    """The state now; an error when the deadline has passed."""
    found = batch.status()
    if not found.is_over and deadline is not None and time.monotonic() >= deadline:
        raise BatchTimeout(f"batch {batch.id!r} is not over yet: {share(found.finished, found.total)}; it goes on")
    return found


def _live(screen: Console, batch: Batch, deadline: float | None) -> BatchStatus:
    bar = progress_bar(screen)
    task = bar.add_task(batch.id, total=None)
    with Live(bar, console=screen, refresh_per_second=8) as live:
        while True:
            found = _look(batch, deadline)
            bar.update(task, total=found.total, completed=found.finished)
            live.update(Group(bar, counts(found)))
            if found.is_over:
                return found
            time.sleep(_EVERY)


def _lines(screen: Console, batch: Batch, deadline: float | None) -> BatchStatus:
    """Without a terminal: a line now and then, when something has changed."""
    shown, at = "", 0.0
    while True:
        found = _look(batch, deadline)
        text = counts(found).plain
        if found.is_over:
            return found
        if text != shown and time.monotonic() - at >= _EVERY_LINE:
            screen.print(f"{batch.id} {share(found.finished, found.total)}  {text}")
            shown, at = text, time.monotonic()
        time.sleep(_EVERY)


def _failures(screen: Console, batch: Batch, found: BatchStatus) -> None:
    """The first failed items with their reasons."""
    for line in failures_in_words(batch, found):
        screen.print(Text(line))
