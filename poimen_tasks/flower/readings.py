"""Reads of the store for the pages: in threads, and one read for all who ask for the same at the same time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["Readings"]


class Readings:
    """Keeps Flower's loop free: the store may take seconds to say that it is away.

    Args:
        threads: how many reads go on at once; more wait.
        fresh: seconds for which what was read is shown to others as well, by this process's clock.
        most: how many readings are kept.
    """

    def __init__(self, *, threads: int = 4, fresh: float = 1.0, most: int = 128) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="poimen-pages")
        self._fresh, self._most = fresh, most
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Future[Any]]] = OrderedDict()

    async def get(self, key: Hashable, read: Callable[[], Any]) -> Any:
        """What `read` returns, or what it returned a moment ago for the same key."""
        began, future = self._kept.get(key, (0.0, None))
        if future is None or _is_spent(future) or (future.done() and time.monotonic() - began > self._fresh):
            future = asyncio.get_running_loop().run_in_executor(self._executor, read)
            # Of a read that nobody waits for any more the error is not told.
            future.add_done_callback(_is_spent)
            self._kept[key] = (time.monotonic(), future)
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return await asyncio.shield(future)

    def close(self) -> None:
        """Begin no more reads."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _is_spent(future: asyncio.Future[Any]) -> bool:
    """Whether it ended without anything to show."""
    return future.done() and (future.cancelled() or future.exception() is not None)
