"""`poimen doctor`: looks the system over, and repairs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
from kombu.exceptions import KombuError
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from poimen_tasks.app import Poimen
from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.loading import app_options, load_without_server
from poimen_tasks.cli.output import console, json_option, one_line, print_json, with_app
from poimen_tasks.dispatch.publish import publish_tickets
from poimen_tasks.errors import PoimenError, SettingsError
from poimen_tasks.health import Finding, Level, Repairs, check_settings, examine
from poimen_tasks.store.values import Ticket

__all__ = ["doctor", "rows", "summary"]

_MARKS = {Level.OK: ("ok", "green"), Level.WARNING: ("warning", "yellow"), Level.ERROR: ("error", "red")}


@click.command()
@app_options
@json_option
@click.option("--repair", is_flag=True, help="Put right what can be put right in one step; the audit log says what.")
@click.pass_context
def doctor(ctx: click.Context, app: str | None, directory: Path | None, as_json: bool, repair: bool) -> None:
    """Look everything over, and repair what can be repaired.

    That is the server, workers, batches, leftover keys, and the Celery app's settings. It may run at any time, beside
    the work. Exits 1 when an error stands; warnings alone exit 0.
    """
    poimen = load_without_server(app, directory)
    screen = console()
    with Status("", console=Console(stderr=True), spinner="line") as spinner:
        findings = _examine(poimen, repair=repair, progress=lambda text: spinner.update(f"looking at {text}"))
        found = [replace(finding, advice=with_app(finding.advice)) for finding in findings]
    if as_json:
        print_json({"ok": not any(one.is_failure for one in found), "findings": found})
    else:
        screen.print(rows(found))
        screen.print(summary(found, repair=repair))
    ctx.exit(1 if any(one.is_failure for one in found) else 0)


def _examine(poimen: Poimen, *, repair: bool, progress: Callable[[str], None]) -> Iterator[Finding]:
    try:
        _ = poimen.redis_url
    except SettingsError as error:
        subject, _, text = str(error).partition(": ")
        told, _, advice = text.rpartition("; ")
        yield Finding(Level.ERROR, "settings", subject, told or advice, advice)
        yield from check_settings(poimen.celery.conf)
        return
    repairs = Repairs(actor=default_actor(), publish=lambda tickets: _publish(poimen, tickets)) if repair else None
    yield from examine(poimen.store, poimen.celery.conf, repairs=repairs, progress=progress)


def _publish(poimen: Poimen, tickets: Sequence[Ticket]) -> None:
    parts = {batch: poimen.store.reads.parts(batch) for batch in {ticket.batch for ticket in tickets}}
    try:
        publish_tickets(poimen.celery, tickets, parts)
    except (KombuError, OSError, PoimenError) as error:
        click.echo(
            f"{len(tickets)} tickets could not be published, a worker does it soon: {one_line(str(error))}", err=True
        )


def rows(found: Iterable[Finding]) -> Table:
    """Findings as a person reads them."""
    made = Table.grid(padding=(0, 2, 0, 0))
    for finding in found:
        mark, color = ("repaired", "green") if finding.repaired else _MARKS[finding.level]
        text = Text(f"{one_line(finding.subject)}: {one_line(finding.message, most=1000)}")
        if finding.advice and not finding.repaired:
            text.append(f"\n{one_line(finding.advice)}", style="italic")
        made.add_row(Text(mark, style=color), Text(finding.check, style="bold"), text)
    return made


def summary(found: Sequence[Finding], *, repair: bool = True) -> Text:
    """The last line: how many of each level stand; without `repair` also that some can be put right."""
    standing = [one for one in found if not one.repaired]
    words = [_many(sum(one.level is level for one in standing), level) for level in (Level.ERROR, Level.WARNING)]
    if len(standing) < len(found):
        words.append(f"{len(found) - len(standing)} repaired")
    text = Text("\n" + ", ".join(words), style="bold")
    if not repair and any(one.repairable for one in standing):
        text.append("; --repair puts some of it right", style="default")
    return text


def _many(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
