"""A few bytes shared by a worker's parent and its children: they are mapped before the fork and need no lock.

One byte a flag and one number; each has a single writer, so a torn read cannot happen.
"""

from __future__ import annotations

import mmap
import struct

__all__ = ["SharedState"]

_COUNT = struct.Struct("=I")


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
    def reserved(self) -> int:
        """Messages that the parent holds and that wait for a child."""
        return int(_COUNT.unpack_from(self._memory, 4)[0])

    @reserved.setter
    def reserved(self, value: int) -> None:
        _COUNT.pack_into(self._memory, 4, max(0, value))
