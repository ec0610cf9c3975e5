"""Where a task leads to us instead of to Celery while an item of it runs.

- `task.backend` becomes a `LaneBackend`: what the tracer would store as a result is caught for the item that runs here.
- `task.signature_from_request` gives `self.retry` a signature that is kept instead of published.
- `task.replace` and `task.add_to_chord` refuse inside an item, because a batch's size is fixed.

Everything else, plain messages of the same task too, goes to Celery's own code.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from poimen_tasks.errors import UnsupportedWork
from poimen_tasks.worker.celery_compat.capture import KeptRetry, captures
from poimen_tasks.worker.celery_compat.lane_backend import LaneBackend
from poimen_tasks.worker.failures import call_mismatch

if TYPE_CHECKING:
    from celery import Task

__all__ = ["open_seams"]


def open_seams(task: Task[Any, Any]) -> None:
    """Open them, once."""
    if isinstance(vars(task).get("_backend"), LaneBackend):
        return
    stand_in: Any = LaneBackend(task)
    task.backend = stand_in
    _keep_retries(task)
    for name in ("replace", "add_to_chord"):
        _refuse(task, name)


def _keep_retries(task: Task[Any, Any]) -> None:
    """Give `self.retry` of our items a signature that is kept."""
    original = task.signature_from_request

    def signature_from_request(
        request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **options: Any
    ) -> Any:
        asked = task.request if request is None else request
        if asked.id is not None and asked.id == captures.current.message_id:
            mismatch = call_mismatch(task, asked.args, asked.kwargs, sys.exc_info()[1])
            if mismatch is not None:
                raise mismatch  # another attempt here would end alike, however often it is asked for
            if args is None and kwargs is None:
                return KeptRetry(asked, None, None, options)
            whole = (asked.args if args is None else args, asked.kwargs if kwargs is None else kwargs)
            return KeptRetry(asked, *whole, options)
        return original(request, args, kwargs, queue, **options)

    task.signature_from_request = signature_from_request  # type: ignore[method-assign]


def _refuse(task: Task[Any, Any], name: str) -> None:
    original = getattr(task, name)

    def refusing(*args: Any, **kwargs: Any) -> Any:
        if task.request.id is not None and task.request.id == captures.current.message_id:
            raise UnsupportedWork(
                f"self.{name}() in an item of a batch is not supported: a batch's size is fixed; dispatch another batch"
            )
        return original(*args, **kwargs)

    setattr(task, name, refusing)
