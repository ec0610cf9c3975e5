"""What a page consists of: a few kinds of blocks, plain values that the template and the page's script both draw.

So a refresh needs no second way to build a page, and nothing but text of ours or escaped text ever gets into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from poimen_tasks.flower.passwords import mask_text

__all__ = ["Block", "Cell", "cards", "cell", "facts", "form", "links", "notice", "progress", "state", "table"]

Block = dict[str, Any]
Cell = dict[str, Any]
Tone = Literal["", "success", "danger", "warning", "primary", "secondary"]

_TONES: dict[str, Tone] = {
    "completed": "success", "running": "primary", "open": "secondary", "paused": "warning", "stalled": "warning",
    "failed": "danger", "cancelled": "secondary", "succeeded": "success", "skipped": "secondary", "success": "success",
    "failure": "danger", "ok": "success", "warning": "warning", "error": "danger",
}  # fmt: skip
#: Columns that a narrow window does without.
_HIDDEN = "d-none d-lg-table-cell"


def cell(text: object, *, href: str = "", strong: bool = False, most: int = 300) -> Cell:
    """A text, perhaps a link; cut, and without passwords."""
    found: Cell = {"text": mask_text(str(text), most)}
    if href:
        found["href"] = href
    if strong:
        found["strong"] = True
    return found


def state(name: object) -> Cell:
    """A state in its colour."""
    return {"text": str(name), "badge": _TONES.get(str(name), "secondary")}


def progress(done: int, total: int, text: str) -> Cell:
    """How far something is."""
    return {"text": text, "done": done, "total": max(1, total)}


def cards(items: Iterable[tuple[str, object, str]]) -> Block:
    """Large numbers: label, value, tone (`active`, `success`, `danger` or none)."""
    return {"kind": "cards", "items": [{"label": a, "value": str(b), "tone": c} for a, b, c in items]}


def facts(title: str, rows: Iterable[tuple[str, Cell | object]]) -> Block:
    """Names and values below each other."""
    cells = [[name, value if isinstance(value, dict) else cell(value)] for name, value in rows]
    return {"kind": "facts", "title": title, "rows": cells}


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    spare: Sequence[str] = (),
    numbers: Sequence[str] = (),
    long: Sequence[str] = (),
    empty: str = "nothing",
    note: str = "",
) -> Block:
    """A table.

    Args:
        title: what it lists.
        columns: their names.
        rows: cells, one a column.
        spare: columns that a narrow window does without.
        numbers: columns that stand at the right.
        long: columns of which a narrow window breaks addresses and long names anywhere, rather than push others out.
        empty: said when there are no rows.
        note: said below, such as that there are more.
    """
    kinds = ((_HIDDEN, spare), ("text-end text-nowrap", numbers), ("poimen-long", long))
    heads = [{"name": name, "class": " ".join(kind for kind, of in kinds if name in of)} for name in columns]
    return {"kind": "table", "title": title, "columns": heads, "rows": list(rows), "empty": empty, "note": note}


def links(items: Iterable[tuple[str, str, bool]]) -> Block:
    """A row of links: text, address, whether it is where we are."""
    return {"kind": "links", "items": [{"text": a, "href": b, "active": c} for a, b, c in items]}


def form(action: str, fields: Iterable[tuple[str, str, str]]) -> Block:
    """Fields that choose what is shown (GET, nothing is changed): name, label, value."""
    return {"kind": "form", "action": action, "fields": [{"name": a, "label": b, "value": c} for a, b, c in fields]}


def notice(text: str, tone: Tone = "secondary") -> Block:
    """Something that is said in full width."""
    return {"kind": "notice", "text": mask_text(text, 1000), "tone": tone}
