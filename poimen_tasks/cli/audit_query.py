"""`poimen audit tail | query | show | stats | rebuild-index`: what happened, and how much of it is kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from poimen_tasks.audit import AuditEvent, AuditPage, AuditStats
from poimen_tasks.audit.asking import Asking
from poimen_tasks.audit.collecting import rare_collections
from poimen_tasks.audit.unsealed import START
from poimen_tasks.cli.audit_hints import explain_nothing
from poimen_tasks.cli.audit_words import as_dict, filters, head, line, log_options, open_log, source_in_words
from poimen_tasks.cli.interrupts import Interrupts
from poimen_tasks.cli.output import Failure, console, json_line, json_option, one_line, print_json, when

__all__ = ["query", "rebuild_index", "show", "stats", "tail"]

_SHOWN = 15


@click.command()
@log_options
@json_option
@filters
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many events.")
@click.option("--after", metavar="CURSOR", help="Go on behind the page that ended with this cursor.")
@click.option("--newest/--oldest", default=False, help="Which come first. Default: the oldest.")
@click.option("--count", is_flag=True, help="Only how many there are.")
@click.option("-f", "--follow", is_flag=True, help="Print all of them, and those to come, until Ctrl-C.")
def query(
    *, app: str | None, directory: Path | None, log: Path | None, as_json: bool, wanted: dict[str, Any], limit: int,
    after: str | None, newest: bool, count: bool, follow: bool,
) -> None:  # fmt: skip
    """Print the events that all given filters leave.

    Where the answer comes from is said on stderr. With --json it is one object with the events, the source, and the
    cursor for --after; with --follow one object an event.
    """
    if follow and (newest or count):
        raise click.UsageError("--follow goes with neither --newest nor --count")
    asked = open_log(app, directory, log)
    if follow:
        if not asked.query(limit=1, **wanted):
            explain_nothing(asked, wanted)
        _follow(asked, after or START, wanted, as_json=as_json)
        return
    if count:
        found = asked.count(**wanted)
        print_json({"count": found}) if as_json else click.echo(f"{found}")
    else:
        page = asked.query(limit=limit, after=after, newest_first=newest, **wanted)
        _page(page, as_json=as_json)
        found = len(page)
    if not found:
        explain_nothing(asked, wanted)


def _page(page: AuditPage, *, as_json: bool) -> None:
    if as_json:
        print_json(page.to_dict())
        return
    _lines(page)
    number = f"{len(page):,} event{'' if len(page) == 1 else 's'}"
    more = f"; there may be more: --after {page.cursor}" if page.more else ""
    click.echo(f"{number}, {source_in_words(page.source)}{more}", err=True)


def _lines(events: Iterable[AuditEvent]) -> None:
    for at, event in enumerate(events):
        if at == 0:
            click.echo(head())
        click.echo(line(event))


@click.command()
@log_options
@json_option
@filters
@click.option("-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="How many events.")
@click.option("-f", "--follow", is_flag=True, help="Go on with those to come, until Ctrl-C.")
def tail(
    *, app: str | None, directory: Path | None, log: Path | None, as_json: bool, wanted: dict[str, Any], lines: int,
    follow: bool,
) -> None:  # fmt: skip
    """Print the newest events, the last one at the end. With --json it is one object an event."""
    asked = open_log(app, directory, log)
    # Asked first: where nothing is found, what is written from here on is yet to be told.
    end = asked.query(limit=1, newest_first=True).newest or START
    page = asked.query(limit=max(1, lines), newest_first=True, **wanted)
    events = list(reversed(page))[-lines:] if lines else []
    for event in events if as_json else ():
        print_json(as_dict(event))
    if not as_json:
        _lines(events)
        click.echo(f"{len(events):,} newest, {source_in_words(page.source)}", err=True)
    if not page:
        explain_nothing(asked, wanted)
    if follow:
        _follow(asked, page.newest or end, wanted, as_json=as_json, titled=bool(events))


def _follow(asked: Asking, after: str | None, wanted: dict[str, Any], *, as_json: bool, titled: bool = False) -> None:
    """Print events as they come, until Ctrl-C."""
    # An interrupt is noted, not raised: where Python drops exceptions, as in a finalizer, it would be lost.
    with Interrupts() as interrupts:
        for event in asked.follow(after=after, stop=lambda: interrupts.code > 0, **wanted):
            if as_json:
                print_json(as_dict(event))
            else:
                if not titled:
                    click.echo(head())
                titled = True
                click.echo(line(event))
            if interrupts.code:
                break
    click.get_current_context().exit(interrupts.code)


@click.command()
@log_options
@json_option
@click.argument("event", metavar="EVENT")
def show(*, app: str | None, directory: Path | None, log: Path | None, as_json: bool, event: str) -> None:
    """Show EVENT in full, by its id or the number of its line. Payloads kept by digest are read too."""
    asked = open_log(app, directory, log)
    found = asked.get(event)
    number = event.isascii() and event.isdecimal() and len(event) < 16
    if found is None and number:
        found = asked.line(int(event))
    if found is None:
        count = asked.stats().sealed if number else None
        where = f", and its sealed lines are 0 to {count - 1}" if count else ""
        raise Failure(f"the audit log has no event {event!r:.150}{where}", kind="EventNotFound")
    values = {**as_dict(found), **{name: asked.content(found, name) for name in found.content}}
    if as_json:
        print_json(values)
        return
    screen = console()
    for name, value in values.items():
        if value not in (None, "", {}):
            screen.print(f"{name:<12}{_shown(value)}", soft_wrap=True)


def _shown(value: Any) -> str:
    """A value on as many lines as it has; nothing in it moves the cursor."""
    if isinstance(value, str):
        return "\n            ".join(one_line(part, most=100_000) for part in value.split("\n"))
    return json_line(value)


@click.command()
@log_options
@json_option
def stats(*, app: str | None, directory: Path | None, log: Path | None, as_json: bool) -> None:
    """Count events by type, actor and status. Says also how many are not sealed yet."""
    asked = open_log(app, directory, log)
    found = asked.stats()
    if as_json:
        print_json({**found.to_dict(), "directory": str(asked.directory)})
        return
    for name, value in _facts(found, asked):
        click.echo(f"{name:<12}{value}")
    for title, counts in (("TYPE", found.types), ("ACTOR", found.actors), ("STATUS", found.statuses)):
        _counts(title, counts)


def _facts(found: AuditStats, asked: Asking) -> Iterable[tuple[str, str]]:
    yield "events", f"{found.events:,}, {source_in_words(found.source)}"
    if found.first is not None and found.last is not None:
        yield "from", when(found.first)
        yield "to", when(found.last)
    if found.sealed is not None:
        files = f"{found.segments:,} segment{'' if found.segments == 1 else 's'}"
        yield "sealed", f"{found.sealed:,} lines in {files}, {found.bytes:,} bytes"
        yield "directory", str(asked.directory)
    yield (
        "waiting",
        "unknown: Redis was not asked, or does not answer as it should (`poimen health`)"
        if found.waiting is None
        else f"{found.waiting:,} {'entry is' if found.waiting == 1 else 'entries are'} not sealed",
    )
    if found.dropped:
        yield "dropped", f"{found.dropped:,} entries, while no sealer was registered"
    if found.vanished:
        yield "vanished", f"{found.vanished:,} entries were removed by somebody before they were sealed"


def _counts(title: str, counts: dict[str, int]) -> None:
    if counts:
        click.echo(f"\n{title:<32}{'EVENTS':>12}")
    shown = len(counts) if len(counts) <= _SHOWN + 1 else _SHOWN  # "1 other" takes a line as well
    for name, number in list(counts.items())[:shown]:
        click.echo(f"{one_line(name):<32}{number:>12,}")
    if len(counts) > shown:
        click.echo(f"{f'and {len(counts) - shown} others':<32}{sum(list(counts.values())[shown:]):>12,}")


@click.command("rebuild-index")
@log_options
@json_option
def rebuild_index(*, app: str | None, directory: Path | None, log: Path | None, as_json: bool) -> None:
    """Make the index of the sealed log again, from its lines. Nothing is lost by throwing it away."""
    asked = open_log(app, directory, log)

    def progress(done: int, total: int) -> None:
        if not as_json:
            click.echo(f"{done:,} of {total:,} lines", err=True)

    with rare_collections():
        number = asked.rebuild_index(progress)
    if as_json:
        print_json({"lines": number, "directory": str(asked.directory)})
    else:
        click.echo(f"the index of {asked.directory} has {number:,} lines")
