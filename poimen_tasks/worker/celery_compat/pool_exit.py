"""How a pool process ends."""

from __future__ import annotations

from typing import Any

from billiard import pool as billiard_pool

__all__ = ["hasten_exit"]

_LEAST_LOOKS = 30  # of 0.1 s each


def hasten_exit() -> None:
    """In a pool process: do not wait for half a minute at its end for a parent that listens no more.

    A message that comes in the moment of a warm shutdown is handed to a process and then dropped from the parent's
    book, so its result is never read, and the process waits for that. All others are read within milliseconds, and
    what a process has left in its pipe is read when it has ended.
    """
    counted: Any = billiard_pool
    counted.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = _LEAST_LOOKS
