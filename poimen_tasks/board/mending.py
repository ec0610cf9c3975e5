"""Makes a valid board of a broken one: the lines that are sound stay, the others are read as far as that goes.

A line of a table that the new table does not hold in full is kept below it in a code block, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from poimen_tasks.board.document import draw_row, draw_table, join
from poimen_tasks.board.markdown import BOM, Cell, Line, draw_title, fence_for, front_matter, is_delimiter, split_cells
from poimen_tasks.board.reading import NAMES, Reading, Table, is_header, is_rule, read
from poimen_tasks.board.task import BoardTask, TaskStatus, cell_fault, check_task_id, clean_cell, meant
from poimen_tasks.errors import InvalidId

__all__ = ["mend"]

_KEPT = "Lines that were in the table and could not stay there as they were:"
_KEPT_ALL = "What was here before and could not be read as a board:"
#: Columns that may hold a pipe that was not escaped, the likeliest first.
_FREE = ("scope", "verification", "branch")


@dataclass(slots=True)
class _Rows:
    """What was read from the tables.

    Attributes:
        tasks: by id.
        lines: of each task the line that holds it in full, empty where there is none, and the columns of its table.
        kept: lines that the new table does not hold in full.
        prose: lines that ran into the table from below.
        changes: what was done: task, what, words.
    """

    tasks: dict[str, BoardTask] = field(default_factory=dict)
    lines: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    changes: list[tuple[str | None, str, str]] = field(default_factory=list)

    def say(self, task: str | None, what: str, words: str) -> None:
        """Note a change."""
        self.changes.append((task, what, words))


def mend(found: Reading, tracked: Collection[str], *, title: str) -> tuple[str, list[tuple[str | None, str, str]]]:
    """A valid board, and what was done: task, what, words.

    Args:
        found: what was read of the text.
        tracked: ids whose states are known, so that theirs need not be guessed.
        title: for a board that has none.
    """
    rows = _Rows()
    tables = [found.table, *found.others] if found.table else []
    for table in tables:
        if table is not found.table:
            rows.say(None, "table_merged", f"line {table.header + 1}: the second table of tasks joined the first")
        _read_rows(found, table, rows, tracked)
    mended = _put_together(found, rows, title)
    if read(mended).problems:  # whatever else is in the text makes a board of it impossible
        rows.say(None, "text_set_aside", "the text could not be mended in place: it is kept below the board, as it was")
        mended = _set_aside(found, rows, title)
    return mended, rows.changes


# ------------------------------------------------------------------------------------------- reading
class _Read(NamedTuple):
    """A task as far as it could be read.

    Attributes:
        task: the task.
        whole: that is all that its line says.
        spelled: its status as the line has it.
    """

    task: BoardTask
    whole: bool
    spelled: str

    @property
    def sound(self) -> bool:
        """Whether the line may stay as it is."""
        return self.whole and TaskStatus.read(self.spelled) is not None


def _read_rows(found: Reading, table: Table, rows: _Rows, tracked: Collection[str]) -> None:
    kept, before = list[str](), len(rows.prose)
    for at in table.rows:
        text, cells = found.texts[at], found.cells(at)
        if is_delimiter(cells) or is_header(cells) or is_rule(text):
            rows.say(None, "row_dropped", f"line {at + 1}: it held no task, only what a table is made of")
        elif len(cells) == 1 and text.lstrip(" \t")[:1] != "|":
            rows.prose.append(text)
        elif (row := _row_in(table, cells)) is None:
            kept.append(text)
            rows.say(None, "row_kept", f"line {at + 1}: no task can be read from it; it is kept below the table")
        elif not _take(rows, row, (text, table.names), at):
            kept.append(text)
            guessed = meant(row.spelled) is None and row.task.id not in tracked
            if guessed and rows.tasks[row.task.id] is row.task:
                words = f"task {row.task.id}: its status could not be read; it is {row.task.status} now"
                rows.say(row.task.id, "status_guessed", words)
    if any(name and name not in NAMES for name in table.names) or (kept and not table.is_regular):
        rows.kept.append(found.texts[table.header])
    rows.kept += kept
    if len(rows.prose) > before:
        rows.say(None, "text_parted", "text that ran into the table stands behind an empty line now")


def _take(rows: _Rows, row: _Read, line: tuple[str, list[str]], at: int) -> bool:
    """Put a task into the new table. Returns whether its line is held in full."""
    task = row.task
    known = rows.tasks.get(task.id)
    if known is not None:
        rows.say(task.id, "row_merged", f"line {at + 1}: task {task.id} stands above already; the first one stays")
        return known == task and row.whole
    rows.tasks[task.id], rows.lines[task.id] = task, line if row.sound else ("", [])
    if not row.whole:
        said = f"line {at + 1}: task {task.id} was read as far as that goes, and its line is kept below the table"
        rows.say(task.id, "row_mended", said)
    elif not row.sound:
        rows.say(task.id, "status_spelled", f"task {task.id}: status {row.spelled[:60]!a} is written {task.status} now")
    return row.whole


def _row_in(table: Table, cells: Sequence[Cell]) -> _Read | None:
    values = _values(table, cells)
    try:
        task_id = check_task_id(values.get("id", ""))
    except InvalidId:
        return None
    spelled = values.get("status", "")
    status, texts = meant(spelled), {name: values.get(name, "") for name in _FREE}
    whole = len(cells) == len(table.names) and table.is_regular and status is not None
    whole = whole and not any(map(cell_fault, texts.values()))
    clean = {name: clean_cell(text) for name, text in texts.items()}
    return _Read(BoardTask(id=task_id, status=status or TaskStatus.PENDING, **clean), whole, spelled)


def _values(table: Table, cells: Sequence[Cell]) -> dict[str, str]:
    """The texts of a row by column; what is missing is missing."""
    texts = [cell.text for cell in cells]
    surplus = len(texts) - len(table.names)
    if surplus > 0:
        return _with_surplus(table.names, texts, surplus)
    return _named(table.names, texts)


def _with_surplus(names: Sequence[str], texts: list[str], surplus: int) -> dict[str, str]:
    """A row with too many cells: a pipe in it was not escaped. The first column that can have it, has it."""
    tries = []
    for name in _FREE:
        if name in names:
            at = names.index(name)
            joined = " | ".join(texts[at : at + surplus + 1])
            tries.append(_named(names, [*texts[:at], joined, *texts[at + surplus + 1 :]]))
    tries.append(_named(names, texts))
    return next((one for one in tries if TaskStatus.read(one.get("status", ""))), tries[0])


def _named(names: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in zip(names, texts, strict=False):
        if name in NAMES:
            found.setdefault(name, text)
    return found


# ------------------------------------------------------------------------------------------- writing
def _put_together(found: Reading, rows: _Rows, title: str) -> str:
    """The text with a title and a sound table; what stands around them is as it was."""
    table, end = found.table, next((line.end for line in found.lines if line.end), "\n")
    lines = [Line(text, line.end) for text, line in zip(found.texts, found.lines, strict=True)]
    if table is None:
        stop = front_matter(found.texts) if found.title_at is None else found.title_at + 1
        behind = lines[stop:]
        rows.say(None, "table_added", "a table of tasks was added: there was none")
    else:
        stop, behind = table.header, _without(lines, table.stop, found.others)
    head = _titled(found, rows, lines[:stop], title, end)
    if table is None and head[-1].text.strip():
        head.append(Line("", end))
    block = [Line(text, end) for text in _block(found, rows)]
    if behind and behind[0].text.strip():
        block.append(Line("", end))
    mark = BOM if found.lines and found.lines[0].text.startswith(BOM) else ""
    return mark + join([*head, *block, *behind])


def _without(lines: Sequence[Line], first: int, tables: Sequence[Table]) -> list[Line]:
    """The lines from an index on, but for those of these tables."""
    left = list[Line]()
    for table in tables:
        left += lines[first : table.header]
        first = table.stop
    return [*left, *lines[first:]]


def _titled(found: Reading, rows: _Rows, head: list[Line], title: str, end: str) -> list[Line]:
    at = found.title_at
    if at is None:
        rows.say(None, "title_added", f"a title was added, {title[:60]!a}: there was none above the table")
        top = front_matter(found.texts)
        return [*head[:top], Line(draw_title(title), end), Line("", end), *head[top:]]
    if not found.title or cell_fault(found.title):
        words = _words(found.title, title)
        rows.say(None, "title_changed", f"line {at + 1}: the title became {words[:60]!a}")
        head[at] = Line(draw_title(words), end)
    return head


def _words(found: str, title: str) -> str:
    """As much of a title as one may hold, or else another one."""
    return clean_cell(found) or title


def _block(found: Reading, rows: _Rows) -> Iterator[str]:
    """The lines of the new table, and below it what it does not hold."""
    yield from _table(found, rows)
    if rows.prose:
        yield from ("", *rows.prose)
    if rows.kept:
        fence = fence_for(rows.kept)
        yield from ("", _KEPT, "", f"{fence}text", *rows.kept, fence)


def _table(found: Reading, rows: _Rows) -> Iterator[str]:
    table = found.table
    names = list(dict.fromkeys([*(name for name in (table.names if table else ()) if name in NAMES), *NAMES]))
    header = _sound_header(found, table)
    if table and not header:
        rows.say(None, "header_redrawn", f"line {table.header + 1}: the header of the table was drawn anew")
    yield from header or draw_table((), names)
    for task in rows.tasks.values():
        line, of = rows.lines[task.id]
        yield line if line and of == names else draw_row(task, names)


def _sound_header(found: Reading, table: Table | None) -> list[str]:
    """Header and row of hyphens as they were, where they are sound."""
    if table is None or table.delimiter is None or not table.is_regular:
        return []
    if len(split_cells(found.texts[table.delimiter])) != len(table.names):
        return []
    return [found.texts[table.header], found.texts[table.delimiter]]


def _set_aside(found: Reading, rows: _Rows, title: str) -> str:
    """A board in the plain form, and below it the whole text in a code block."""
    fence = fence_for(found.texts)
    table = draw_table(tuple(rows.tasks.values()), tuple(NAMES))
    words = _words(found.title, title)
    lines = [draw_title(words), "", *table, "", _KEPT_ALL, "", f"{fence}text", *found.texts, fence]
    return "\n".join(lines) + "\n"
