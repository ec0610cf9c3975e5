"""`poimen concurrency`: another limit for a batch, while it runs."""

from __future__ import annotations

from pathlib import Path

import click

from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.loading import app_options, load
from poimen_tasks.cli.output import Failure, json_option, limit_of, print_json

__all__ = ["concurrency"]


@click.command()
@app_options
@json_option
@click.argument("batch")
@click.argument("limit", metavar="N|all", type=limit_of)
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
def concurrency(
    *, app: str | None, directory: Path | None, as_json: bool, batch: str, limit: int | None, actor: str
) -> None:
    """Let N items of BATCH run at a time, over all workers.

    `all` is as many as the fleet has. More takes effect at once; with less, running items end first.
    """
    handle = load(app, directory).batch(batch)
    before = handle.status()
    if before.is_over:
        raise Failure(f"batch {batch!r} is over already: there is nothing to limit", kind="BatchOver")
    handle.set_concurrency(limit, actor)
    if as_json:
        print_json(handle.status())
    else:
        click.echo(f"limit of {batch}: {_in_words(before.concurrency)} -> {_in_words(limit)}")


def _in_words(limit: int | None) -> str:
    return "the whole fleet" if limit is None else f"{limit:,}"
