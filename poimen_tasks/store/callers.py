"""Who calls: an owner a thread, whose sequence grows with each call.

A new owner a call would leave what the store keeps for a retry behind for each of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Caller", "Callers", "Idle"]

_Made = TypeVar("_Made")


@dataclass(slots=True)
class Caller(Generic[_Made]):
    """An owner while somebody calls as it.

    Attributes:
        made: what each of its calls needs.
        pid: the process whose it is.
        sequence: that of its last call.
    """

    made: _Made
    pid: int
    sequence: int = 0

    def next(self) -> int:
        """The sequence of its next call."""
        self.sequence += 1
        return self.sequence


class Idle(threading.local):
    """What a thread has at hand and does not use just now."""

    def __init__(self) -> None:
        self.all: list[object] = []


class Callers(Generic[_Made]):
    """The owners of this process's threads.

    One is taken for a call, and given back behind it. So a signal handler or a finalizer that calls amid a call of the
    thread that it interrupts is a caller of its own: neither takes the other's sequence, or comes before it.

    Args:
        make: makes of an owner what each of its calls needs; `str` for the owner as it is.
    """

    def __init__(self, make: Callable[[str], _Made]) -> None:
        self._make = make
        self._mine = Idle()

    def take(self) -> Caller[_Made]:
        """This thread's caller, or a new one where it has none or calls already."""
        pid = os.getpid()
        try:
            caller: Caller[_Made] = self._mine.all.pop()  # type: ignore[assignment]
        except IndexError:
            pass
        else:
            if caller.pid == pid:  # a forked child is another caller
                return caller
        return Caller(self._make(os.urandom(8).hex()), pid)

    def give_back(self, caller: Caller[_Made]) -> None:
        """It calls no more for now."""
        self._mine.all.append(caller)
