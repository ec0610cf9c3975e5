"""Pausing: what is paused, by whom and why, what runs there still, and waiting for either; and snapshots."""

from __future__ import annotations

from poimen_tasks.pause.pauses import Pauses
from poimen_tasks.pause.receipt import PauseReceipt, RunningItems
from poimen_tasks.pause.scope import Scope
from poimen_tasks.pause.snapshot import Snapshot, SnapshotStats
from poimen_tasks.pause.snapshots import Snapshots
from poimen_tasks.pause.state import HeldBack, PauseState, PauseStats

__all__ = [
    "HeldBack",
    "PauseReceipt",
    "PauseState",
    "PauseStats",
    "Pauses",
    "RunningItems",
    "Scope",
    "Snapshot",
    "SnapshotStats",
    "Snapshots",
]
