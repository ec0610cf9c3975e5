"""`poimen cancel`: no item of a batch starts any more."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path

import click

from poimen_tasks.cli.loading import app_options, load
from poimen_tasks.cli.output import Failure, json_option, print_json
from poimen_tasks.model import BatchState, BatchStatus

__all__ = ["cancel", "default_actor"]


def default_actor() -> str:
    """Who sits at the terminal, as a name that the audit log takes."""
    try:
        found = (
            os.environ.get("USER") or getpass.getuser()
        )  # where it is not set, as in a container, that of the process
    except (ImportError, KeyError, OSError):
        found = ""
    return re.sub(r"[^A-Za-z0-9_.:-]", "-", found).lstrip("_.:-")[:128] or "unknown"


@click.command()
@app_options
@json_option
@click.argument("batch")
@click.option("--reason", default="", help="Why; for the outcomes and the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
@click.option("--terminate", is_flag=True, help="Also kill the processes that run items of this batch.")
def cancel(
    *, app: str | None, directory: Path | None, as_json: bool, batch: str, reason: str, actor: str, terminate: bool
) -> None:
    """Cancel BATCH: nothing more of it is started.

    Running items are asked to stop. Items that are finished keep their outcomes. A running body learns of it from
    `poimen.checkpoint()`; one that does not ask finishes, unless --terminate is given.
    """
    status = load(app, directory).batch(batch).cancel(reason, actor, terminate=terminate)
    if status.is_over and status.state is not BatchState.CANCELLED:
        raise Failure(
            f"batch {batch!r} is over already, it {_ended(status)}: there was nothing to cancel", kind="BatchOver"
        )
    if as_json:
        print_json(status)
    else:
        click.echo(_in_words(status, terminate=terminate))


def _ended(status: BatchStatus) -> str:
    return "completed" if status.state is BatchState.COMPLETED else "failed"


def _in_words(status: BatchStatus, *, terminate: bool) -> str:
    text = f"cancelled {status.batch_id}: {status.finished - status.cancelled:,} of {status.total:,} items had finished"
    if not status.running:
        return f"{text}, {status.cancelled:,} did not start"
    how = "their processes are being killed" if terminate else "they may finish; --terminate kills their processes"
    return f"{text}, {status.cancelled:,} did not start, {status.running:,} are still running: {how}"
