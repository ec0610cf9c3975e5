"""Tasks that are there, and used, before any app is."""

from __future__ import annotations

from celery import shared_task

from poimen_tasks import Poimen, RetryPolicy, policy


@shared_task
@policy(retry=RetryPolicy(max_attempts=2, initial=0.01))
def below(value: int) -> int:
    """A policy below the decorator."""
    return _second_time("below", value)


@policy(retry=RetryPolicy(max_attempts=2, initial=0.01))
@shared_task
def above(value: int) -> int:
    """A policy above it."""
    return _second_time("above", value)


_runs: list[str] = []


def _second_time(name: str, value: int) -> int:
    _runs.append(name)
    if _runs.count(name) < 2:
        raise ConnectionError(name)
    return value


before = [below.s(1), above.s(2)]
poimen = Poimen("late")
poimen.celery.conf.task_always_eager = True
