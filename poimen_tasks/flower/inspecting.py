"""Asks workers no more often than people can read, and shows none of their passwords.

Every question is a broadcast that each worker answers, and Flower asks anew whenever somebody opens a worker's page.
"""

from __future__ import annotations

import time
from typing import Any

from flower.inspector import Inspector

from poimen_tasks.flower.passwords import mask_deep

__all__ = ["CalmInspector"]


class CalmInspector(Inspector):  # type: ignore[misc]  # Flower ships no types
    """Flower's, which answers from what it knows while that is young.

    `PAUSE`: seconds between two questions to a worker, or to all.
    """

    PAUSE = 5.0
    _MOST = 1_000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked: dict[str | None, tuple[float, Any]] = {}

    def inspect(self, workername: str | None = None) -> Any:
        """What Flower awaits: the questions on their way, or those that were answered a moment ago."""
        began, answers = self._asked.get(workername, (float("-inf"), None))
        if time.monotonic() - began >= self.PAUSE:
            if len(self._asked) > self._MOST:  # names come from addresses that anybody may ask for
                self._asked.clear()
            answers = super().inspect(workername)
            self._asked[workername] = (time.monotonic(), answers)
        return answers

    def _on_update(self, workername: str, method: str, response: Any) -> None:
        super()._on_update(workername, method, mask_deep(response))

    def forget(self, worker: str) -> None:
        """A worker is gone for good."""
        self.workers.pop(worker, None)
        self._asked.pop(worker, None)
