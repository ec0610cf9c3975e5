"""`policy(retry=)` for every run of a task, in a lane or as a plain message: the exception becomes `self.retry`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry

from poimen_tasks.errors import Paused, SignatureMismatch
from poimen_tasks.policy import RetryPolicy, policy_of
from poimen_tasks.worker.failures import call_mismatch

if TYPE_CHECKING:
    from celery import Task

__all__ = ["install_retry"]


def install_retry(task: Task[Any, Any]) -> None:
    """Wrap the task's body, once. A direct call runs the body only."""
    retry = policy_of(task).retry
    if retry is None or getattr(task.run, "__poimen_retry__", False):
        return
    task.run = _retrying(task, retry, task.run)  # type: ignore[method-assign]


def _retrying(task: Task[Any, Any], retry: RetryPolicy, body: Any) -> Any:
    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return body(*args, **kwargs)
        except (Retry, Ignore, Reject, SignatureMismatch, Paused):
            raise
        except Exception as error:
            request = task.request
            attempt = (request.retries or 0) + 1
            if request.called_directly or not retry.should_retry(error, attempt):
                raise
            if mismatch := call_mismatch(task, args, kwargs, error):
                raise mismatch from error
            raise task.retry(exc=error, countdown=retry.delay(attempt), max_retries=retry.max_attempts) from error

    run.__poimen_retry__ = True  # type: ignore[attr-defined]
    return run
