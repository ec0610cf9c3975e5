"""Workers of several deployments serve one queue: which of them know a task.

While a deployment rolls, an old worker claims items of a task that it does not have yet. As long as another worker of
that queue knows the task, the items are left to that one; when nobody does, they fail as `NotRegistered`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from poimen_tasks.health.fleet import LIVE
from poimen_tasks.store import Store
from poimen_tasks.store.reads import WorkerInfo

__all__ = ["KNOWN", "known_elsewhere", "mark_of"]

#: Under this key a worker tells which tasks it knows.
KNOWN = "known"
_SIZE = 4


def mark_of(names: Iterable[str]) -> bytes:
    """Task names in four bytes each, short enough to be told with each tick."""
    return b"".join(sorted(_one(name) for name in names if not name.startswith("celery.")))


def _one(name: str) -> bytes:
    return zlib.crc32(name.encode()).to_bytes(_SIZE, "big")


def _knows(worker: WorkerInfo, activity: str) -> bool:
    mark, wanted = worker.details.get(KNOWN, b""), _one(activity)
    return any(mark[at : at + _SIZE] == wanted for at in range(0, len(mark), _SIZE))


def known_elsewhere(store: Store, activity: str, queue: str) -> bool:
    """True when a live worker of that queue knows the task."""
    now = store.reads.now()
    return any(
        now - worker.seen <= LIVE and queue in dict(worker.offers) and _knows(worker, activity)
        for worker in store.reads.workers()
    )
