"""What the commands about boards and trackers share: reading a board, a status, and showing tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from poimen_tasks.board import Board, BoardTask, TaskState, TaskStatus, parse
from poimen_tasks.cli.output import Failure, one_line
from poimen_tasks.cli.tables import table
from poimen_tasks.errors import BoardInvalid

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["FILE", "read_board", "read_text", "status_of", "task_table"]

#: The type of a board's file; `-` is standard input.
FILE = click.Path(dir_okay=False, path_type=Path)


def read_text(file: Path) -> str:
    """The text of a file, or of stdin, with its line endings.

    Raises:
        Failure: it cannot be read, or is no UTF-8; the line is named.
    """
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except (OSError, ValueError) as error:
        raise Failure(f"{file}: {getattr(error, 'strerror', None) or error}", kind="OSError") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Failure(f"{file}:{line}: byte {data[error.start]:#04x} is no UTF-8", kind="BoardInvalid") from error


def read_board(file: Path) -> Board:
    """The board in a file, or on stdin.

    Raises:
        Failure: it cannot be read, or is not valid.
    """
    try:
        return parse(read_text(file))
    except BoardInvalid as error:
        first, more = error.problems[0], len(error.problems) - 1
        others = f" (and {more:,} more; `poimen board check` has all)" if more else ""
        raise Failure(f"{file}:{first.line}: {first.message}{others}", kind="BoardInvalid") from error


def status_of(value: TaskStatus | str) -> TaskStatus:
    """The type of a status.

    Raises:
        BadParameter: it is none.
    """
    found = TaskStatus.read(value)
    if found is None:
        raise click.BadParameter(f"{value!r:.60} is not known; use one of {', '.join(TaskStatus)}")
    return found


def task_table(tasks: Iterable[BoardTask | TaskState]) -> Table:
    """Tasks, a line each."""
    made = table("id", "status", "branch", "scope", "verification", cut=("scope", "verification"))
    for task in tasks:
        texts = (task.id, str(task.status), task.branch, task.scope, task.verification)
        made.add_row(*(one_line(text) or "-" for text in texts))
    return made
