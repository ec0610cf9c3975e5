"""Messages that come twice, and messages that come too early: what a step of a canvas does about them.

Which of several copies goes on behind a batch is decided in the store. A mark in the app's result backend says how far
a canvas has gone on, also when the batch is not kept any more. A message's own state would not do: Celery keeps a
message id when a canvas is applied again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from celery import states
from celery.exceptions import Ignore, Reject

__all__ = ["claim_going_on", "has_gone_on", "put_off", "settle_going_on"]

log = logging.getLogger(__name__)

_PATIENCE, _PAUSE = 15, 2.0
"""How often, and how many seconds apart, a copy looks whether the first is done; one that died is replaced then."""
_MOST_RETRIES, _LONGEST_DELAY = 20, 30.0


def has_gone_on(step: Any, batch: str) -> bool:
    """True when what is behind the batch was published already."""
    return _read(step, batch) == states.SUCCESS


def claim_going_on(step: Any, batch: str, take: Callable[[float], bool]) -> None:
    """Called before a canvas goes on behind a batch.

    Args:
        step: the task that runs.
        batch: the batch's id.
        take: asks the store for it, since copies that come together read the same mark; after so many seconds a copy
            that has not gone on has died. False when another one is at it.

    Raises:
        Ignore: a copy of this message has gone on already, or is at it.
    """
    state = _read(step, batch)
    if state == states.SUCCESS:
        raise Ignore("the canvas has gone on already")
    if (state == states.STARTED and step.request.retries < _PATIENCE) or not take((_PATIENCE - 1) * _PAUSE):
        _publish_again(step, _PAUSE, "a copy of this message is at it")
    _write(step, batch, states.STARTED)


def settle_going_on(step: Any, batch: str) -> None:
    """Called when the outcome is stored and what follows is published."""
    _write(step, batch, states.SUCCESS)


def put_off(step: Any, error: Exception) -> NoReturn:
    """Try the same message again later; what was done is found then.

    Unlike `Task.retry` it leaves the step's state alone, which a copy of the message may have brought to its end.

    Raises:
        Ignore: it is published again.
        Exception: the error, when it was put off often enough.
    """
    if step.request.retries >= _MOST_RETRIES:
        raise error
    _publish_again(step, min(_LONGEST_DELAY, 2.0**step.request.retries), str(error))


def _publish_again(step: Any, delay: float, why: str) -> NoReturn:
    log.warning("%s of message %s is put off for %g s: %s", step.name, step.request.id, delay, why)
    again = step.signature_from_request(countdown=delay, retries=step.request.retries + 1)
    try:
        again.apply_async()
    except Exception as error:  # whatever the broker's client raises: it is away, and the queue has the message still
        raise Reject(error, requeue=True) from error
    raise Ignore(f"put off: {why}")


def _mark(batch: str) -> str:
    return f"{batch}@going-on"


def _read(step: Any, batch: str) -> str | None:
    try:
        return str(step.backend.get_state(_mark(batch)))
    except NotImplementedError:
        return None  # without results nobody knows of copies


def _write(step: Any, batch: str, state: str) -> None:
    try:
        step.backend.store_result(_mark(batch), None, state)
    except RuntimeError:  # NotImplementedError is one
        log.debug("%s: this result backend keeps no marks", step.name)
