"""What Celery's tracer said about the item that runs in a thread, and the retry that the item asked for."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Capture", "KeptRetry", "capture_here", "captures"]


class KeptRetry:
    """What `self.retry` asked for: stands in for the signature that Celery would publish."""

    def __init__(self, request: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self._request = request

    def apply_async(self, *_args: Any, **_options: Any) -> None:
        """Keep it: the lane records the retry together with the outcomes around it."""
        captures.current.retry = self
        # With throw=False the body goes on, and may return: its links belong to the attempt that is the last.
        self._request.callbacks = None


class Capture:
    """What the tracer said about the item that runs in this thread; refilled for each item."""

    __slots__ = ("error", "limit", "message_id", "result", "retry", "state")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.message_id: str | None = None
        self.state: str | None = None
        self.result: Any = None
        self.error: tuple[str, str, str] | None = None
        self.retry: KeptRetry | None = None

    def reset(self, message_id: str | None) -> None:
        """Begin with another item."""
        self.message_id = message_id
        self.state = self.error = self.retry = self.result = None


class _Captures(threading.local):
    current: Capture = Capture(None)


captures = _Captures()


def capture_here(capture: Capture) -> Capture:
    """Items that run in this thread from now on report to this capture. Returns the one before: eager lanes nest."""
    before = captures.current
    captures.current = capture
    return before
