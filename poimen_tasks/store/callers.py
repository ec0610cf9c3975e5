"""Who calls: an owner a thread, whose sequence grows with each call.

A new owner a call would leave what the store keeps for a retry behind for each of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Callers"]

_Made = TypeVar("_Made")


class Callers(Generic[_Made]):
    """The owners of this process's threads.

    Args:
        make: makes of an owner what each of its calls needs; `str` for the owner as it is.
    """

    def __init__(self, make: Callable[[str], _Made]) -> None:
        self._make = make
        self._mine = threading.local()

    def next_call(self) -> tuple[_Made, int]:
        """What was made of this thread's owner, and the sequence of its next call."""
        mine, pid = self._mine, os.getpid()
        if getattr(mine, "pid", None) != pid:  # a forked child is another caller
            mine.pid, mine.made, mine.sequence = pid, self._make(os.urandom(8).hex()), 0
        mine.sequence += 1
        return mine.made, mine.sequence
