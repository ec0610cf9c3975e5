"""Tables on a screen: what gives way where there is no room."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.text import Text

from poimen_tasks.cli.tables import table

ID = "d5909a32-02e4-484a-93bf-75902656ff28"
Draw = Callable[[int], list[str]]


@pytest.fixture
def draw() -> Draw:
    """A batch with a long id in a workflow with a long id, on a screen of so many columns."""

    def lines(width: int) -> list[str]:
        made = table("batch", "workflow", "state", "done", "age", right=("done", "age"), cut=("workflow",))
        made.add_row(ID, "w" * 36, Text("completed", style="green"), "1,000/1,000 100%", "10 min")
        screen = Console(file=io.StringIO(), width=width)
        screen.print(made)
        return screen.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]

    return lines


def test_room_for_all(draw: Draw) -> None:
    """Nothing is cut."""
    title, line = draw(120)
    assert title.split() == ["BATCH", "WORKFLOW", "STATE", "DONE", "AGE"]
    assert line.split() == [ID, "w" * 36, "completed", "1,000/1,000", "100%", "10", "min"]


@pytest.mark.parametrize("width", [100, 80, 66])
def test_what_gives_way(draw: Draw, width: int) -> None:
    """What may be cut is cut; then an id is folded, and is there to its end; states and numbers are whole."""
    title, *lines = draw(width)
    assert max(map(len, (title, *lines))) <= width
    assert title.split() == ["BATCH", "WORKFLOW", "STATE", "DONE", "AGE"]
    assert "".join(line.split()[0] for line in lines) == ID
    assert lines[0].split()[2:] == ["completed", "1,000/1,000", "100%", "10", "min"]
    assert lines[0].split()[1].endswith("w\N{HORIZONTAL ELLIPSIS}")


def test_hardly_any_room(draw: Draw) -> None:
    """Every column is there still, and no line is longer than the screen is wide."""
    lines = draw(30)
    assert max(map(len, lines)) <= 30
    assert "".join(line[:3].strip() for line in lines[1:])


def test_nothing_in_it() -> None:
    """A table without rows has its head."""
    screen = Console(file=io.StringIO(), width=20)
    screen.print(table("batch", "age", right=("age",)))
    assert screen.file.getvalue().split() == ["BATCH", "AGE"]  # type: ignore[attr-defined]
