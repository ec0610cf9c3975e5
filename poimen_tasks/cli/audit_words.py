"""What the commands that read the audit log share: which log, which events, and how an event looks on a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from poimen_tasks.audit import AuditEvent
from poimen_tasks.audit.asking import Asking
from poimen_tasks.audit.place import check_place
from poimen_tasks.cli.loading import app_options, load_without_tasks
from poimen_tasks.cli.output import one_line, screen_width, when
from poimen_tasks.errors import AuditUnavailable
from poimen_tasks.settings import Settings

__all__ = ["LOG", "as_dict", "filters", "head", "line", "log_options", "open_log", "source_in_words"]

#: What names the log of a command that was given its directory.
LOG = "give --log the directory of an audit log"
_AGO = re.compile(r"(\d{1,6})(s|m|h|d)").fullmatch
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SOURCES = {
    "index": "from the sealed log, by its index",
    "stream": "from the stream in Redis: what is not sealed yet",
    "index+stream": "from the sealed log, by its index, and from the stream: what is not sealed yet",
}

F = TypeVar("F", bound=Callable[..., Any])


def moment_of(value: str | datetime) -> datetime:
    """The type of a moment: ISO 8601, UTC where it says no other zone; or how long ago, as 90s, 15m, 2h, 3d.

    Raises:
        BadParameter: neither of them.
    """
    if isinstance(value, datetime):
        return value
    if match := _AGO(value):
        try:
            return datetime.now(UTC) - timedelta(seconds=int(match[1]) * _UNITS[match[2]])
        except OverflowError:
            raise click.BadParameter(f"{value!r} is before the year 1") from None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        text = f"{value!r:.60} is no moment; use ISO 8601, as 2025-11-29T08:30, or how long ago, as 15m, 2h, 3d"
        raise click.BadParameter(text) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def log_options(command: F) -> F:
    """The options that say which log is read."""
    log = click.option(
        "--log", "log", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
        help="Read the sealed log in this directory alone, without an app and without Redis.",
    )  # fmt: skip
    return app_options(log(command))


def open_log(app: str | None, directory: Path | None, log: Path | None) -> Asking:
    """The log to ask. Without an app, the settings are those of the environment.

    Raises:
        AuditUnavailable: there is no log in the directory that was given.
        Failure: the app cannot be found.
    """
    if log is not None:
        check_place(log, advice=LOG)
        if not (log / "checkpoint").is_file():
            raise AuditUnavailable(f"{log}: there is no audit log in this directory")
        alone = Settings(audit_dir=log)
        return Asking(lambda: alone, None)
    return load_without_tasks(app, directory).audit


def filters(command: F) -> F:
    """The options that say which events are wanted; they become one argument, `wanted`."""
    options = (
        click.option("--type", "type_", multiple=True, metavar="TYPE", help="Of this type; may be repeated."),
        click.option("--workflow", metavar="ID", help="About this workflow."),
        click.option("--task", metavar="ID", help="About this task id: an item's own, or else the item's id."),
        click.option("--actor", multiple=True, metavar="NAME", help="By whom; may be repeated."),
        click.option("--status", multiple=True, metavar="NAME", help="How it went; may be repeated."),
        click.option(
            "--since", type=moment_of, metavar="MOMENT", help="Later than this: ISO 8601 (UTC), or how long ago, as 2h."
        ),
        click.option("--until", type=moment_of, metavar="MOMENT", help="Earlier than this."),
        click.option("--text", metavar="TEXT", help="This text stands in it, whatever the case."),
    )

    def gather(**arguments: Any) -> Any:
        names = ("type_", "workflow", "task", "actor", "status", "since", "until", "text")
        given = {name.rstrip("_"): arguments.pop(name) for name in names}
        # An empty text is a filter that was given and says nothing: it is refused, not passed over.
        wanted = {name: value for name, value in given.items() if value is not None and value != ()}
        lists = {name: list(value) for name, value in wanted.items() if isinstance(value, tuple)}
        return command(wanted={**wanted, **lists}, **arguments)

    gather.__name__, gather.__doc__ = command.__name__, command.__doc__
    gather.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(options):
        gather = option(gather)
    return gather  # type: ignore[return-value]


_NAMES = ("LINE", "TIME (UTC)", "TYPE", "STATUS", "WORKFLOW/TASK", "ACTOR", "WHAT")
_WIDTHS = (9, 19, 24, 9, 28, 12)
#: On a narrow terminal: who and about what are left out, as their words mostly say it too; `audit show` has all.
_NARROW = (7, 14, 18, 9, 0, 0)
#: On one of 80 columns: the type too, since the words say what was done, and of which batch.
_SMALL = (7, 14, 0, 9, 0, 0)
#: From here on there is room for all columns and for some words.
_WIDE = 150
#: From here on there is room for the type beside some words.
_FAIR = 100


def head() -> str:
    """The names of the columns."""
    return _columns(*_NAMES)


def line(event: AuditEvent) -> str:
    """An event as people read it; the number of its line in the sealed log, or `-`."""
    about = "/".join(part for part in (event.workflow, event.task) if part) or "-"
    words = [event.action, *([event.error] if event.error else []), *([event.reasoning] if event.reasoning else [])]
    number = "-" if event.sequence is None else str(event.sequence)
    return _columns(
        number,
        when(event.timestamp, zone=False),
        event.event_type,
        event.status,
        about,
        event.actor or "-",
        " | ".join(words),
    )


def _columns(*texts: str) -> str:
    """A line; on a terminal it is no longer than that is wide."""
    *names, words = (one_line(text, most=400) for text in texts)
    width = screen_width()
    if width < _WIDE:
        names[1] = names[1][5:19] if names[1][:1].isdecimal() else names[1]  # without the year
    widths = next(some for below, some in ((_FAIR, _SMALL), (_WIDE, _NARROW), (width + 1, _WIDTHS)) if width < below)
    if width < _WIDE:
        names = [_cut(text, room) for text, room in zip(names, widths, strict=True)]
    first, *rest = (text.ljust(room) for text, room in zip(names, widths, strict=True) if room)
    line = "  ".join((first.strip().rjust(widths[0]), *rest, words)).rstrip()
    return _cut(line, width)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(0, room - 3)]}..."[:room]


def as_dict(event: AuditEvent) -> dict[str, Any]:
    """An event as programs read it; `sequence` is the number of its line, null while it is not sealed."""
    return {**event.to_dict(), "sequence": event.sequence}


def source_in_words(source: str) -> str:
    """Where an answer comes from."""
    return _SOURCES[source]
