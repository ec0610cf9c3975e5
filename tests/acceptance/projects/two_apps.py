"""Two apps with a Poimen each, a third whose Redis is away, and a task that all of them share."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, shared_task

from poimen_tasks import Poimen, RetryPolicy, policy


@policy(retry=RetryPolicy(max_attempts=2, initial=0.01))
@shared_task(bind=True, autoretry_for=(OSError,), retry_kwargs={"max_retries": 1, "countdown": 0.01})
def shared(self: Any) -> str:
    """Which app runs it; at the second attempt."""
    if self.request.retries == 0:
        raise OSError("first attempt")
    return str(self.app.main)


def _left(value: int) -> str:
    return f"left {value}"


def _right(value: int) -> str:
    return f"right {value}"


left = Celery("left", broker=os.environ["POIMEN_REDIS_URL"])
left.conf.task_default_queue = "left"
poimen_left = Poimen(left)
same_left = left.task(name="same", shared=False)(_left)

poimen_right = Poimen("right")
right = poimen_right.celery
right.conf.task_default_queue = "right"
same_right = right.task(name="same", shared=False)(_right)

poimen_away = Poimen("away", redis_url="redis://127.0.0.1:1/0")


@left.task(bind=True, shared=False)
def tells(self: Any) -> str:
    """A state, though there is no result backend."""
    self.update_state(state="PROGRESS", meta={})
    return "told"


@right.task(shared=False)
def dispatches() -> str:
    """A batch of the other app from inside an item of this one."""
    return poimen_left.dispatch([same_left.s(7)]).id


@left.task(shared=False)
def joined(results: list[Any]) -> list[Any]:
    """A callback."""
    return results
