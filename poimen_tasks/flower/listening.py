"""Hears the workers' events, and leaves the broker as it was when Flower ends."""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery.events import EventReceiver
from flower.events import Events

__all__ = ["Listener"]

_LONGEST = 30.0
_PATIENCE = 3.0
_log = logging.getLogger(__name__)


class Listener(Events):  # type: ignore[misc]  # Flower ships no types
    """Flower's, which ends in order: its queue does not stay bound, one more with each restart.

    While the broker is away it tries again every half minute at least; Flower's own waits twice as long each time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._over = threading.Event()
        self._receiver: Any = None

    def run(self) -> None:
        """Until `leave`."""
        pause = 1.0
        while not self._over.is_set():
            try:
                with self.capp.connection() as connection:
                    self._receiver = EventReceiver(connection, handlers={"*": self.on_event}, app=self.capp)
                    self._receiver.should_stop = self._over.is_set()
                    pause = 1.0
                    self._receiver.capture(limit=None, timeout=None, wakeup=True)
            except Exception as error:  # noqa: BLE001 - whatever the broker's client raises
                if not self._over.is_set():
                    _log.warning("no events: %s; trying again in %g s", type(error).__name__, pause)
                self._over.wait(pause)
                pause = min(2 * pause, _LONGEST)

    def leave(self) -> None:
        """Close the connection, and wait for that."""
        self._over.set()
        if self._receiver is not None:
            self._receiver.should_stop = True
        if self.is_alive():
            self.join(_PATIENCE)
