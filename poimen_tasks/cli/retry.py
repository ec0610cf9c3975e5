"""`poimen retry`: the failed items of a batch run again."""

from __future__ import annotations

from pathlib import Path

import click

from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.loading import app_options, load
from poimen_tasks.cli.output import json_option, print_json, with_app

__all__ = ["retry"]


@click.command()
@app_options
@json_option
@click.argument("batch")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
def retry(*, app: str | None, directory: Path | None, as_json: bool, batch: str, actor: str) -> None:
    """Run the failed items of BATCH again.

    That is a new round, with its own callbacks. Items that succeeded, or that were skipped, keep their outcomes. A
    cancelled batch cannot be retried.
    """
    handle = load(app, directory).batch(batch)
    retried = handle.retry_failed(actor)
    if as_json:
        print_json({"batch_id": batch, "retried": retried, "status": handle.status()})
    elif retried:
        items = "1 failed item runs" if retried == 1 else f"{retried:,} failed items run"
        click.echo(with_app(f"{items} again: `poimen watch -A APP {batch}` follows"))
    else:
        click.echo(f"no item of {batch} has failed: nothing to do")
