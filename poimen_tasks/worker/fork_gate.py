"""No pool process is forked while another thread of its parent is within Celery's or the broker's code.

A lock that such a thread holds at that moment is held in the child for ever, and whoever wants it there waits without
end. Celery and kombu have many: each of their lazily made attributes takes one at every reading. A worker of theirs has
no other threads; ours has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

__all__ = ["GATE", "ForkGate"]

#: Seconds that a fork waits at most: a thread may wait for a broker that does not answer.
_PATIENCE = 2.0


class ForkGate:
    """One for a process; its forks wait at it once it stands."""

    def __init__(self) -> None:
        self._free = threading.Condition(threading.Lock())
        self._inside = 0
        self._forking = False
        self._stands = False

    def stand(self) -> None:
        """From now on forks wait."""
        if not self._stands:
            self._stands = True
            os.register_at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._renew)

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Within this no process is forked, for two seconds at most; it waits for a fork that is under way."""
        with self._free:
            while self._forking:
                self._free.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._free:
                self._inside -= 1
                self._free.notify_all()

    def _close(self) -> None:
        self._free.acquire()
        self._forking = True
        deadline = monotonic() + _PATIENCE
        while self._inside and (left := deadline - monotonic()) > 0:
            self._free.wait(left)

    def _open(self) -> None:
        self._forking = False
        self._free.notify_all()
        self._free.release()

    def _renew(self) -> None:
        """In a child: none of the parent's threads is here."""
        self._free, self._inside, self._forking = threading.Condition(threading.Lock()), 0, False


GATE = ForkGate()
