"""As much of GitHub Flavored Markdown as tells a board's title and tables from everything else.

Tables are those of the specification's section 4.10 (https://github.github.com/gfm/#tables-extension-): a pipe behind
a backslash belongs to its cell, "including inside other inline spans", and any other one ends the cell, in a code span
too; spaces around a cell do not count; a table ends at an empty line or where another block begins. Everything here
takes one look at each character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "BOM",
    "Cell",
    "Line",
    "draw_title",
    "escape",
    "fence_for",
    "front_matter",
    "heading",
    "is_delimiter",
    "is_framed",
    "is_row",
    "open_lines",
    "split_cells",
    "split_lines",
]

BOM = "\ufeff"
_BLANKS = " \t"
#: Line endings are those of CommonMark: Python's own `splitlines` knows more.
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_BAR = re.compile(r"(?<!\\)\|")
_DELIMITER = re.compile(r":?-+:?")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})")
_RUN = re.compile("`+")
#: What begins another block, and so ends a table: heading, quotation, list, HTML.
_BLOCK = re.compile(r"#{1,6}(?:[ \t]|\Z)|>|[-+*](?:[ \t]|\Z)|\d{1,9}[.)](?:[ \t]|\Z)|</?[A-Za-z]|<!--")


class Line(NamedTuple):
    """A line: its text, and its ending, which only the last may lack."""

    text: str
    end: str


class Cell(NamedTuple):
    """A cell: where its content begins and ends in its line, and the content with its pipes as they are meant."""

    start: int
    stop: int
    text: str


def split_lines(text: str) -> list[Line]:
    """The lines of a text; joined again they are the text."""
    lines = []
    for found in _LINE.finditer(text):
        whole = found[0]
        if whole:
            body = whole.rstrip("\r\n")
            lines.append(Line(body, whole[len(body) :]))
    return lines


def open_lines(texts: Sequence[str]) -> list[bool]:
    """For each line whether it is Markdown to be read: not in a fenced code block, a comment or the front matter."""
    opened = [True] * len(texts)
    at = front_matter(texts)
    opened[:at] = [False] * at
    while at < len(texts):
        text, begun = texts[at], at
        fence = _FENCE.match(text)
        if fence:
            at += 1
            while at < len(texts) and not _closes(texts[at], fence[1]):
                at += 1
        elif text.lstrip(" ").startswith("<!--") and len(text) - len(text.lstrip(" ")) < 4:
            while at < len(texts) and "-->" not in texts[at]:
                at += 1
        else:
            at += 1
            continue
        at += 1
        opened[begun:at] = [False] * (min(at, len(texts)) - begun)
    return opened


def front_matter(texts: Sequence[str]) -> int:
    """How many lines at the top are YAML between two lines of hyphens, as many tools put it there."""
    if texts and texts[0].rstrip(_BLANKS) == "---":
        for at in range(1, len(texts)):
            if texts[at].rstrip(_BLANKS) in ("---", "..."):
                return at + 1
    return 0


def _closes(text: str, fence: str) -> bool:
    run = text.strip(_BLANKS)
    return len(run) >= len(fence) and not run.strip(fence[0]) and text[:4] != "    " and text[:1] != "\t"


def heading(text: str) -> str | None:
    """The words of a heading of the first level, `# words`; None where the line is none."""
    inner = text.lstrip(" ")
    if len(text) - len(inner) > 3 or not (inner[:1] == "#" and inner[1:2] in ("", *_BLANKS)):
        return None
    words = inner[1:].strip(_BLANKS)
    bare = words.rstrip("#")  # a closing sequence, if a blank stands before it
    return bare.rstrip(_BLANKS) if not bare or bare[-1] in _BLANKS else words


def draw_title(words: str) -> str:
    """The heading of the first level that has these words; some that would end it are closed once more."""
    plain = f"# {words}"
    return plain if heading(plain) == words else f"{plain} #"


def is_row(text: str) -> bool:
    """Whether a line may be one of a table: it is neither empty nor indented as code, and begins no other block."""
    inner = text.strip(_BLANKS)
    if not inner or text[:4] == "    " or text[:1] == "\t":
        return False
    rule = inner.replace(" ", "").replace("\t", "")
    thematic = len(rule) >= 3 and rule[0] in "-_*" and not rule.strip(rule[0])
    return inner[0] == "|" or not (thematic or _BLOCK.match(inner) or _FENCE.match(text))


def split_cells(text: str) -> list[Cell]:
    """The cells of a line, as of a row of a table."""
    start, stop = len(text) - len(text.lstrip(_BLANKS)), len(text.rstrip(_BLANKS))
    bars = [found.start() for found in _BAR.finditer(text, start, max(start, stop))]
    if bars and bars[0] == start:
        start = bars.pop(0) + 1
    if bars and bars[-1] == stop - 1:
        stop = bars.pop()
    cells = []
    for end in (*bars, stop):
        content = text[start:end]
        first = start + len(content) - len(content.lstrip(_BLANKS))
        inner = content.strip(_BLANKS)
        cells.append(Cell(first, first + len(inner), inner.replace("\\|", "|")))
        start = end + 1
    return cells


def is_framed(text: str) -> bool:
    """Whether a row has a pipe at both ends."""
    inner = text.strip(_BLANKS)
    return len(inner) > 1 and inner[0] == "|" and inner[-1] == "|" and inner[-2] != "\\"


def is_delimiter(cells: Sequence[Cell]) -> bool:
    """Whether cells are those of the row between header and body: hyphens, with a colon at either end or both."""
    return all(_DELIMITER.fullmatch(cell.text) for cell in cells)


def escape(text: str) -> str:
    """A text as it stands in a cell."""
    return text.replace("|", "\\|")


def fence_for(texts: Sequence[str]) -> str:
    """A fence that no line of these ends."""
    longest = max((len(run) for text in texts for run in _RUN.findall(text)), default=0)
    return "`" * max(3, longest + 1)
