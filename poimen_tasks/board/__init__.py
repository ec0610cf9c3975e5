"""Task boards: Markdown files that are checked, read, written and mended; and the tracked states behind them."""

from __future__ import annotations

from poimen_tasks.board.document import Board, parse, render, validate
from poimen_tasks.board.healing import BoardChange, HealedBoard, heal
from poimen_tasks.board.state import TaskState, TrackerStats
from poimen_tasks.board.task import BoardTask, TaskStatus
from poimen_tasks.board.tracker import StateTracker
from poimen_tasks.model import BoardProblem

__all__ = [
    "Board",
    "BoardChange",
    "BoardProblem",
    "BoardTask",
    "HealedBoard",
    "StateTracker",
    "TaskState",
    "TaskStatus",
    "TrackerStats",
    "heal",
    "parse",
    "render",
    "validate",
]
