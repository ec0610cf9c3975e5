"""The result backend of a task while an item of it runs: what the tracer would store is caught for the outcome."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from celery import states
from kombu.exceptions import EncodeError

from poimen_tasks.errors import SerializationError
from poimen_tasks.store.columns import pack_result
from poimen_tasks.worker.celery_compat.capture import captures
from poimen_tasks.worker.failures import call_mismatch, described

if TYPE_CHECKING:
    from celery import Task

__all__ = ["LaneBackend"]

log = logging.getLogger(__name__)


class ResultError(SerializationError, EncodeError):
    """A task's return value does not travel; the tracer knows `EncodeError` and fails the task."""


class LaneBackend:
    """Catches what the tracer stores for the item of this thread; passes everything else to the task's backend."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self._task = task
        self._own: Any = vars(task).get("_backend")

    def _backend(self) -> Any:
        """The task's own backend, else the app's, of which each thread may have one."""
        return self._task.app.backend if self._own is None else self._own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend(), name)

    def process_cleanup(self) -> None:
        """Celery calls this after each task; within a lane once, after the lane, is enough."""
        if captures.current.message_id is None:
            self._backend().process_cleanup()

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        """Swallow STARTED of our item; a state of the user's own goes to the app's backend."""
        if task_id == captures.current.message_id and state == states.STARTED:
            return result
        return self._backend().store_result(task_id, result, state, *args, **kwargs)

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, **kwargs: Any
    ) -> None:
        """Our item succeeded; encoded here, so that a result that does not travel fails the item with all hooks."""
        current = captures.current
        if task_id != current.message_id:
            self._backend().mark_as_done(task_id, result, request, store_result, **kwargs)
            return
        if current.retry is not None:
            return
        try:
            current.result = pack_result(result, what=f"item {task_id}: result", limit=current.limit)
        except SerializationError as error:
            raise ResultError(str(error)) from error
        current.state = states.SUCCESS

    def mark_as_failure(  # noqa: PLR0917 - Celery's signature
        self,
        task_id: str,
        exc: BaseException,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        call_errbacks: bool = True,
        **kwargs: Any,
    ) -> None:
        """Our item failed; its own errbacks run as Celery runs them."""
        current = captures.current
        if task_id != current.message_id:
            self._backend().mark_as_failure(task_id, exc, traceback, request, store_result, call_errbacks, **kwargs)
            return
        if current.retry is not None or current.state is not None:
            return  # it runs again, or has ended: a hook of its own failed afterwards
        # Celery hands on a stand-in for what cannot be pickled; what was raised is at hand here.
        raised = sys.exc_info()[1] or exc
        if request is not None:
            raised = call_mismatch(self._task, request.args, request.kwargs, raised) or raised
        current.state = states.FAILURE
        current.error = described(raised, str(traceback or "") if raised is exc else None)
        if call_errbacks and request is not None and request.errbacks:
            self._call_errbacks(request, exc, traceback)

    def _call_errbacks(self, request: Any, exc: BaseException, traceback: Any) -> None:
        try:
            self._backend()._call_task_errbacks(request, exc, traceback)  # noqa: SLF001
        except Exception:
            # The item has failed all the same; the broker's error would hide why.
            log.exception("item %s: its errbacks could not be called", request.id)

    def mark_as_retry(self, task_id: str, exc: BaseException | None, traceback: Any = None, **kwargs: Any) -> None:
        """Our item retries: `self.retry` has told what to do, the error is kept for the log."""
        current = captures.current
        if task_id != current.message_id:
            self._backend().mark_as_retry(task_id, exc, traceback, **kwargs)
            return
        current.error = None if exc is None else described(exc, "")
