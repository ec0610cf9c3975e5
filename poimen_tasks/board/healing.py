"""Mends a board: what it says is brought to what is tracked, and a broken one is made valid, with no row lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from poimen_tasks._checks import expected
from poimen_tasks.board.document import Board, board_of, check_title, parse, render
from poimen_tasks.board.mending import mend
from poimen_tasks.board.reading import read
from poimen_tasks.board.task import BoardTask
from poimen_tasks.errors import InvalidArgument

__all__ = ["BoardChange", "HealedBoard", "Tracked", "heal"]

_TITLE = "Task board"
#: Values of a tracked task that a board takes over, where they are not empty.
_VALUES = ("scope", "status", "branch", "verification")


class Tracks(Protocol):
    """Whatever tells the states of all its tasks, as a `StateTracker` does."""

    def all(self) -> Iterable[Any]:
        """Every task."""


#: What `heal` takes as tracked: a tracker, values with `id` and `status`, or ids with their status or such a value.
Tracked = Tracks | Iterable[Any] | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class BoardChange:
    """Something that healing did.

    Attributes:
        task: the id of the task that it is about; None for the board itself.
        what: what was done, as one word for programs, e.g. `status_changed`.
        message: the same in words.
    """

    task: str | None
    what: str
    message: str

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealedBoard:
    """A valid board, and what was done to make it one.

    Attributes:
        text: the board as Markdown.
        board: the board.
        changes: what was done, in order; empty when nothing had to be.
    """

    text: str
    board: Board
    changes: tuple[BoardChange, ...]

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "changed": self.changed,
            "changes": [change.to_dict() for change in self.changes],
            "board": self.board.to_dict(),
            "text": self.text,
        }


def heal(text: str, tracked: Tracked = None, *, title: str = _TITLE) -> HealedBoard:
    """Make a board valid, and bring it to what is tracked.

    Every row that can be read stays. What is tracked wins over what the board says, as far as it is not empty; tracked
    tasks that the board lacks are added; rows that nobody tracks stay as they are. Lines of a broken table that the new
    one does not hold in full are kept below it in a code block, as they were.

    Healing what is healthy and agrees changes nothing, and so does healing again.

    Args:
        text: the board, or what is left of it.
        tracked: a `StateTracker`; tasks (`TaskState`, `BoardTask`); or a dict of task ids to a status or a task. None
            mends the form alone.
        title: for a board that has none.

    Raises:
        InvalidArgument: the text is no `str`, or something tracked is no state of a task.
        InvalidId: the id of something tracked breaks its rule.
    """
    if not isinstance(text, str):
        raise expected("board", "the text of a Markdown file, as a str", text)
    check_title(title)
    states = _states(tracked)
    found = read(text)
    if found.problems:
        mended, made = mend(found, frozenset(states), title=title)
        board, changes = parse(mended), [BoardChange(*row) for row in made]
    else:
        board, changes = board_of(found), []
    tasks = [_follow(task, states.pop(task.id, None), changes) for task in board.tasks]
    for state in states.values():
        tasks.append(state)
        changes.append(
            BoardChange(state.id, "task_added", f"task {state.id}: added, as it is tracked ({state.status})")
        )
    if changes:
        board = replace(board, tasks=tuple(tasks))
        text = render(board)
    return HealedBoard(text=text, board=board, changes=tuple(changes))


def _follow(task: BoardTask, state: BoardTask | None, changes: list[BoardChange]) -> BoardTask:
    """The task as it is tracked."""
    if state is None:
        return task
    new = {name: getattr(state, name) for name in _VALUES if getattr(state, name) not in ("", getattr(task, name))}
    for name, value in new.items():
        was = str(getattr(task, name))
        words = f"task {task.id}: {name} {was[:60]!a} became {str(value)[:60]!a}, as it is tracked"
        changes.append(BoardChange(task.id, f"{name}_changed", words))
    return replace(task, **new) if new else task


def _states(tracked: Tracked) -> dict[str, BoardTask]:
    """What is tracked, by id."""
    if tracked is None:
        return {}
    if isinstance(tracked, Mapping):
        return {task.id: task for task in (_state(key, value) for key, value in tracked.items())}
    rows = tracked.all() if hasattr(tracked, "all") else tracked
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise expected("tracked", "a StateTracker, a list of tasks or a dict of ids and states", tracked)
    return {task.id: task for task in (_state(None, row) for row in rows)}


def _state(key: str | None, value: Any) -> BoardTask:
    if isinstance(value, str) and key is not None:
        return BoardTask(id=key, status=value)  # type: ignore[arg-type]  # checked there
    if not all(hasattr(value, name) for name in ("id", *_VALUES)):
        raise expected("tracked", "tasks with id, scope, status, branch and verification", value)
    task = value if isinstance(value, BoardTask) else BoardTask(id=value.id, **{n: getattr(value, n) for n in _VALUES})
    if key not in (None, task.id):
        raise InvalidArgument(f"tracked: id {key!r:.60} is said to be that of task {task.id!r:.60}")
    return task
