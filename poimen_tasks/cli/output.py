"""What commands print: tables for people, strict JSON for programs, one line for an error."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poimen_tasks.codec import jsonable
from poimen_tasks.errors import PoimenError

__all__ = [
    "APP", "INTERRUPTED", "MISUSED", "PIPE_GONE", "TIMED_OUT", "Failure", "console", "duration", "facts", "json_line",
    "json_option", "keep_stdout_clean", "limit_of", "one_line", "print_json", "screen_width", "share", "since",
    "state_text", "when", "wide", "with_app",
]  # fmt: skip

#: Where the context keeps the app.
APP = "poimen_tasks.app"
_JSON = "poimen_tasks.json"
_CLEAN = "poimen_tasks.clean_stdout"
#: Exit codes besides 0 and 1: the command was misused, the time that it was given ran out, Ctrl-C, nobody reads its
#: output.
MISUSED, TIMED_OUT, INTERRUPTED, PIPE_GONE = 2, 124, 130, 141
_WIDE = 110
_PIPED = 1_000
_ENDLESS = 1_000_000
_COLORS = {
    "completed": "green", "running": "cyan", "open": "cyan", "paused": "yellow", "stalled": "yellow", "failed": "red",
    "cancelled": "magenta",
}  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


class Failure(click.ClickException):
    """The command could not do what it was asked: one line, exit code 1; with `--json` an object on stdout too."""

    def __init__(self, message: str, *, kind: str = "Failure", exit_code: int = 1) -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code  # type: ignore[misc, unused-ignore]  # Click reads it from the instance
        context = click.get_current_context(silent=True)
        # Asked now: when it is shown, the context is gone.
        self._json = bool(context and context.meta.get(_JSON))
        self._clean = bool(context and context.meta.get(_CLEAN))

    @classmethod
    def of(cls, error: PoimenError, *, exit_code: int = 1) -> Failure:
        """From an error of ours, with what was noted on it."""
        notes = getattr(error, "__notes__", ())
        return cls(with_app("; ".join((str(error), *notes))), kind=type(error).__name__, exit_code=exit_code)

    def show(self, file: Any = None) -> None:
        """Print it."""
        if self._json:
            with contextlib.suppress(OSError):  # it may be stdout itself that takes nothing
                print_json({"error": {"type": self.kind, "message": self.message}}, err=self._clean)
            if self._clean:
                return
        click.secho("error: ", fg="red", bold=True, err=True, nl=False)
        click.echo(one_line(self.message, most=2000), file=file, err=file is None)


def _note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    ctx.meta[_JSON] = value
    return value


def json_option(command: F) -> F:
    """The option `as_json`; seen first, so that errors of the others know of it."""
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_note_json, help="Print strict JSON, for programs."
    )(command)


def limit_of(value: int | str) -> int | None:
    """The type of a limit: a whole number from 1, or `all` for as many as the fleet has, which is None.

    Raises:
        BadParameter: neither of them.
    """
    if isinstance(value, int) or (value.isascii() and value.isdecimal() and int(value)):
        return int(value)
    if value == "all":
        return None
    raise click.BadParameter(f"{value!r} is not allowed; use a whole number from 1, or all for the whole fleet")


def keep_stdout_clean() -> None:
    """Print what `--json` says about an error on stderr: stdout is for outcomes alone."""
    click.get_current_context().meta[_CLEAN] = True


def json_line(value: Any) -> str:
    """Strict JSON on one line, ASCII only so that any terminal and pipe takes it."""
    return json.dumps(jsonable(value), allow_nan=False)


def print_json(value: Any, *, err: bool = False) -> None:
    """One line of strict JSON."""
    click.echo(json_line(value), err=err)


def console(*, err: bool = False) -> Console:
    """Where tables go. A pipe has no width: there nothing is cut unless COLUMNS says so."""
    file = sys.stderr if err else sys.stdout
    piped = not file.isatty() and not os.environ.get("COLUMNS")
    kind = _Piped if piped else Console
    return kind(file=file, width=_PIPED if piped else None, highlight=False, markup=False, emoji=False)


class _Piped(Console):
    """Lines for programs: without the spaces that fill a column up to its end."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As Rich does it, with each line cut behind its last letter."""
        with self.capture() as printed:
            super().print(*objects, **options)
        self.file.write("\n".join(line.rstrip(" ") for line in printed.get().split("\n")))


def screen_width() -> int:
    """The columns that a line on stdout may take; so many in a pipe that nothing of ours is longer."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return _ENDLESS
    return shutil.get_terminal_size().columns


def wide(screen: Console) -> bool:
    """Whether there is room for the columns that a person can do without."""
    return screen.width >= _WIDE


def facts(rows: Iterable[tuple[str, str]], *, numbers: bool = True) -> Table:
    """Names and values below each other; values that are words, not numbers, begin below each other."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim")
    made.add_column(justify="right" if numbers else "left", overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def with_app(advice: str) -> str:
    """Advice with the app of this command in it, ready to be copied."""
    context = click.get_current_context(silent=True)
    app = context.meta.get(APP) if context else None
    return advice.replace("-A APP", f"-A {app}") if app else advice


def state_text(state: str) -> Text:
    """A state in its color."""
    return Text(state, style=_COLORS.get(state, ""))


def one_line(text: str, *, most: int = 300) -> str:
    """Text that cannot break a line or move a cursor: others wrote it."""
    clean = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return clean if len(clean) <= most else f"{clean[: most - 3]}..."


def duration(seconds: float | None) -> str:
    """Seconds as people say them: `0.25 s`, `42 s`, `3 min 5 s`, `2 h 4 min`, `3 d 2 h`."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.3g} s" if seconds else "0 s"
    whole = round(seconds)
    for size, unit, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def since(moment: datetime | None, now: datetime) -> str:
    """How long ago that was, in one unit."""
    if moment is None:
        return "-"
    seconds = max(0, round((now - moment).total_seconds()))
    for from_, size, unit in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min")):
        if seconds >= from_:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def when(moment: datetime | None, *, zone: bool = True) -> str:
    """A moment as people read it, `2025-11-29 08:30:00 UTC`; without the zone where a column's title says it."""
    if moment is None:
        return "-"
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}{' UTC' if zone else ''}"


def share(done: int, total: int) -> str:
    """Progress as numbers and percent; 100 % only when nothing is missing."""
    percent = 100 if done >= total else min(99, done * 100 // total)
    return f"{done:,}/{total:,} {percent:3d}%"
