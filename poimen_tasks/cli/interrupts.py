"""Requests to stop a command that follows something: Ctrl-C and the signals like it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self

__all__ = ["Interrupts"]


class Interrupts:
    """Counts requests to stop: the first one is noted, so that no line is torn; the second one raises.

    Attributes:
        code: the exit code that the first request asks for; 0 while there was none.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.code = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.code:
            raise KeyboardInterrupt
        self.code = 128 + number
