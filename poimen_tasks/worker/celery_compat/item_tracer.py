"""Celery's tracer, built for items: signals, hooks, the log of failures and `self.retry` are Celery's.

Nothing in Celery itself is changed: a copy of `celery.app.trace.build_tracer` reads a few names from here. Whoever
wraps `build_tracer` to watch tasks (Sentry does) watches items too, see `_tracer_builder`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from celery.app import trace
from celery.exceptions import Ignore

from poimen_tasks.errors import Paused
from poimen_tasks.worker.celery_compat.seams import open_seams
from poimen_tasks.worker.celery_compat.stacks import FocusStack
from poimen_tasks.worker.retrying import install_retry

if TYPE_CHECKING:
    from celery import Celery, Task

__all__ = ["build_item_tracer"]


def build_item_tracer(app: Celery, task: Task[Any, Any], hostname: str) -> Callable[..., Any]:
    """Celery's tracer for items of a task, without what only serves its log line of a success.

    That line, and the text of the result made for it, would cost more than a short item. Failures and retries are
    logged as always.
    """
    install_retry(task)  # it may have been registered after the worker began
    open_seams(task)
    return _tracer_builder()(task.name, task, app.loader, hostname, app=app)  # type: ignore[no-any-return]


class _QuietLogger:
    """The tracer's logger, but that it says INFO is off when the tracer is built."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the logger's own name
        """Only what is worse than INFO."""
        return level > logging.INFO and self._logger.isEnabledFor(level)


def _no_text(_value: Any, _length: int | None = None) -> str:
    return ""


#: What Celery's function reads from here instead of from its own module. It catches `Ignore`, without hooks and log
#: lines; so an item leaves that raised our own `Paused` by itself.
_OURS = {
    "saferepr": _no_text,
    "logger": _QuietLogger(trace.logger),
    "_task_stack": FocusStack,
    "Ignore": (Ignore, Paused),
}
_MOST_WRAPPERS = 8


def _copy(function: FunctionType, names: dict[str, Any], closure: tuple[CellType, ...] | None) -> FunctionType:
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _made_ours(function: Any, depth: int = 0) -> FunctionType | None:
    """A copy of Celery's `build_tracer` that reads three names from here; nothing in Celery itself is changed.

    A wrapper around Celery's function is copied too, with the copy inside. None when Celery's is not found in it.
    """
    if not isinstance(function, FunctionType) or depth > _MOST_WRAPPERS:
        return None
    if function.__globals__ is vars(trace) and function.__name__ == "build_tracer":
        return _copy(function, {**vars(trace), **_OURS}, function.__closure__)
    cells = function.__closure__ or ()
    for at, cell in enumerate(cells):
        try:
            inner = _made_ours(cell.cell_contents, depth + 1)
        except ValueError:  # an empty cell
            continue
        if inner is not None:
            return _copy(function, function.__globals__, (*cells[:at], CellType(inner), *cells[at + 1 :]))
    return None


def _tracer_builder() -> Callable[..., Any]:
    """What builds tracers of items. Looked up when one is built: Sentry may be set up before us or after.

    A wrapper that hides Celery's function otherwise is used as it is: items cost more then, and are watched all the
    same.
    """
    return _made_ours(trace.build_tracer) or trace.build_tracer
