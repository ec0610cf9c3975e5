"""Checks of what a caller may say about time and concurrency."""

from __future__ import annotations

import time
from typing import Any

from poimen_tasks.errors import InvalidArgument

__all__ = ["NO_END", "concurrency_limit", "deadline_of"]

#: The deadline of a wait without one.
NO_END = float("inf")


def deadline_of(timeout: Any) -> float:
    """When a wait ends, on the monotonic clock.

    Raises:
        InvalidArgument: neither None nor seconds from 0.
    """
    if timeout is None:
        return NO_END
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidArgument(
            f"timeout {timeout!r:.60} is not allowed; use seconds from 0, or None to wait as long as it takes"
        )
    return time.monotonic() + timeout


def concurrency_limit(value: Any, default: int) -> int:
    """The stored limit: 0 for none (None), the default for 0 and below.

    Raises:
        InvalidArgument: neither None nor a whole number.
    """
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(
            f"concurrency {value!r:.60} is not allowed; use a whole number, or None for the whole fleet"
        )
    return value if value > 0 else default
