"""The only room that knows Celery's worker: lanes, the keeper, and how both enter a worker."""

from __future__ import annotations

from poimen_tasks.worker.room import WorkerRoom

__all__ = ["WorkerRoom"]
