"""The check around the tracer that runs a task's plain messages.

Celery keeps that tracer as `task.__trace__`. What is put there is wrapped, whoever built it and however often: the
parent's consumer does, each pool process does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app import trace
from celery.exceptions import Ignore

if TYPE_CHECKING:
    from celery import Task

__all__ = ["check_tracer", "ignored"]

_CHECK, _TRACE = "_poimen_check", "__trace__"

#: Wraps a tracer: takes the task and its tracer, returns what runs instead.
Check = Callable[[Any, Callable[..., Any]], Callable[..., Any]]


class _CheckedTracer:
    """Stands for `__trace__` in a task's class: a tracer that is put there is wrapped where the task has a check."""

    def __get__(self, task: Any, owner: Any = None) -> Any:
        return None if task is None else vars(task).get(_TRACE)

    def __set__(self, task: Any, tracer: Any) -> None:
        check = vars(task).get(_CHECK)
        vars(task)[_TRACE] = tracer if tracer is None or check is None else check(task, tracer)


def check_tracer(task: Task[Any, Any], check: Check) -> None:
    """Have whatever tracer runs plain messages of this task wrapped, now and whenever another is built. Once a task.

    Calls in the caller's process and items of batches have tracers of their own, which are left alone.
    """
    kind: Any = task.__class__
    mine = vars(task)
    if _CHECK in mine:
        return
    # Only in the task's own class: Celery makes one for each function. Tasks of other apps in it have no check.
    if not any(isinstance(vars(base).get(_TRACE), _CheckedTracer) for base in kind.__mro__):
        setattr(kind, _TRACE, _CheckedTracer())
    mine[_CHECK] = check
    built = mine.get(_TRACE)
    if built is not None:
        task.__trace__ = built


def ignored(reason: str) -> Any:
    """What a tracer returns for a body that raised `Ignore`: acknowledged, neither a success nor a failure."""
    try:
        raise Ignore(reason)  # noqa: TRY301 - the information about an exception is that of one being handled
    except Ignore as error:
        return trace.trace_ok_t(ExceptionInfo(internal=True), trace.TraceInfo(states.IGNORED, error), 0.0, None)
