"""Finds the board in a text: title, table, columns, rows, and everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from poimen_tasks.board.markdown import (
    BOM,
    Cell,
    Line,
    heading,
    is_delimiter,
    is_row,
    open_lines,
    split_cells,
    split_lines,
)
from poimen_tasks.board.task import COLUMNS, STATUS_RULE, TaskStatus, cell_fault, check_task_id, meant
from poimen_tasks.errors import InvalidId
from poimen_tasks.model import BoardProblem

__all__ = ["NAMES", "Reading", "Table", "read"]

#: The columns as they are compared, and how they are written.
NAMES = {name.lower(): name for name in COLUMNS}
_ALL = ", ".join(COLUMNS)
_SEPARATOR = f"a row of hyphens, |{'---|' * len(COLUMNS)}"


@dataclass(slots=True)
class Table:
    """A table, or what was meant to be one.

    Attributes:
        header: the index of its header's line.
        names: the header's cells, in lower case.
        delimiter: the index of the row behind the header, None where it is not there.
        rows: the indexes of its rows.
    """

    header: int
    names: list[str]
    delimiter: int | None
    rows: range = range(0)

    @property
    def stop(self) -> int:
        """The index behind its last line."""
        return self.rows.stop

    @property
    def likeness(self) -> int:
        """How many of the board's columns it has."""
        return len(NAMES.keys() & set(self.names))

    @property
    def is_regular(self) -> bool:
        """Whether it has exactly the columns of a board, in whatever order."""
        return sorted(self.names) == sorted(NAMES)


@dataclass(slots=True)
class Reading:
    """What was found.

    Attributes:
        lines: the whole text.
        texts: the lines' texts, the first without a byte order mark.
        title_at: the index of the title's line; None where there is none above the table.
        title: its words.
        table: the board's table, if there is one.
        others: further tables with all columns of a board.
        problems: what is wrong, by line.
    """

    lines: list[Line]
    texts: list[str]
    title_at: int | None = None
    title: str = ""
    table: Table | None = None
    others: list[Table] = field(default_factory=list)
    problems: list[BoardProblem] = field(default_factory=list)

    def cells(self, at: int) -> list[Cell]:
        """The cells of the line of this index: they take many times its room, so they are not kept."""
        return split_cells(self.texts[at])

    def say(self, at: int, fault: str, message: str) -> None:
        """Note a problem with the line of this index."""
        self.problems.append(BoardProblem(at + 1, fault, message))


def read(text: str) -> Reading:
    """Read a text."""
    lines = split_lines(text)
    texts = [line.text for line in lines]
    if texts:
        texts[0] = texts[0].removeprefix(BOM)
    found = Reading(lines, texts)
    opened = open_lines(texts)
    _choose(found, _tables(texts, opened))
    _read_title(found, opened)
    if found.table is None:
        found.say(max(0, len(lines) - 1), "table_missing", f"no table of tasks; expected one with the columns {_ALL}")
    else:
        _read_table(found, found.table)
    for other in found.others:
        first = 1 if found.table is None else found.table.header + 1
        found.say(other.header, "table_second", f"a second table of tasks; a board has one, here that of line {first}")
    found.problems.sort(key=lambda problem: problem.line)
    return found


# ------------------------------------------------------------------------------------------- finding
def _tables(texts: Sequence[str], opened: Sequence[bool]) -> Iterator[Table]:
    """Every table, and what looks like a board's header though no table follows."""
    at = 0
    while at < len(texts):
        table = _table_at(texts, opened, at) if opened[at] and "|" in texts[at] and is_row(texts[at]) else None
        if table is None:
            at += 1
            continue
        yield table
        at = max(table.stop, at + 1)


def _table_at(texts: Sequence[str], opened: Sequence[bool], at: int) -> Table | None:
    names = [cell.text.lower() for cell in split_cells(texts[at])]
    table = Table(at, names, None)
    below = at + 1
    if below < len(texts) and opened[below] and "-" in texts[below] and is_row(texts[below]):
        cells = split_cells(texts[below])
        if is_delimiter(cells) and (len(cells) == len(names) or table.likeness > 1):
            table.delimiter = below
    if table.delimiter is None and table.likeness < 3:
        return None
    stop = below if table.delimiter is None else below + 1
    table.rows = range(stop, _end(texts, opened, stop))
    return table


def _end(texts: Sequence[str], opened: Sequence[bool], at: int) -> int:
    """The index behind a table's last row."""
    while at < len(texts) and opened[at] and is_row(texts[at]):
        at += 1
    return at


def _choose(found: Reading, tables: Iterator[Table]) -> None:
    """The board's table is the first with all of its columns, or else the one that is most like it."""
    best: Table | None = None
    whole = []
    for table in tables:
        if table.likeness == len(COLUMNS):
            whole.append(table)
        elif table.likeness > 1 and (best is None or table.likeness > best.likeness):
            best = table
    found.table, found.others = (whole[0], whole[1:]) if whole else (best, [])


