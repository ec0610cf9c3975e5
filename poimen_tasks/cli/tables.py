"""Tables without frames, whose columns give way in an order that keeps what a person needs: ids and numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["table"]

#: The spaces between two columns.
_GAP = 2
#: What is left, at least, of a column that is cut, and of one that is folded.
_CUT, _FOLDED = 8, 12


def table(*columns: str, right: Collection[str] = (), cut: Collection[str] = ()) -> Table:
    """A table without frames: a line a row, as far as that goes.

    Args:
        *columns: their names.
        right: those that hold numbers, or never break.
        cut: those that are cut where there is no room, before the others are folded, so that an id can be copied.
    """
    made = _Fitting(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in columns:
        made.add_column(
            name.upper(),
            justify="right" if name in right else "left",
            overflow="ellipsis" if name in cut else "fold",
            no_wrap=name in right or name in cut,
        )
    return made


class _Fitting(Table):
    """Rich alone takes the room from the columns that may break, down to nothing, and leaves the others whole."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it, with the width of each column said."""
        names = [len(str(column.header)) for column in self.columns]
        whole = [max(_widest(column.cells), name) for column, name in zip(self.columns, names, strict=True)]
        least = [
            width if column.justify == "right" else min(width, max(name, _CUT if column.no_wrap else _FOLDED))
            for column, width, name in zip(self.columns, whole, names, strict=True)
        ]
        cut = [column.no_wrap and column.justify != "right" for column in self.columns]
        room = options.max_width - _GAP * (len(whole) - 1)
        for column, width in zip(self.columns, _fit(whole, least, cut, room), strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)


def _widest(cells: Iterable[object]) -> int:
    texts = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells]
    return max((text.cell_len for text in texts), default=0)


def _fit(whole: Sequence[int], least: Sequence[int], cut: Sequence[bool], room: int) -> list[int]:
    """Widths that fit into the room, where that is possible: what is cut gives way first, the widest of them most."""
    widths = list(whole)
    for gives in (cut, [not one for one in cut]):
        while sum(widths) > room:
            at = max(
                (n for n, one in enumerate(gives) if one and widths[n] > least[n]), key=lambda n: widths[n], default=-1
            )
            if at < 0:
                break
            widths[at] -= 1
    return widths
