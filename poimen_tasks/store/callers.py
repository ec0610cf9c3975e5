"""Who calls: an owner a thread, whose sequence grows with each call.

A new owner a call would leave what the store keeps for a retry behind for each of them.
"""

from __future__ import annotations

import os
import threading

__all__ = ["Callers"]


class Callers:
    """The owners of this process's threads."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def next_call(self) -> tuple[str, int]:
        """Owner and sequence of this thread's next call."""
        mine, pid = self._mine, os.getpid()
        if getattr(mine, "pid", None) != pid:  # a forked child is another caller
            mine.pid, mine.owner, mine.sequence = pid, os.urandom(8).hex(), 0
        mine.sequence += 1
        return mine.owner, mine.sequence
