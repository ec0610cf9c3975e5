"""Waiting for what comes soon, without a fixed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["eventually"]

T = TypeVar("T")


def eventually(fn: Callable[[], T], timeout: float = 15.0, interval: float = 0.02) -> T:
    """Call `fn` until it returns something true, and return that; an AssertionError inside means "not yet".

    Args:
        fn: what to look at.
        timeout: seconds until it counts as failed.
        interval: seconds between two looks.

    Raises:
        AssertionError: the time is over; carries the last value or assertion.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            value = fn()
        except AssertionError as error:
            reason = str(error)
        else:
            if value:
                return value
            reason = f"last value {value!r}"
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {reason}")
        time.sleep(interval)
