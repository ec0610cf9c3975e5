"""Boards as values: parsed from a text, changed, and written back so that only what changed differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from poimen_tasks._checks import expected
from poimen_tasks.board.markdown import Cell, Line, draw_title, escape, is_framed, split_cells
from poimen_tasks.board.reading import NAMES, Reading, read
from poimen_tasks.board.task import COLUMNS, BoardTask, check_cell
from poimen_tasks.errors import BoardInvalid, InvalidArgument
from poimen_tasks.model import BoardProblem

__all__ = ["Board", "check_title", "draw_row", "draw_table", "parse", "render", "validate"]


@dataclass(frozen=True, slots=True)
class _Source:
    """The text that a board was parsed from."""

    lines: Sequence[Line]
    title_at: int
    title: str
    names: Sequence[str]
    first: int
    stop: int
    rows: dict[str, tuple[int, BoardTask]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A task board.

    One that was parsed remembers its text: `render` changes only the rows, and in them the cells, that changed.
    One that you make is written in a plain form.

    Attributes:
        title: its title.
        tasks: its tasks, in the order of the rows; `dataclasses.replace(board, tasks=…)` makes another board of them.

    Raises:
        InvalidArgument: the title is empty or no text on one line, a task is none, or two have one id.
    """

    title: str
    tasks: tuple[BoardTask, ...] = ()
    _source: _Source | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check title and tasks."""
        check_title(self.title)
        object.__setattr__(self, "tasks", tuple(self.tasks))
        ids = set()
        for task in self.tasks:
            if not isinstance(task, BoardTask):
                raise expected("tasks", "values of BoardTask", task)
            if task.id in ids:
                raise InvalidArgument(f"tasks: id {task.id[:60]!a} stands twice; expected each once")
            ids.add(task.id)

    def get(self, task_id: str) -> BoardTask | None:
        """The task with an id; None for an unknown one."""
        return next((task for task in self.tasks if task.id == task_id), None)

    def with_task(self, task: BoardTask) -> Board:
        """The board with this task in the place of the one with its id, or behind all others."""
        tasks = [task if one.id == task.id else one for one in self.tasks]
        if self.get(task.id) is None:
            tasks.append(task)
        return replace(self, tasks=tuple(tasks))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"title": self.title, "tasks": [task.to_dict() for task in self.tasks]}


def check_title(title: object) -> None:
    """Refuse what is no title.

    Raises:
        InvalidArgument: it is empty, or no text on one line.
    """
    if not check_cell("title", title):
        raise expected("title", "some words", title)


def _check_text(text: object) -> str:
    if not isinstance(text, str):
        raise expected("board", "the text of a Markdown file, as a str", text)
    return text


def validate(text: str) -> list[BoardProblem]:
    """What is wrong with a task board, by line; nothing when it is valid.

    A board is Markdown with a title (`# Words`) and, below it, one table with the columns ID, Scope, Status, Branch and
    Verification, in any order and case. Other text, other tables, and whatever stands in fenced code blocks, comments
    or the front matter are left alone. docs/board.md has every rule.

    Raises:
        InvalidArgument: it is no `str`.
    """
    return read(_check_text(text)).problems


def parse(text: str) -> Board:
    """Read a valid board.

    Raises:
        BoardInvalid: it is not valid; names the first problem, has all of them, and says how many more there are.
        InvalidArgument: it is no `str`.
    """
    found = read(_check_text(text))
    if found.problems:
        first, more = found.problems[0], len(found.problems) - 1
        others = f" (and {more:,} more problem{'' if more == 1 else 's'})" if more else ""
        raise BoardInvalid(f"{first}{others}", problems=found.problems)
    return board_of(found)


def board_of(found: Reading) -> Board:
    """The board of a reading without problems."""
    table, title_at = found.table, found.title_at
    assert table is not None  # noqa: S101 - else there is a problem
    assert title_at is not None  # noqa: S101
    rows = {}
    for at in table.rows:
        task = task_of(table.names, found.cells(at))
        rows[task.id] = (at, task)
    source = _Source(found.lines, title_at, found.title, tuple(table.names), table.header + 2, table.stop, rows)
    return Board(title=found.title, tasks=tuple(task for _, task in rows.values()), _source=source)


def task_of(names: Sequence[str], cells: Sequence[Cell]) -> BoardTask:
    """The task of a row that has no faults."""
    values: dict[str, Any] = {name: cell.text for name, cell in zip(names, cells, strict=True)}
    return BoardTask(**values)


def render(board: Board) -> str:
    """Write a board as Markdown; `render(parse(text)) == text` for every valid board."""
    source = board._source  # noqa: SLF001 - of this module
    if source is None:
        table = "\n".join(draw_table(board.tasks, COLUMNS))
        return f"{draw_title(board.title)}\n\n{table}\n"
    head = list(source.lines[: source.first])
    if board.title != source.title:
        line = head[source.title_at]
        mark = line.text[: len(line.text) - len(line.text.lstrip("\ufeff"))]
        head[source.title_at] = Line(f"{mark}{draw_title(board.title)}", line.end)
    return join([*head, *_rows(board.tasks, source), *source.lines[source.stop :]])


def join(lines: Sequence[Line]) -> str:
    """The text of lines; one that is not the last any more gets an ending."""
    end, last = next((line.end for line in lines if line.end), "\n"), len(lines) - 1
    pieces = list[str]()
    for at, line in enumerate(lines):
        ending = line.end or (end if at < last else "")
        if ending == "\n" and not line.text and pieces and pieces[-1][-1:] == "\r":
            ending = "\n\n"  # the return before it takes one, and so would the empty line be gone
        pieces.append(line.text + ending)
    return "".join(pieces)


def _rows(tasks: Sequence[BoardTask], source: _Source) -> Iterator[Line]:
    end = source.lines[source.first - 2].end
    for task in tasks:
        at, was = source.rows.get(task.id, (0, None))
        if was is None:
            yield Line(draw_row(task, source.names), end)
        elif was == task:
            yield source.lines[at]
        else:
            yield Line(_changed(source.lines[at].text, was, task, source.names), source.lines[at].end)


def _changed(text: str, was: BoardTask, task: BoardTask, names: Sequence[str]) -> str:
    """A row in which only the cells that differ are written anew, as wide as they were where that is enough."""
    if not is_framed(text):
        return draw_row(task, names)
    pieces, behind = list[str](), 0
    for name, cell in zip(names, split_cells(text), strict=True):
        if getattr(was, name) == getattr(task, name):
            continue
        new, bar = escape(str(getattr(task, name))), text.index("|", cell.stop)
        # A backslash right before the pipe would take it into the cell.
        room = max(bar - cell.start, len(new) + (1 if text[cell.stop : bar] or new[-1:] == "\\" else 0))
        pieces += (text[behind : cell.start], new.ljust(room))
        behind = bar
    return "".join((*pieces, text[behind:]))


def draw_row(task: BoardTask, names: Sequence[str]) -> str:
    """A row of a table with these columns, in any case."""
    return f"| {' | '.join(escape(str(getattr(task, name.lower()))) for name in names)} |"


def draw_table(tasks: Sequence[BoardTask], names: Sequence[str]) -> list[str]:
    """The lines of a table with these columns."""
    header = f"| {' | '.join(NAMES[name.lower()] for name in names)} |"
    return [header, f"|{'---|' * len(names)}", *(draw_row(task, names) for task in tasks)]
