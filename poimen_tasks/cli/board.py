"""`poimen board`: look whether a task board is valid, show it, mend it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click

from poimen_tasks import board as boards
from poimen_tasks.board import Board, StateTracker, TaskStatus
from poimen_tasks.cli.board_words import FILE, read_board, read_text, status_of, task_table
from poimen_tasks.cli.files import destination
from poimen_tasks.cli.loading import app_options, load_without_tasks
from poimen_tasks.cli.output import Failure, console, json_option, one_line, print_json

__all__ = ["board"]

_SHOWN = 100


@click.group()
def board() -> None:
    """Check, show and mend task boards. They are Markdown files with a table of tasks."""


@board.command()
@json_option
@click.argument("file", metavar="FILE|-", type=FILE)
def check(*, as_json: bool, file: Path) -> None:
    """Tell what is wrong with the board in FILE, or on stdin, by line. Exit code 1 when anything is.

    A board has a title (`# Words`) and below it a table with the columns ID, Scope, Status, Branch and Verification.
    """
    problems = boards.validate(read_text(file))
    if as_json:
        print_json({"valid": not problems, "problems": problems})
    elif not problems:
        click.echo(one_line(f"{file} is valid"))
    for problem in () if as_json else problems[:_SHOWN]:
        click.echo(one_line(f"{file}:{problem.line}: {problem.message}"))
    if problems and not as_json and len(problems) > _SHOWN:
        click.echo(f"and {len(problems) - _SHOWN:,} more")
    if problems:
        sys.exit(1)


@board.command()
@json_option
@click.argument("file", metavar="FILE|-", type=FILE)
@click.option("--status", type=status_of, metavar="S", help="Only tasks in this status.")
def show(*, as_json: bool, file: Path, status: TaskStatus | None) -> None:
    """Show the tasks of the board in FILE, or on stdin."""
    found = read_board(file)
    if status is not None:
        found = Board(title=found.title, tasks=tuple(task for task in found.tasks if task.status is status))
    if as_json:
        print_json(found)
        return
    screen = console()
    screen.print(one_line(found.title))
    if found.tasks:
        screen.print(task_table(found.tasks))
    else:
        click.echo("no tasks")


@board.command()
@app_options
@json_option
@click.argument("file", metavar="FILE|-", type=FILE)
@click.option("--tracker", metavar="NAME", help="Bring the board to what this tracker has.")
@click.option("--title", metavar="WORDS", default="Task board", show_default=True, help="For a board without one.")
@click.option("--write", is_flag=True, help="Write FILE anew, if anything changed; else the board goes to stdout.")
def heal(
    *, app: str | None, directory: Path | None, as_json: bool, file: Path, tracker: str | None, title: str, write: bool
) -> None:
    """Make a board valid, and bring it to what is tracked.

    It is read from FILE or stdin. No row that can be read is lost.

    What was done is told on stderr. The app is optional: without one, the settings are those of the environment.
    """
    if write and (str(file) == "-" or (file.exists() and not file.is_file())):
        raise click.UsageError("--write needs a FILE to write to; what comes on stdin or from a pipe goes to stdout")
    text = read_text(file)
    healed = boards.heal(text, _tracked(app, directory, tracker), title=title)
    if write and healed.changed:
        _write(file, text, healed.text)
    if as_json:
        print_json({**healed.to_dict(), "written": write and healed.changed})
        return
    for change in healed.changes[:_SHOWN]:
        click.echo(one_line(str(change)), err=True)
    if len(healed.changes) > _SHOWN:
        click.echo(f"and {len(healed.changes) - _SHOWN:,} more", err=True)
    if not write:
        sys.stdout.buffer.write(healed.text.encode())
        sys.stdout.buffer.flush()
    else:
        click.echo(one_line(f"{file} {'was written anew' if healed.changed else 'is as it should be'}"), err=True)


def _write(file: Path, before: str, text: str) -> None:
    """Put the mended board in the place of the old one, with its rights.

    Raises:
        Failure: it cannot be written, or somebody else wrote it meanwhile.
    """
    with destination(file) as out:
        os.fchmod(out.fileno(), stat.S_IMODE(file.stat().st_mode))
        out.write(text.encode())
        if read_text(file) != before:
            raise Failure(f"{file} was changed by somebody else meanwhile; run it again", kind="BoardChanged")


def _tracked(app: str | None, directory: Path | None, name: str | None) -> StateTracker | None:
    """The tracker; without its name neither an app nor a server is looked for.

    Raises:
        Failure: there is no such tracker.
    """
    if name is None:
        return None
    tracker = load_without_tasks(app, directory).tracker(name)
    if not tracker.stats().total:
        raise Failure(f"tracker {name!r} tracks no task; `poimen tracker list` has those that do", kind="NoTracker")
    return tracker
