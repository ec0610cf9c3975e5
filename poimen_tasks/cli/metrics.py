"""`poimen metrics`: what a Prometheus server scrapes, printed once or served over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import click

from poimen_tasks.cli.interrupts import Interrupts
from poimen_tasks.cli.loading import app_options, load_without_tasks
from poimen_tasks.cli.output import Failure, json_option, print_json
from poimen_tasks.errors import InvalidArgument
from poimen_tasks.metrics import Address, MetricsServer, PoimenCollector, scrape
from poimen_tasks.settings import mask_url

__all__ = ["metrics"]

_LOOK = 0.1


def address_of(value: str | Address) -> Address:
    """The type of `--listen`.

    Raises:
        BadParameter: it is no address.
    """
    try:
        return value if isinstance(value, Address) else Address.parse(value)
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@app_options
@json_option
@click.option(
    "--listen", type=address_of, metavar="HOST:PORT",
    help="Serve /metrics and /-/healthy there until it is stopped, as on 127.0.0.1:9808. Port 0: any that is free.",
)  # fmt: skip
@click.option("--public", is_flag=True, help="With --listen: an address that other machines reach is meant.")
def metrics(
    *, app: str | None, directory: Path | None, as_json: bool, listen: Address | None, public: bool
) -> None:  # fmt: skip
    """Print metrics for Prometheus, or serve them.

    Without --listen it prints them once, and exits 1 when the store does not answer. They name tasks and queues, so
    they are served to this machine alone unless --public is given; there is no login. The app is optional: without one,
    the settings are those of the environment. It needs the [metrics] extra.
    """
    _check(listen, public=public)
    poimen = load_without_tasks(app, directory)
    collector, url = PoimenCollector(poimen), mask_url(poimen.redis_url)
    if listen is None:
        _print(collector, url, as_json=as_json)
    else:
        _serve(collector, listen, as_json=as_json)


def _check(listen: Address | None, *, public: bool) -> None:
    if public and listen is None:
        raise click.UsageError("--public is about where to listen; give --listen too")
    if listen is not None and not listen.is_loopback and not public:
        raise click.UsageError(
            f"--listen: other machines reach {listen}, and metrics name tasks and queues to whoever asks: "
            "listen on 127.0.0.1, or give --public if that is meant"
        )


def _print(collector: PoimenCollector, url: str, *, as_json: bool) -> None:
    found = scrape(collector)
    if as_json:
        print_json({"up": found.up, "samples": found.rows()})
    else:
        click.echo(found.text()[0].decode(), nl=False)
    if not found.up:
        click.echo(f"the store, Redis at {url}, cannot be read; `poimen health` says why", err=True)
        click.get_current_context().exit(1)


def _serve(collector: PoimenCollector, listen: Address, *, as_json: bool) -> None:
    try:
        server = MetricsServer(collector, listen)
    except OSError as error:
        raise Failure(f"cannot listen on {listen}: {error.strerror or error}", kind="OSError") from error
    with Interrupts() as stop, server.running():
        url = f"http://{server.address}/metrics"
        if as_json:
            print_json({"url": url})
        else:
            click.echo(f"metrics are at {url}; Ctrl-C stops")
        while not stop.code:
            time.sleep(_LOOK)
