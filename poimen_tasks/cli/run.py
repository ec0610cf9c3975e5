"""`poimen run`: a file of calls becomes a batch, and its outcomes come back as lines."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click

from poimen_tasks.cli.calls_file import CallsFile
from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.files import out_option
from poimen_tasks.cli.loading import app_options, load, load_tasks
from poimen_tasks.cli.outcome_file import OutcomeFile
from poimen_tasks.cli.output import MISUSED, Failure, json_option, keep_stdout_clean, limit_of
from poimen_tasks.cli.run_job import RunJob
from poimen_tasks.dispatch.routing import PRIORITIES
from poimen_tasks.errors import InvalidArgument, PoimenError

__all__ = ["run"]

_DEFAULT_LIMIT = 0
_INTERRUPTED = 130
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@app_options
@json_option
@click.argument("calls", metavar="[FILE|-]", required=False, type=_FILE)
@out_option("Append outcomes to this file, not to stdout.")
@click.option("--resume", is_flag=True, help="Go on with the batch of --out, or with --batch-id.")
@click.option("--batch-id", metavar="ID", help="An id of your own for the batch.")
@click.option("--workflow", metavar="W", help="The workflow that the batch belongs to. Default: its own id.")
@click.option("--stage", metavar="S", default="default", show_default=True, help="Its name in the workflow.")
@click.option(
    "--concurrency", type=limit_of, metavar="N|all", default=_DEFAULT_LIMIT, show_default="POIMEN_BATCH_CONCURRENCY",
    help="How many calls run at a time, over all workers.",
)  # fmt: skip
@click.option("--queue", metavar="Q", help="The queue of calls that name none and whose task is not routed.")
@click.option("--priority", type=click.Choice(PRIORITIES), default="normal", show_default=True, help="Its urgency.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
@click.option(
    "--on-interrupt", type=click.Choice(("detach", "cancel")), default="detach", show_default=True,
    help="What Ctrl-C does to the batch.",
)  # fmt: skip
@click.option("--after", type=click.IntRange(min=0), metavar="CURSOR", help="With --resume: go on behind this outcome.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Leave after that; the batch goes on.")
@click.pass_context
def run(
    ctx: click.Context, *, app: str | None, directory: Path | None, as_json: bool, calls: Path | None,
    output: Path | None, resume: bool, batch_id: str | None, workflow: str | None, stage: str, concurrency: int | None,
    queue: str | None, priority: str, actor: str, on_interrupt: str, after: int | None, timeout: float | None,
) -> None:  # fmt: skip
    """Run the calls in FILE, or on stdin.

    Each outcome is printed as it comes.

    \b
    A call is a JSON object on a line of its own; all but "task" may be left out:
      {"task": "shop.add", "args": [1, 2], "kwargs": {}, "id": "first"}
    Also taken: task_id, model_id, tags, limit_key, queue, priority, countdown,
    eta, expires, time_limit, soft_time_limit. Without an id a call is known by
    its number, from 0.

    A file is checked whole before anything is written. Outcomes are objects too, a line each; everything else goes to
    stderr, with --json as objects.

    After Ctrl-C, a kill or a crash, `poimen run FILE -o OUT --resume` goes on, and OUT has every outcome once; OUT.run
    remembers the batch. Begun with --resume, the same command can simply be repeated.

    Exits 0 when every call succeeded, 1 when some did not, 2 when the calls or options are wrong, 124 when --timeout
    was over, 130 after Ctrl-C, 141 when nobody reads stdout any more.
    """  # noqa: D301 - Click takes \b for "keep these lines as they are"
    keep_stdout_clean()
    _refuse_misuse(calls, output, resume=resume, batch_id=batch_id, after=after)
    poimen = load(app, directory)
    load_tasks(poimen)
    options = {"workflow": workflow, "stage": stage, "concurrency": concurrency, "actor": actor}
    with ExitStack() as stack:
        with _misuse():
            source = stack.enter_context(CallsFile(calls, poimen, queue=queue, priority=priority))
            if source.is_file:
                source.check()
            target = stack.enter_context(OutcomeFile(output, resume=resume)) if output else None
            batch = poimen.batch(_choose(target, batch_id, resume=resume))
        job = RunJob(
            poimen=poimen, calls=source, output=target, batch=batch,
            options={**options, "queue": queue, "priority": priority}, resume=resume,
            cancels=on_interrupt == "cancel", after=after, timeout=timeout, as_json=as_json,
        )  # fmt: skip
        ctx.exit(job.run())


def _refuse_misuse(
    calls: Path | None, output: Path | None, *, resume: bool, batch_id: str | None, after: int | None
) -> None:
    if calls is None and sys.stdin.isatty():
        raise click.UsageError("which calls? Give a file of them, or pipe them in")
    if resume and batch_id is None and output is None:
        raise click.UsageError("--resume goes on with the batch of --out, or with --batch-id: give one of them")
    if after is not None and (output is not None or not resume):
        raise click.UsageError("--after goes with --resume and --batch-id; an --out knows where it stopped")


@contextlib.contextmanager
def _misuse() -> Iterator[None]:
    """While files are looked at: what is wrong with them is misuse, and Ctrl-C needs no more words."""
    try:
        yield
    except PoimenError as error:
        raise Failure.of(error, exit_code=MISUSED) from error
    except KeyboardInterrupt:
        click.echo("interrupted: nothing was dispatched", err=True)
        click.get_current_context().exit(_INTERRUPTED)


def _choose(output: OutcomeFile | None, batch_id: str | None, *, resume: bool) -> str:
    """The id of the batch to begin, or to go on with."""
    noted = output.note.batch_id if output and resume else None
    if output and noted and batch_id not in (None, noted):
        raise InvalidArgument(f"{str(output.path)!r} has outcomes of batch {noted}, not of {batch_id}")
    if output and output.cursor is not None and not noted:
        raise InvalidArgument(
            f"{str(output.note.path)!r}, which says whose outcomes {str(output.path)!r} has, is gone; "
            "give another --out"
        )
    return noted or batch_id or secrets.token_hex(8)
