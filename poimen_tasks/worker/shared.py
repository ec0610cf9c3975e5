"""A few bytes shared by a worker's parent and its children: they are mapped before the fork and need no lock.

One byte a flag; each has a single writer, so a torn read cannot happen.
"""

from __future__ import annotations

import mmap

__all__ = ["SharedState"]


class SharedState:
    """What the parent tells its children."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def leaving(self) -> bool:
        """True when the worker shuts down: lanes give up their slots."""
        return self._memory[0] == 1

    @leaving.setter
    def leaving(self, value: bool) -> None:
        self._memory[0] = int(value)

    @property
    def stopping(self) -> bool:
        """True when the worker's grace is over: bodies are to stop at their next checkpoint."""
        return self._memory[3] == 1

    @stopping.setter
    def stopping(self, value: bool) -> None:
        self._memory[3] = int(value)

    @property
    def others_wait(self) -> bool:
        """True when messages other than this fleet's tickets wait for a slot of this worker."""
        return self._memory[1] == 1

    @others_wait.setter
    def others_wait(self, value: bool) -> None:
        self._memory[1] = int(value)

    @property
    def events_wanted(self) -> bool:
        """True while the worker's task events are enabled."""
        return self._memory[2] == 1

    @events_wanted.setter
    def events_wanted(self, value: bool) -> None:
        self._memory[2] = int(value)
