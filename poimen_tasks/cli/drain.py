"""`poimen drain`: workers leave, each as after SIGTERM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from poimen_tasks._checks import words
from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.loading import app_options, load_store
from poimen_tasks.cli.output import TIMED_OUT, Failure, json_option, print_json
from poimen_tasks.cli.waiting import wait_options
from poimen_tasks.ids import check_name
from poimen_tasks.store import Store

__all__ = ["drain"]

_POLL = 0.25
_EVERY_LINE = 5.0


@click.command()
@app_options
@json_option
@click.option(
    "--worker", "workers", multiple=True, metavar="NAME", default=("all",), show_default=True,
    help="A node name, as `poimen status` shows it; or all. May be repeated.",
)  # fmt: skip
@wait_options("they have left")
@click.option("--reason", default="", help="Why; for the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
def drain(
    *, app: str | None, directory: Path | None, as_json: bool, workers: tuple[str, ...], wait: float | None,
    reason: str, actor: str,
) -> None:  # fmt: skip
    """Ask workers to leave when what they run is over.

    They claim nothing more, finish what runs, keep open workflows on disk, and end. The request is stored: a worker
    that cannot be reached now hears it later. Workers that start afterwards are not meant, so a new deployment can be
    started beside. The app is optional: without one, the settings are those of the environment.
    """
    check_name(actor, "actor")
    store = load_store(app, directory)
    names = _chosen(store, workers)
    asked = store.scripts.drain_workers(names, actor=actor, reason=words(reason))
    left = [] if wait is None else _wait(store, asked, wait, quiet=as_json)
    if left:
        are = "is" if len(left) == 1 else "are"
        raise Failure(
            f"{len(left)} of {_workers(len(asked))} {are} still there, and to leave when what runs is finished: "
            f"{', '.join(left)}",
            exit_code=TIMED_OUT,
        )
    if as_json:
        print_json({"workers": asked, "left": wait is not None})
    elif not asked:
        click.echo("no worker is there")
    else:
        one = len(asked) == 1
        done = ("is" if one else "are") + " asked to leave" if wait is None else ("has left" if one else "have left")
        click.echo(f"{_workers(len(asked))} {done}: {', '.join(asked)}")


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _chosen(store: Store, wanted: Sequence[str]) -> list[str]:
    known = [worker.name for worker in store.reads.workers()]
    if "all" in wanted:
        return known
    chosen: list[str] = []
    for name in wanted:
        found = [one for one in known if name in (one, one.rpartition("/")[0])]
        if not found:
            there = ", ".join(known) or "none"
            raise Failure(f"no worker is called {name!r}; there are: {there}", kind="WorkerNotFound")
        chosen += found
    return list(dict.fromkeys(chosen))


def _wait(store: Store, asked: Sequence[str], seconds: float, *, quiet: bool) -> list[str]:
    """Those that are still there when the time is over."""
    deadline = time.monotonic() + seconds
    told = time.monotonic() + 1.0
    while True:
        there = {worker.name for worker in store.reads.workers()}
        left = [name for name in asked if name in there]
        if not left or time.monotonic() >= deadline:
            return left
        if not quiet and time.monotonic() >= told:
            told = time.monotonic() + _EVERY_LINE
            click.echo(f"waiting for {len(left)} of {_workers(len(asked))}", err=True)
        time.sleep(_POLL)
