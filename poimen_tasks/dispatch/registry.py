"""Finds the app's own task behind a task, a name or a signature, and refuses what belongs elsewhere."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from poimen_tasks.errors import UnknownTask, UnsupportedWork

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["own_task", "task_of"]


def own_task(app: Celery, task: Any, signature: Any = None, *, what: str) -> Any:
    """The app's own task object.

    A name that two apps share is not enough: a signature that was built from another app's task is refused, unless both
    run the same function, as `shared_task` does.

    Args:
        app: the Celery app.
        task: a task, or its name.
        signature: the signature that has the name, if there is one.
        what: names the place in an error.

    Raises:
        UnknownTask: no such task in this app, or it belongs to another app.
    """
    name = task if isinstance(task, str) else getattr(task, "name", None)
    own = app.tasks.get(name) if isinstance(name, str) else None
    if own is None:
        raise UnknownTask(f"{what}: task {name or task!r:.120} is not registered with app {app.main!r}")
    made_by = getattr(signature, "_type", None) if isinstance(task, str) else task
    maker = getattr(signature, "_app", None) if made_by is None else getattr(made_by, "app", None)
    if maker is not None and maker is not app and not _same_body(made_by, own):
        raise UnknownTask(f"{what}: task {name} is one of app {maker.main!r}, not of app {app.main!r}")
    return own


def task_of(app: Celery, task: Any, signature: Any = None, *, what: str = "work") -> Any:
    """The app's own task object for an item of a batch; arguments and errors as in `own_task`.

    Raises:
        UnknownTask: no such task in this app, or it belongs to another app.
        UnsupportedWork: the task has a `rate_limit`.
    """
    own = own_task(app, task, signature, what=what)
    if getattr(own, "rate_limit", None) is not None:
        raise UnsupportedWork(
            f"{what}: task {own.name} has rate_limit={own.rate_limit!r}, which a batch does not keep yet; remove it"
        )
    return own


def _same_body(one: Any, other: Any) -> bool:
    first, second = _function(one), _function(other)
    return first is not None and first is second


def _function(task: Any) -> Any:
    """The function behind a task's `run`, which retries and instruments wrap in each app anew."""
    run = getattr(task, "run", None)
    run = inspect.unwrap(run) if callable(run) else run
    return getattr(run, "__func__", run)
