"""A snapshot as a value: what a workflow was at one moment, in words that stay readable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from poimen_tasks.model import moment

__all__ = ["MOST_TASKS", "Snapshot", "SnapshotStats"]

MOST_TASKS = 1000
"""Task ids that a snapshot lists of each kind; the counts beside them are exact."""

_TIMES = ("timestamp", "paused_at", "resumed_at")
_LISTS = ("completed_tasks", "pending_tasks", "failed_tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a workflow was when it was taken; what is needed to go on is in the file.

    Attributes:
        id: the snapshot's own, random.
        workflow: whose it is.
        timestamp: when it was taken (UTC, by the server's clock).
        stage: of the newest batch that was not over, else of the newest; "" without a batch.
        completed_tasks, pending_tasks, failed_tasks: ids of items of that stage, at most 1,000 each.
        completed, pending, failed: how many there are of each; items that were cancelled or skipped count as neither.
        current_task_id: an item that ran; None when none did.
        current_activity_id: its task's name.
        task_metrics: of each stage, its counters.
        workflow_metrics: of the whole workflow.
        configuration: what the caller gave, else limits, queues and metadata of the stages.
        error: the first failure, or what the caller gave; None without one.
        paused_at: since when the workflow was paused; None when it was not.
        resumed_at: when it was resumed from this snapshot; None while it was not.
        resume_attempts: how often that was tried.
        resume_success: whether the last try succeeded; None before the first.
        batches: of each batch its id, stage, state and counters.
        pauses: scopes that were paused (the workflow and its batches) with what was known of each.
        actor: who took it.
        reason: why.
        version: of the package that wrote it.
        layout: of the store that it was taken from.
        namespace: it was taken from.
        size: bytes on disk.
        generation: 0 for the newest of its workflow, 1 for the one before, and so on.
    """

    id: str
    workflow: str
    timestamp: datetime
    stage: str = ""
    completed_tasks: tuple[str, ...] = ()
    pending_tasks: tuple[str, ...] = ()
    failed_tasks: tuple[str, ...] = ()
    completed: int = 0
    pending: int = 0
    failed: int = 0
    current_task_id: str | None = None
    current_activity_id: str | None = None
    task_metrics: Mapping[str, Any] = field(default_factory=dict)
    workflow_metrics: Mapping[str, Any] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    paused_at: datetime | None = None
    resumed_at: datetime | None = None
    resume_attempts: int = 0
    resume_success: bool | None = None
    batches: tuple[Mapping[str, Any], ...] = ()
    pauses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    actor: str = "unknown"
    reason: str = ""
    version: str = ""
    layout: str = ""
    namespace: str = ""
    size: int = 0
    generation: int = 0

    @property
    def items(self) -> int:
        """Items of all batches."""
        return sum(batch.get("total", 0) for batch in self.batches)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        data = self.packed()
        for name in _TIMES:
            at = getattr(self, name)
            data[name] = at.isoformat() if at else None
        return data

    def packed(self) -> dict[str, Any]:
        """The same with times as seconds since 1970, as the file has it."""
        data: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in _TIMES:
            data[name] = data[name].timestamp() if data[name] else None
        for name in _LISTS:
            data[name] = list(data[name])
        data["batches"] = [dict(batch) for batch in self.batches]
        data["pauses"] = {scope: dict(state) for scope, state in self.pauses.items()}
        return data

    @classmethod
    def unpacked(cls, data: Mapping[str, Any]) -> Snapshot:
        """From what a file has; a name that this version does not know is left out.

        Raises:
            TypeError, KeyError: it is no summary of a snapshot.
        """
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        for name in _TIMES:
            values[name] = moment(values.get(name))
        for name in (*_LISTS, "batches"):
            values[name] = tuple(values.get(name) or ())
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStats:
    """What a directory of snapshots holds.

    Attributes:
        count: snapshots that can be read, of all generations.
        workflows: that have at least one of them.
        bytes: of all files, summaries included.
        corrupt: files that cannot be read as a snapshot.
        oldest, newest: when these were taken.
        directory: where.
    """

    count: int
    workflows: int
    bytes: int
    corrupt: int
    oldest: datetime | None
    newest: datetime | None
    directory: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        data: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("oldest", "newest"):
            data[name] = data[name].isoformat() if data[name] else None
        return data
