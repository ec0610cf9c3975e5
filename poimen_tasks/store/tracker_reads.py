"""What is only read about trackers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from poimen_tasks.errors import StoreRefused
from poimen_tasks.store.client import Client
from poimen_tasks.store.survey import glob
from poimen_tasks.store.tracker_scripts import TrackedTask

__all__ = ["TrackerReads"]

_PAGE = 250
_SCAN = 1000
#: As in `lua/include/tracker.lua`.
_PLACES = 2**40


class TrackerReads:
    """Reads of one namespace."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.keys = client.keys

    def task(self, tracker: str, task: str) -> TrackedTask | None:
        """A task's state; None for one that is not there."""
        key = self.keys.build("tracker", tracker)
        stored = self.client.read(lambda redis: redis.hget(key, task))
        return None if stored is None else _opened(task, stored)

    def tasks(self, tracker: str, *, rank: int | None = None) -> Iterator[tuple[str, TrackedTask]]:
        """All tasks in the order in which they were first seen, read page by page; `rank`: only those of one status.

        A task that is there all the time comes once, whatever is changed meanwhile.
        """
        index = self.keys.build("tracker_order" if rank is None else "tracker_states", tracker)
        low, high = (0, "+inf") if rank is None else (rank * _PLACES, f"({(rank + 1) * _PLACES}")
        key, after = self.keys.build("tracker", tracker), f"({low}"

        def some(redis: Any) -> Any:
            return redis.zrangebyscore(index, after, high, start=0, num=_PAGE, withscores=True)

        while page := self.client.read(some):
            ids = [task for task, _ in page]
            for task, stored in zip(ids, self.client.read(lambda redis: redis.hmget(key, ids)), strict=True):  # noqa: B023 - called at once
                if stored is not None:
                    name = task.decode(errors="replace")
                    yield name, _opened(name, stored)
            after = f"({page[-1][1]:.0f}"

    def names(self) -> list[str]:
        """Every tracker, the oldest first."""
        key = self.keys.build("trackers")
        return [name.decode(errors="replace") for name in self.client.read(lambda redis: redis.zrange(key, 0, -1))]

    def mentioned(self, *, most: int) -> tuple[list[str], bool]:
        """Every tracker that any key speaks of, and whether all keys of the server, up to `most`, were looked at."""
        found, begin = set(self.names()), self.keys.build("tracker", "")
        seen, cursor = 0, 0
        while True:
            cursor, keys = self.client.read(
                lambda redis, at=cursor: redis.scan(at, match=f"{glob(begin)}*", count=_SCAN)  # type: ignore[misc]
            )
            found |= {key.decode(errors="replace").removeprefix(begin).partition("/")[0] for key in keys}
            seen += _SCAN
            if cursor == 0 or seen >= most:
                return sorted(found), cursor == 0

    def members(self, tracker: str, *, count: int) -> Iterator[tuple[str, Sequence[str]]]:
        """The ids that each key of a tracker has, about `count` at a time, with the key's name; some may come twice."""
        for name, scan in (("tracker", "hscan"), ("tracker_order", "zscan"), ("tracker_states", "zscan")):
            key, cursor = self.keys.build(name, tracker), 0
            while True:
                cursor, page = self.client.read(
                    lambda redis, at=cursor, of=key, how=scan: getattr(redis, how)(of, at, count=count)  # type: ignore[misc]
                )
                ids = [task.decode(errors="replace") for task in (page if scan == "hscan" else dict(page))]
                yield from ((name, ids[at : at + count]) for at in range(0, len(ids), count))
                if cursor == 0:
                    break


def _opened(task: str, stored: bytes) -> TrackedTask:
    try:
        return TrackedTask.of(msgpack.unpackb(stored, raw=True, strict_map_key=False))
    except (ValueError, LookupError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise StoreRefused(
            f"the state of task {task!r:.60} cannot be read ({type(error).__name__}): somebody wrote over it. "
            "`poimen doctor --repair` removes it"
        ) from error
