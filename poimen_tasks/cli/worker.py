"""`poimen worker`: becomes `celery -A APP worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from poimen_tasks.cli.loading import app_options, celery_name, load, require_app
from poimen_tasks.cli.output import json_option, print_json
from poimen_tasks.settings import mask_url

__all__ = ["worker", "worker_command"]


def worker_command(name: str, options: Sequence[str], *, node: str, quiet: bool = False) -> list[str]:
    """The command line of a Celery worker for the app that `celery -A` finds by this name.

    Args:
        name: for `celery -A`.
        options: of `celery worker`; a node name among them wins.
        node: the node name otherwise. Two workers of one name on one machine would hide each other from Flower.
        quiet: without Celery's banner, the only thing of a worker that goes to stdout.
    """
    named = any(word.split("=")[0] == "--hostname" or word.startswith("-n") for word in options)
    celery = [sys.executable, "-m", "celery", *(["-q"] if quiet else [])]
    return [*celery, "-A", name, "worker", *([] if named else ["-n", f"{node}@%h"]), *options]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@app_options
@json_option
@click.option(
    "-c", "--concurrency", type=click.IntRange(min=1), help="Processes. Default: as many as there are processors."
)
@click.option("-Q", "--queues", help="Queues to serve, with commas between. Default: those of the app.")
@click.option(
    "-P", "--pool", help="prefork (default), gevent, eventlet, threads or solo; time limits are sure in prefork only."
)
@click.option("-l", "--loglevel", default="info", show_default=True, help="How much is logged.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[CELERY OPTIONS]...")
def worker(
    *, app: str | None, directory: Path | None, as_json: bool, concurrency: int | None, queues: str | None,
    pool: str | None, loglevel: str, options: tuple[str, ...],
) -> None:  # fmt: skip
    """Start a worker: `celery -A APP worker` with the same options.

    Options that are not listed here are Celery's, and passed on. Start as many workers as you like, on any machine that
    reaches the Redis server (POIMEN_REDIS_URL). With --json one object about the worker goes to stdout, and its log to
    stderr as always.
    """
    poimen = load(app, directory)
    given = [("-c", concurrency), ("-Q", queues), ("-P", pool), ("-l", loglevel)]
    words = [word for flag, value in given if value is not None for word in (flag, str(value))]
    name = celery_name(require_app(app), poimen)
    command = worker_command(name, [*words, *options], node=f"poimen-{os.getpid()}", quiet=as_json)
    if as_json:
        print_json({"app": name, "pid": os.getpid(), "url": mask_url(poimen.redis_url), "command": command[1:]})
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - it becomes the worker, so signals reach it directly
