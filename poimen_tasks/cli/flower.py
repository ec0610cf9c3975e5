"""`poimen flower`: Celery's Flower with safe defaults, and pages for batches, pauses, the cache and the audit log."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from poimen_tasks.cli.loading import app_options, load, load_tasks
from poimen_tasks.cli.output import json_option, print_json
from poimen_tasks.flower import OPTIONS, hide_passwords, prepare, read_options, revealed
from poimen_tasks.settings import mask_url

__all__ = ["flower"]

#: Where one command leaves them for the next: not in Flower's own variables, over which its configuration would win.
_HIDDEN = "POIMEN_FLOWER_HIDDEN"
_NO_EVENTS = (
    "this app's workers send events only where they are started with -E, and the lists of tasks stay empty otherwise: "
    "set worker_send_task_events = True, or let Flower ask for them with --enable_events=true"
)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@app_options
@json_option
@click.option("--address", metavar="ADDRESS", help=f"Where it listens.  [default: {OPTIONS['address']}]")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help=f"Its port; 0 is a free one.  [default: {OPTIONS['port']}]"
)
@click.option(
    "--basic-auth", metavar="USER:PASSWORD", multiple=True,
    help="Who may log in; may be given several times. FLOWER_BASIC_AUTH says the same.",
)  # fmt: skip
@click.option("--url-prefix", metavar="PATH", help="What its addresses begin with, behind a proxy.")
@click.option(
    "--allow-control", is_flag=True, help="Let those who log in revoke tasks, start them, and steer and stop workers."
)
@click.option(
    "--allow-host", metavar="NAME", multiple=True,
    help="A name of this server besides localhost, where there is no login; may be given several times.",
)  # fmt: skip
@click.option("--public-metrics", is_flag=True, help="Show /metrics without a login.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[FLOWER OPTIONS]...")
def flower(
    *, app: str | None, directory: Path | None, as_json: bool, address: str | None, port: int | None,
    basic_auth: tuple[str, ...], url_prefix: str | None, allow_control: bool, allow_host: tuple[str, ...],
    public_metrics: bool, options: tuple[str, ...],
) -> None:  # fmt: skip
    """Watch in a browser: Celery's Flower, with Poimen's pages.

    It listens on this machine alone unless there is a login, and changes nothing unless --allow-control is given.
    Options that are not listed here are Flower's own, as --name=value. Needs the [flower] extra. With --json one object
    about it goes to stdout, and its log to stderr as always.
    """
    hidden = _hide_passwords()
    named = {"address": address, "port": port, "url_prefix": url_prefix}
    given = {name: value for name, value in named.items() if value is not None}
    given |= revealed({**hidden, **({"basic_auth": basic_auth} if basic_auth else {})})
    found = read_options(options, given=given, control=allow_control, hosts=allow_host, public_metrics=public_metrics)
    poimen = load(app, directory)
    load_tasks(poimen)
    server = prepare(poimen, found)
    if as_json:
        print_json({
            "address": server.address, "pages": _pages(server.address), "pid": os.getpid(),
            "url": mask_url(poimen.redis_url), "read_only": not allow_control,
        })  # fmt: skip
    else:
        click.echo(f"Flower listens on {server.address}, Poimen's pages on {_pages(server.address)}", err=True)
    if not (poimen.celery.conf.worker_send_task_events or found.flower.enable_events):
        click.echo(_NO_EVENTS, err=True)
    sys.stdout.flush()
    server.run()


def _pages(address: str) -> str:
    return f"{address.rstrip('/')}/poimen" if address.startswith("http") else "/poimen"


def _hide_passwords() -> dict[str, list[str]]:
    """Become the same command without the passwords that stand in it; or, having become that, get them back."""
    words, secrets = hide_passwords(sys.argv[1:])
    if secrets:
        command = [sys.executable, "-m", "poimen_tasks.cli", *words]
        os.execve(command[0], command, {**os.environ, _HIDDEN: json.dumps(secrets)})  # noqa: S606 - no shell between
    return json.loads(os.environ.pop(_HIDDEN, "{}"))  # type: ignore[no-any-return]
