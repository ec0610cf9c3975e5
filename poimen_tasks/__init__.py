"""Poimen Tasks: batches of expensive work on Celery and Redis."""

from __future__ import annotations

from poimen_tasks._version import __version__
from poimen_tasks.app import Poimen
from poimen_tasks.audit import AuditEvent, AuditPage, AuditStats
from poimen_tasks.board import (
    Board,
    BoardChange,
    BoardProblem,
    BoardTask,
    HealedBoard,
    StateTracker,
    TaskState,
    TaskStatus,
    TrackerStats,
)
from poimen_tasks.cache import MISSING, CacheEntry, CacheKey, CacheStats
from poimen_tasks.dispatch import Batch, BatchReport, Workflow, WorkflowReport, WorkflowStatus
from poimen_tasks.errors import *  # noqa: F403 - the whole tree is public
from poimen_tasks.errors import __all__ as _errors
from poimen_tasks.health import Finding
from poimen_tasks.model import BatchState, BatchStatus, ErrorInfo, Item, ItemStatus, Outcome
from poimen_tasks.pause import HeldBack, PauseReceipt, PauseState, PauseStats, Scope, Snapshot, SnapshotStats
from poimen_tasks.policy import CachePolicy, RetryCount, RetryPolicy, policy
from poimen_tasks.settings import Settings

__all__ = [  # noqa: PLE0604 - the errors' own list is part of it
    "MISSING",
    "AuditEvent",
    "AuditPage",
    "AuditStats",
    "Batch",
    "BatchReport",
    "BatchState",
    "BatchStatus",
    "Board",
    "BoardChange",
    "BoardProblem",
    "BoardTask",
    "CacheEntry",
    "CacheKey",
    "CachePolicy",
    "CacheStats",
    "ErrorInfo",
    "Finding",
    "HealedBoard",
    "HeldBack",
    "Item",
    "ItemStatus",
    "Outcome",
    "PauseReceipt",
    "PauseState",
    "PauseStats",
    "Poimen",
    "RetryCount",
    "RetryPolicy",
    "Scope",
    "Settings",
    "Snapshot",
    "SnapshotStats",
    "StateTracker",
    "TaskState",
    "TaskStatus",
    "TrackerStats",
    "Workflow",
    "WorkflowReport",
    "WorkflowStatus",
    "__version__",
    "policy",
    *_errors,
]
