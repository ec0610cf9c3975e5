"""Time limits of an item, kept in the process that runs it: a timer raises in its main thread, or in its greenlet.

Where that is not possible (the body ignores the exception, or sits in C code) Celery's own hard limit on the lane's
message ends the process a little later, on prefork.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Protocol

from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

__all__ = ["GreenTimer", "ItemTimer", "Timer", "can_enforce"]


class Timer(Protocol):
    """Arms the limits of one item after another.

    Attributes:
        exceeded: True when the hard limit of the last item struck, whatever the body made of the exception.
    """

    exceeded: bool

    def arm(self, soft: float | None, hard: float | None) -> None:
        """Start the clock for an item; limits in seconds, None for none."""

    def disarm(self) -> None:
        """The item is over."""

    def close(self) -> None:
        """The lane is over."""


def can_enforce() -> bool:
    """True where a timer can interrupt the body: the main thread of a process with SIGALRM."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


class ItemTimer:
    """A `Timer` of signals, for the main thread of a process."""

    def __init__(self) -> None:
        self.exceeded = False
        self._armed = False
        self._soft: float | None = None
        self._hard: float | None = None
        self._soft_raised = False
        self._before: Any = signal.signal(signal.SIGALRM, self._strike)

    def arm(self, soft: float | None, hard: float | None) -> None:
        """Start the clock for an item; limits in seconds, None for none."""
        self.exceeded = self._soft_raised = False
        self._soft, self._hard = soft, hard
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, soft or hard or 0)

    def disarm(self) -> None:
        """The item is over; a signal that is under way is ignored."""
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def close(self) -> None:
        """Give the signal back."""
        self.disarm()
        signal.signal(signal.SIGALRM, self._before)

    def _strike(self, _number: int, _frame: FrameType | None) -> None:
        if not self._armed:
            return
        if self._soft and not self._soft_raised:
            self._soft_raised = True
            if self._hard:
                signal.setitimer(signal.ITIMER_REAL, max(0.001, self._hard - self._soft))
            raise SoftTimeLimitExceeded(self._soft)
        self.exceeded = True
        # A body that swallows the first one gets it again, each time its limit has passed once more.
        signal.setitimer(signal.ITIMER_REAL, max(0.05, self._hard or 0.05))
        raise TimeLimitExceeded(self._hard)


class GreenTimer:
    """A `Timer` for the greenlet that calls it: it strikes where the body waits, and never in a body that does not.

    Args:
        timeout: the `Timeout` of gevent or of eventlet.
    """

    def __init__(self, timeout: Any) -> None:
        self.exceeded = False
        self._timeout = timeout
        self._running: list[Any] = []
        self._hard: Any = None

    def arm(self, soft: float | None, hard: float | None) -> None:
        """Start the clock for an item; limits in seconds, None for none."""
        self.exceeded = False
        if soft:
            self._start(soft, SoftTimeLimitExceeded(soft))
        if hard:
            self._hard = self._start(hard, TimeLimitExceeded(hard))

    def _start(self, seconds: float, error: Exception) -> Any:
        timeout = self._timeout(seconds, error)
        if not timeout.pending:  # eventlet's runs as soon as it is made
            timeout.start()
        self._running.append(timeout)
        return timeout

    def disarm(self) -> None:
        """The item is over. Nothing can strike between the body's end and here: that needs somebody who waits."""
        self.exceeded = self.exceeded or (self._hard is not None and not self._hard.pending)
        for timeout in self._running:
            timeout.cancel()
        self._running.clear()
        self._hard = None

    def close(self) -> None:
        """The lane is over."""
        self.disarm()
