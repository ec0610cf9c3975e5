"""`poimen up`: a private server, a worker and a sealer, for as long as the command runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Self

import click

from poimen_tasks.cli.loading import app_options, celery_name, data_dir, load
from poimen_tasks.cli.output import Failure, json_option, print_json, with_app
from poimen_tasks.cli.up_sealer import UpSealer, can_seal
from poimen_tasks.cli.worker import worker_command
from poimen_tasks.settings import load_settings, mask_url
from poimen_tasks.store import Store
from poimen_tasks.store.server import EmbeddedServer
from poimen_tasks.store.tether import tethered

__all__ = ["up"]

_REDIS = "POIMEN_REDIS_URL"
_POLL = 0.1
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: What the worker is sent for the first, the second and any further request to stop.
_ESCALATION = (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL)


class _Requests:
    """Counts requests to stop. A handler that raised could strike while the server is being stopped."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _STOPS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


@click.command()
@app_options
@json_option
@click.option(
    "-c", "--concurrency", type=click.IntRange(min=1), help="Worker processes. Default: as many as processors."
)
@click.option("-l", "--loglevel", default="info", show_default=True, help="How much the worker logs.")
@click.option(
    "--port", type=click.IntRange(1, 65_535), help="The server's port, the same at every start. Default: a free one."
)
@click.option(
    "--seal/--no-seal", default=None, help="Seal the audit log as well. Default: where the server is the private one."
)
def up(
    *, app: str | None, directory: Path | None, as_json: bool, concurrency: int | None, loglevel: str,
    port: int | None, seal: bool | None,
) -> None:  # fmt: skip
    """Start a private server, a worker and a sealer.

    For development; Ctrl-C stops them. The sealer, of the audit log, needs the [audit] extra. The server keeps its data
    in the data directory, and comes back with it. While it runs, other `poimen` commands in the same directory find it
    by themselves. With POIMEN_REDIS_URL set, that server is used and none is started. Without an app only the server
    runs. When the worker is drained, the others run on.
    """
    with _Requests() as requests, _server(directory, port) as server:
        options = ["-l", loglevel, *(["-c", str(concurrency)] if concurrency else [])]
        worker = _start_worker(app, directory, server, options) if app else None
        sealer = UpSealer(app) if (server is not None and can_seal() if seal is None else seal) else None
        try:
            _introduce(app, directory, server, worker, sealer, as_json=as_json)
            code = _wait(requests, server, worker, sealer)
        finally:
            if worker is not None and worker.poll() is None:
                worker.kill()
                worker.wait()
            if sealer is not None:
                sealer.stop()
        if not requests.count and code:
            raise Failure(f"the worker ended by itself with exit code {code}; its log is above")
        click.echo("stopped", err=True)


@contextlib.contextmanager
def _server(directory: Path | None, port: int | None) -> Iterator[EmbeddedServer | None]:
    """The private server, set as the one to use; None when there is another one, which answers."""
    place = data_dir(directory)
    if os.environ.get(_REDIS):
        if port is not None:
            raise click.UsageError("--port is for the private server, and POIMEN_REDIS_URL names another one: unset it")
        settings = load_settings()
        store = Store(settings, settings.redis_url or "")
        store.reads.now()
        store.client.close()
        yield None
        return
    server = EmbeddedServer(place)
    if port is not None:
        _refuse_taken(port)
        server.port = port
    with server:
        os.environ[_REDIS] = server.url
        try:
            yield server
        finally:
            del os.environ[_REDIS]


def _refuse_taken(port: int) -> None:
    """Fail with better words than the server's log has for a port that is not to be had."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise Failure(f"port {port} of 127.0.0.1 cannot be had ({error.strerror}): choose another --port") from None


def _start_worker(
    app: str, directory: Path | None, server: EmbeddedServer | None, options: list[str]
) -> subprocess.Popen[bytes]:
    poimen = load(app, directory)
    if server is not None and poimen.redis_url != server.url:
        raise Failure(
            f"the app in {app!r} names its own Redis ({mask_url(poimen.redis_url)}), so a private server is of no use: "
            f"start a worker with `poimen worker -A {app}`"
        )
    return subprocess.Popen(
        tethered(worker_command(celery_name(app, poimen), options, node=f"up-{os.getpid()}")),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this command, which stops the worker before the server
    )


def _introduce(
    app: str | None,
    directory: Path | None,
    server: EmbeddedServer | None,
    worker: subprocess.Popen[bytes] | None,
    sealer: UpSealer | None,
    *,
    as_json: bool,
) -> None:
    url = os.environ[_REDIS]
    data = str(server.directory) if server else None
    if as_json:
        pids = {"server_pid": server.pid if server else None, "worker_pid": worker.pid if worker else None}
        print_json({"url": url, "data_dir": data, "app": app, **pids, "sealer_pid": sealer.pid if sealer else None})
        return
    where = _where(directory)
    click.echo(f"server   {mask_url(url)}" + (f"  data in {data}" if data else " (POIMEN_REDIS_URL)"))
    click.echo(f"worker   app {app}, its log follows" if worker else "worker   none: give the app, as -A shop")
    missing = "" if can_seal() else ": it needs pip install 'poimen-tasks[audit]'"
    click.echo("sealer   " + ("its words follow" if sealer else f"none{missing}"))
    click.echo("\nIn another terminal:")
    if server:
        click.echo(f"  poimen status -A {app or 'APP'}{where}    # finds this server by itself")
        click.echo(f"  export POIMEN_REDIS_URL={url}    # for your own programs")
    else:
        click.echo(f"  poimen status -A {app or 'APP'}    # with the same POIMEN_REDIS_URL")
    click.echo("Ctrl-C stops " + ("all." if server and worker else "it.") + "\n")


def _wait(
    requests: _Requests,
    server: EmbeddedServer | None,
    worker: subprocess.Popen[bytes] | None,
    sealer: UpSealer | None,
) -> int | None:
    """Until the worker has ended. The first request to stop lets running items finish, the second does not.

    A worker that was asked to leave is no end of the others.
    """
    heard = 0
    while True:
        if worker is not None and (code := worker.poll()) is not None:
            if code or requests.count or (server is None and sealer is None):
                return code
            _tell_of_leaving(server, sealer)
            worker = None
        if server is not None and not server.alive:
            raise Failure(f"the server ended by itself; its log is {server.log_path}")
        if requests.count > heard:
            if worker is None:
                return None
            _pass_on(worker, heard)
            heard += 1
        if sealer is not None:
            sealer.look()
        time.sleep(_POLL)


def _pass_on(worker: subprocess.Popen[bytes], heard: int) -> None:
    """Hand a request to stop to the worker; `heard` came before it."""
    worker.send_signal(_ESCALATION[min(heard, 2)])
    if heard == 0:
        click.echo("stopping: running items finish first; Ctrl-C again gives them up", err=True)


def _where(directory: Path | None) -> str:
    """The option by which other commands find this server."""
    return "" if directory is None else f" --dir {directory}"


def _tell_of_leaving(server: EmbeddedServer | None, sealer: UpSealer | None) -> None:
    others = [name for name, there in (("the server", server), ("the sealer", sealer)) if there]
    where = _where(click.get_current_context().params["directory"]) if server else ""
    run, them = ("runs", "it") if len(others) == 1 else ("run", "them")
    click.echo(
        with_app(
            f"the worker was drained: it left as asked; {' and '.join(others)} {run} on. Ctrl-C stops {them}; "
            f"`poimen worker -A APP{where}` in another terminal starts a worker again"
        ),
        err=True,
    )
