"""Makes boards for tests: valid ones in every form that Markdown has for them, and broken ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from poimen_tasks import BoardTask, TaskStatus

NAMES = ("ID", "Scope", "Status", "Branch", "Verification")
HEADER = "| ID | Scope | Status | Branch | Verification |"
RULE = "|---|---|---|---|---|"
#: What is more likely than other characters to be taken for something else.
_TRICKY = "|\\`-:#>~<!*_ aT1é漢"
_AROUND = (
    "", "words", "## A heading", "> quoted", "- item", "| a | b |\n|---|---|\n| c | d |", "```\n# no title\n```",
    f"~~~\n{HEADER}\n{RULE}\n~~~", f"<!--\n{HEADER}\n{RULE}\n-->", f"    {HEADER}", "---", "a \\| b", "<br>",
)  # fmt: skip


def table(*rows: str, names: str = " ".join(NAMES)) -> str:
    """A table with these rows."""
    columns = names.split()
    return "\n".join((f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *rows))


def titled(*rows: str, names: str = " ".join(NAMES)) -> str:
    """The same as a board."""
    return f"# x\n{table(*rows, names=names)}"


#: As `board.task` has them.
_DIRECTIONS = "".join(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))


@cache  # Hypothesis reads the source of what filters, each time that a strategy is made
def cells(*, least: int = 0) -> st.SearchStrategy[str]:
    """Texts that a cell may hold."""
    plain = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters=_DIRECTIONS)
    letters = st.one_of(st.sampled_from(_TRICKY), plain)
    return st.text(letters, min_size=least, max_size=8).filter(
        lambda text: text == text.strip(" ") and len(text) >= least
    )


@cache
def ids() -> st.SearchStrategy[str]:
    """Task ids."""
    return cells(least=1).filter(str.isprintable)


@cache
def titles() -> st.SearchStrategy[str]:
    """Titles: texts that do not end as a heading is closed."""
    return cells(least=1).filter(lambda text: not text.endswith("#") or text.rstrip("#")[-1:] not in ("", " "))


@st.composite
def tasks(draw: Callable[..., Any], id: st.SearchStrategy[str] | None = None) -> BoardTask:  # noqa: A002 - as the field is called
    """Tasks."""
    texts = {name: draw(cells()) for name in ("scope", "branch", "verification")}
    return BoardTask(id=draw(ids() if id is None else id), status=draw(st.sampled_from(TaskStatus)), **texts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


@st.composite
def _rows(draw: Callable[..., Any], names: list[str], found: list[BoardTask]) -> list[str]:
    rows = []
    for task in found:
        status = str(task.status)
        status = draw(st.sampled_from((status, status.upper(), status.replace("_", " "), status.title())))
        values = {**{n: getattr(task, n) for n in ("id", "scope", "branch", "verification")}, "status": status}
        pads = [draw(st.sampled_from(("", " ", "  ", "\t"))) for _ in range(2)]
        texts = [_escape(values[name.lower()]) for name in names]
        # A backslash right before a pipe takes it into the cell.
        joined = "|".join(pads[0] + text + (pads[1] or (" " if text.endswith("\\") else "")) for text in texts)
        rows.append(f"|{joined}|{draw(st.sampled_from(('', ' ')))}")
    return rows


@st.composite
def boards(draw: Callable[..., Any], least: int = 0) -> str:
    """Valid boards, with whatever may stand around them."""
    names = draw(st.permutations(NAMES))
    found = draw(st.lists(tasks(), min_size=least, max_size=5, unique_by=lambda task: task.id))
    cased = [draw(st.sampled_from((name, name.lower(), name.upper()))) for name in names]
    rule = "|" + "|".join(draw(st.sampled_from(("-", "---", ":--", "--:", ":-:"))) for _ in names) + "|"
    around = st.lists(st.sampled_from(_AROUND), max_size=3)
    title = draw(titles())
    lines = [f"# {title}", "", *draw(around), ""]
    lines += [f"| {' | '.join(cased)} |", rule, *draw(_rows(list(names), found)), "", *draw(around)]
    end = draw(st.sampled_from(("\n", "\r\n", "\r")))
    text = "\n".join(lines).replace("\n", end)
    return draw(st.sampled_from(("", "\ufeff"))) + text + draw(st.sampled_from(("", end)))


@st.composite
def broken(draw: Callable[..., Any]) -> str:
    """Boards with something wrong: characters and lines that went, came twice, moved, or are others."""
    text = draw(boards())
    for _ in range(draw(st.integers(1, 4))):
        how = draw(st.sampled_from(("cut", "put", "line", "twice", "swap", "tail")))
        at = draw(st.integers(0, len(text)))
        if how == "cut":
            text = text[:at] + text[at + draw(st.integers(1, 10)) :]
        elif how == "put":
            text = text[:at] + draw(st.text("|\\`#-\n\x00 \r~<!>", min_size=1, max_size=4)) + text[at:]
        elif how == "tail":
            text = text[:at]
        else:
            text = _by_line(draw, text, how)
    return text


def _by_line(draw: Callable[..., Any], text: str, how: str) -> str:
    lines = text.split("\n")
    at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    if how == "line":
        del lines[at]
    elif how == "twice":
        lines.insert(other, lines[at])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)