def _read_title(found: Reading, opened: Sequence[bool]) -> None:
    stop = len(found.texts) if found.table is None else found.table.header
    for at in range(len(found.texts)):
        words = heading(found.texts[at]) if opened[at] else None
        if words is None:
            continue
        if at > stop:
            found.say(0, "title_missing", f"the title stands below the table, in line {at + 1}; expected above it")
            return
        found.title_at, found.title = at, words
        if not words:
            found.say(at, "title_empty", "the title is empty; expected `# ` and some words")
        elif fault := cell_fault(words):
            found.say(at, "control_character", f"the title {fault}")
        return
    found.say(0, "title_missing", "no title; expected a line `# ` and some words above the table")


# ------------------------------------------------------------------------------------------- the table
def _read_table(found: Reading, table: Table) -> None:
    _check_delimiter(found, table)
    _check_columns(found, table)
    if not table.is_regular:
        return  # which cell is what, is not sure
    lines: dict[str, int] = {}
    for at in table.rows:
        if at == table.header + 1 and table.delimiter is None and is_rule(found.texts[at]):
            continue  # it was told as the broken row
        for fault, message in _row_faults(table, found.cells(at), lines, at):
            found.say(at, fault, message)


def _check_delimiter(found: Reading, table: Table) -> None:
    if table.delimiter is None:
        got = found.texts[table.header + 1] if table.header + 1 < len(found.texts) else ""
        shown = f"{got.strip()[:60]!r}" if got.strip() else "an empty line"
        below = min(table.header + 1, len(found.texts) - 1)
        found.say(below, "separator_broken", f"expected {_SEPARATOR} below the header, got {shown}")
    elif (count := len(split_cells(found.texts[table.delimiter]))) != len(table.names):
        text = f"the row of hyphens has {count} cells, the header {len(table.names)}; expected as many"
        found.say(table.delimiter, "separator_broken", text)


def _check_columns(found: Reading, table: Table) -> None:
    seen: set[str] = set()
    for name in table.names:
        if name in NAMES and name in seen:
            found.say(
                table.header, "column_duplicate", f"column {NAMES[name]} stands twice; expected {_ALL}, once each"
            )
        elif name not in NAMES:
            found.say(table.header, "column_unknown", f"column {name[:60]!a} is not known; expected {_ALL}")
        seen.add(name)
    for name, written in NAMES.items():
        if name not in seen:
            found.say(table.header, "column_missing", f"column {written} is missing; expected {_ALL}")


def is_rule(text: str) -> bool:
    """Whether a line is nothing but what a row of hyphens is made of, or is mistaken for."""
    return not text.strip(" \t|:-=+_\u2013\u2014")


def is_header(cells: Sequence[Cell]) -> bool:
    """Whether cells are the names of the columns."""
    return cells[0].text.lower() in NAMES and sorted(cell.text.lower() for cell in cells) == sorted(NAMES)


def _row_faults(table: Table, cells: list[Cell], lines: dict[str, int], at: int) -> Iterator[tuple[str, str]]:
    if is_delimiter(cells) or is_header(cells):
        yield "row_repeated", "the header, or the row of hyphens, stands here once more; expected a task"
        return
    if len(cells) != len(table.names):
        yield "cell_count", _count_in_words(cells, len(table.names))
        return
    values = {name: cell.text for name, cell in zip(table.names, cells, strict=True)}
    yield from _id_faults(values["id"], lines, at)
    status = values["status"]
    if TaskStatus.read(status) is None:
        likely = meant(status)
        hint = f"; did you mean {likely}?" if likely else ""
        yield "status_unknown", f"status {status[:60]!a} is not known{hint} Expected {STATUS_RULE}"
    for name in ("scope", "branch", "verification"):
        if fault := cell_fault(values[name]):
            yield "control_character" if "U+" in fault else "too_long", f"{NAMES[name]} {fault}"


def _id_faults(value: str, lines: dict[str, int], at: int) -> Iterator[tuple[str, str]]:
    if not value:
        yield "id_empty", "the ID is empty; expected 1-256 printable characters"
        return
    try:
        check_task_id(value)
    except InvalidId as error:
        yield "id_invalid", str(error)
        return
    if value in lines:
        yield "id_duplicate", f"ID {value[:60]!a} stands in line {lines[value] + 1} already; expected each once"
    lines.setdefault(value, at)


def _count_in_words(cells: Sequence[Cell], count: int) -> str:
    said = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}; expected {count}, as the header has"
    if len(cells) == 1:
        return f"{said}, or an empty line between the table and what follows"
    if len(cells) > count:
        return f"{said}: a | that belongs to a cell is written \\|, in `code` too"
    return said
