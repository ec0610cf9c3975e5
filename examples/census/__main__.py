"""Measures every Python file below a directory in parallel and tells what it found.

Starts what it needs (a private Redis server unless POIMEN_REDIS_URL names one, and worker processes) and stops it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from celery import chord, group
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.census.local import DATA, Fleet, redis_server
from examples.census.metrics import sources
from examples.census.report import failure, is_content, render, write
from poimen_tasks.errors import BatchTimeout, PoimenError

if TYPE_CHECKING:
    from poimen_tasks.dispatch import Batch
    from poimen_tasks.model import Outcome

_DEFAULT = Path(sysconfig.get_paths()["stdlib"])
_SILENCE = 5.0  # seconds without an answer after which we look whether a worker is left
_INTERRUPTED = 130  # as a shell reports it
T = TypeVar("T")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=_DEFAULT,
    help="Measure the Python files below it.  [default: this interpreter's standard library]",
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes to start.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("build/census.json"), show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of tables.")
def main(directory: Path, workers: int, out: Path, as_json: bool) -> None:
    """Measure every Python file below a directory: lines, functions, classes, complexity."""
    files = sources(directory.resolve())
    if not files:
        raise click.UsageError(f"no Python file below {str(directory)!r}")
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(stderr=as_json)
    try:
        report = _run(files, workers, console)
    except (PoimenError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("interrupted: what had not started is cancelled, workers and server are stopped", err=True)
        sys.exit(_INTERRUPTED)
    report = {"directory": str(directory.resolve()), "workers": workers, **report}
    write(report, out)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        render(report, console)
        known, saved = report["cache"]["known"], report["cache"]["seconds_saved"]
        console.print(
            f"{known:,} of {len(files):,} files were equal to others, or measured before: {saved:.2f} s saved"
        )
        console.print(f"The whole report is in {out}")
    if broken := [entry for entry in report["failed"] if not is_content(entry)]:
        first = "{path}: {type}: {reason}".format_map(broken[0])
        raise click.ClickException(f"failed for another reason than their content: {len(broken)} files; {first}")


def _run(files: list[str], workers: int, console: Console) -> dict[str, Any]:
    """Dispatch one chord over the files and follow it to its end, with a server and workers of our own."""
    private = "POIMEN_REDIS_URL" not in os.environ
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="census-")))
        stack.enter_context(redis_server(DATA))
        from examples.census.tasks import MEASURED, aggregate, aggregate_measured, measure, poimen

        for left in poimen.batches(workflow="census") if private else ():
            if not left.status().is_over:
                left.cancel(actor="census", reason="its run was killed")  # or our workers would go on with it
        fleet = stack.enter_context(Fleet(workers, directory))
        before = poimen.cache.stats(MEASURED)
        work = chord(group(measure.s(path) for path in files), aggregate.s().on_error(aggregate_measured.s()))
        # Leaving the block by an exception, Ctrl-C included, cancels what has not started.
        with poimen.dispatch(work, workflow="census", stage="measure", concurrency=None, actor="census") as batch:
            failed, measured = _follow(batch, fleet, files, console)
            timing = batch.wait(timeout=60)
            body = "on_failure" if failed else "on_success"
            summary = _patiently(lambda: batch.callback_result(body, timeout=_SILENCE), fleet)
        after = poimen.cache.stats(MEASURED)
    known = after.hits + after.coalesced - before.hits - before.coalesced
    cache = {"known": known, "seconds_saved": after.seconds_saved - before.seconds_saved}
    speed = {name: getattr(timing, name) for name in ("wall_time", "total_task_time", "speedup", "efficiency")}
    return {**summary, "failed": failed, "speed": {**speed, "stats": timing.stats()}, "cache": cache, "files": measured}


def _follow(
    batch: Batch, fleet: Fleet, files: list[str], console: Console
) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Show progress until the last file is done; returns the failures and the measurements."""
    failed, measured = [], []
    with _progress(console) as progress:
        bar = progress.add_task("measuring", total=len(files), failed=0)
        for outcome in _outcomes(batch, fleet):
            if outcome.ok:
                measured.append(outcome.result)
            else:
                failed.append(failure(files[int(outcome.item_id)], outcome))
            progress.update(bar, advance=1, failed=len(failed))
    return sorted(failed, key=lambda entry: entry["path"]), sorted(measured, key=lambda result: str(result["path"]))


def _outcomes(batch: Batch, fleet: Fleet) -> Iterator[Outcome[Any]]:
    """The batch's outcomes as they come; raises when nothing comes because no worker is left."""
    cursor = None
    while True:
        with contextlib.suppress(BatchTimeout):
            for outcome in batch.outcomes(after=cursor, timeout=_SILENCE):
                cursor = outcome.cursor
                yield outcome
            return
        fleet.check()


def _patiently(ask: Callable[[], T], fleet: Fleet) -> T:
    """Ask until there is an answer; raises when none will come because no worker is left."""
    while True:
        with contextlib.suppress(BatchTimeout):
            return ask()
        fleet.check()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        console=console,
    )


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
