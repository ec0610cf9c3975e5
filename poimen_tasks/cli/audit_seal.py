"""`poimen audit seal`: the sealer, until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Self

import click

from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.follow_index import IndexProcess
from poimen_tasks.audit.joining import refuse_to_begin
from poimen_tasks.audit.keys import check_origin
from poimen_tasks.audit.log import SealedLog
from poimen_tasks.audit.place import check_place
from poimen_tasks.audit.sealer import Sealer
from poimen_tasks.audit.source import Source
from poimen_tasks.cli.loading import app_options, load_store
from poimen_tasks.cli.output import Failure, json_option, print_json
from poimen_tasks.errors import AuditDiskError
from poimen_tasks.settings import mask_url
from poimen_tasks.store import Store

__all__ = ["seal"]

#: Seconds between two lines about how far it is.
_REPORT = 10.0


class _Stop:
    """Notes a request to stop; the round under way ends first."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


@click.command()
@app_options
@json_option
@click.option("--once", is_flag=True, help="Seal what is there, and end.")
@click.option(
    "--index/--no-index", default=True, show_default=True, help="Keep the index for queries up to date meanwhile."
)
@click.option("--origin", help="The name of the log in its checkpoints, for ever. Default: poimen/NAMESPACE.")
@click.option("--fork", is_flag=True, help="Go on in this directory although the stream was sealed in another one.")
@click.option(
    "--unregister", is_flag=True, help="No sealer will run for now: the stream is bounded again, nothing waits for one."
)
def seal(
    *, app: str | None, directory: Path | None, as_json: bool, once: bool, index: bool, origin: str | None, fork: bool,
    unregister: bool,
) -> None:  # fmt: skip
    """Move audit entries from Redis to the sealed log.

    It runs until it is stopped; the log is in POIMEN_AUDIT_DIR. One sealer serves a whole fleet. It may be killed at
    any moment, and goes on where it was; SIGTERM and Ctrl-C let it seal what it has. The app is optional: without one,
    the settings are those of the environment.
    """
    store = load_store(app, directory)
    if unregister:
        left = store.audit.leave_sealer("", forget=True)
        text = "no sealer is registered any more" if left else "no sealer was registered"
        text = f"{text}; the stream keeps the newest entries"
        print_json({"unregistered": left}) if as_json else click.echo(text)
        return
    named = f"poimen/{store.settings.namespace}" if origin is None else check_origin(origin)
    with _logging(), _Stop() as stop, _disk_errors():
        _seal(store, named, stop, once=once, index=index, fork=fork, json=as_json)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """A disk that failed ends the sealer, and the last line says what to do."""
    try:
        yield
    except AuditDiskError as error:
        raise Failure(
            f"{error}. Nothing was tried again, and what is not sealed stays in Redis. Make room or mend the disk, "
            "then start the sealer again: it reads back what the disk has and goes on from there",
            kind="AuditDiskError",
        ) from error


def _seal(store: Store, origin: str, stop: _Stop, *, once: bool, index: bool, fork: bool, json: bool) -> None:
    settings, began = store.settings, time.monotonic()
    check_place(settings.audit_dir, write=True)
    if not fork:
        refuse_to_begin(settings.audit_dir, store.audit.describe_audit())
    with SealedLog.open(settings.audit_dir, origin=origin) as log:
        recovered, size = log.recovered, log.size
        source = Source(store.audit, settings.audit_dir, lease=settings.lease)
        report = _Report(log, source, stop)
        sealer = Sealer(
            log,
            ContentStore(settings.audit_dir),
            source,
            inline_bytes=settings.audit_inline_bytes,
            stopping=report.look,
        )
        sealer.join(fork=fork)
        _introduce(store, log, recovered, as_json=json)
        with _index(settings.audit_dir) if index else contextlib.nullcontext():
            sealer.run(once=once)
        took = time.monotonic() - began
        click.echo(f"sealed {log.size - size:,} lines in {took:.1f} s; {log.size:,} in all", err=True)


@contextlib.contextmanager
def _index(directory: Path) -> Iterator[None]:
    process = IndexProcess(directory)
    process.start()
    try:
        yield
    finally:
        process.stop()


class _Report:
    """Asked by the sealer between rounds whether to stop; says now and then how far it is."""

    def __init__(self, log: SealedLog, source: Source, stop: _Stop) -> None:
        self._log, self._source, self._stop = log, source, stop
        self._said, self._size = time.monotonic(), -1

    def look(self) -> bool:
        if time.monotonic() - self._said > _REPORT and self._log.size != self._size:
            self._said, self._size = time.monotonic(), self._log.size
            click.echo(f"{self._size:,} lines sealed, {self._source.state.length:,} entries wait", err=True)
        return self._stop.asked


def _introduce(store: Store, log: SealedLog, recovered: str, *, as_json: bool) -> None:
    url, place = mask_url(store.client.url), str(log.directory)
    if as_json:
        said = {"directory": place, "url": url, "namespace": store.settings.namespace, "size": log.size}
        print_json({**said, "public_key": log.public_key, "recovered": recovered or None})
        return
    click.echo(f"sealing    {store.settings.namespace} of {url}")
    click.echo(f"into       {place}, {log.size:,} lines so far")
    click.echo(f"public key {log.public_key}")
    if recovered:
        click.echo(f"recovered  {recovered}")


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """What the sealer logs goes to stderr while it runs."""
    logger, handler = logging.getLogger("poimen.audit"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
