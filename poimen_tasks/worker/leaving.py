"""How long a worker that leaves waits for a store that is away."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from poimen_tasks.settings import Settings

__all__ = ["longest_wait", "until_given_up"]

_TIMES = 6.0


def longest_wait(settings: Settings) -> float:
    """Seconds without an answer after which a worker that leaves gives up what the store was to be told."""
    return _TIMES * settings.connect_timeout


def until_given_up(leaving: Callable[[], bool], settings: Settings) -> Callable[[], bool]:
    """Asked while one call waits for the store: True when its worker has been leaving meanwhile for long enough."""
    since: float | None = None

    def given_up() -> bool:
        nonlocal since
        if not leaving():
            since = None
            return False
        since = since or monotonic()
        return monotonic() - since >= longest_wait(settings)

    return given_up
