"""The message behind a batch that is a step of a canvas: published until the canvas has gone on.

A message can be lost between a broker and a worker, as when a connection is cut between the queue and the note that it
was taken. A lane's message is a ticket, which is issued again; a plain Celery call is its sender's. This one has nobody
else: the callback that publishes it stays with the batch, and looks again until the batch says that it was collected.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Ignore

from poimen_tasks.dispatch.copies import has_gone_on
from poimen_tasks.dispatch.signatures import COLLECT_TASK
from poimen_tasks.errors import PoimenError

if TYPE_CHECKING:
    from poimen_tasks.dispatch.runtime import Runtime

__all__ = ["collect_of", "publish_until_collected", "refuse_collected", "settle_collected"]

log = logging.getLogger(__name__)

_FIRST_LOOK, _LONGEST_LOOK = 0.5, 300.0
"""Seconds between two looks: each twice as long as the one before it."""


def collect_of(canvas: Any) -> Any:
    """The call that collects a batch, when a canvas begins with it; else None."""
    while canvas.get("task") == "celery.chain":
        canvas = next(iter(canvas["kwargs"]["tasks"]), {})
    return canvas if canvas.get("task") == COLLECT_TASK else None


# --- the callback's side ---------------------------------------------------------------------------------------------


def publish_until_collected(runtime: Runtime, callback: Any, canvas: Any, collect: Any) -> str:
    """Publish a canvas, and look after it.

    Args:
        runtime: whose canvas it is.
        callback: the task that runs; it comes back by its own retry, which holds no slot.
        canvas: what is published.
        collect: the call at its beginning.

    Returns:
        The message id, when the canvas has gone on.

    Raises:
        Retry: it has not yet.
    """
    (batch,), message = collect["args"], str(collect["options"].get("task_id"))
    calls = runtime.store().calls
    state, again = calls.await_collect(batch)
    if state == "due" and again and _is_revoked(callback.app, message):
        calls.settle_collect(batch, how="revoked")
        state = "over"
    if state == "due":
        if again:
            log.warning("batch %s: the canvas behind it has not gone on, message %s is published again", batch, message)
        canvas.apply_async()
        calls.await_collect(batch, sent=True)
    if state != "over":
        looks = min(callback.request.retries, 30)
        raise callback.retry(countdown=min(_LONGEST_LOOK, _FIRST_LOOK * 2.0**looks))
    return message


def _is_revoked(app: Any, message: str) -> bool:
    """A worker discarded the message, since it was revoked or has expired: another one might forget that."""
    try:
        return bool(app.backend.get_state(message) == states.REVOKED)
    except Exception as error:  # noqa: BLE001 - every result backend has errors of its own
        log.debug("whether message %s was revoked is not known: %s", message, error)
        return False


# --- the message's side ----------------------------------------------------------------------------------------------


def refuse_collected(runtime: Runtime, step: Any, batch: str) -> None:
    """Called when the message comes.

    Raises:
        Ignore: it is a copy: the canvas has gone on.
        StoreUnavailable: the store does not answer.
    """
    (collected,) = runtime.store().reads.field(batch, "collected")
    if collected is None and has_gone_on(step, batch):
        settle_collected(runtime, batch)  # what ran before could not say so
        collected = b"now"
    if collected is not None:
        raise Ignore("the canvas has gone on already")


def settle_collected(runtime: Runtime, batch: str) -> None:
    """Called when the outcome is stored and what follows is published; what cannot be said now a copy says later."""
    try:
        runtime.store().calls.settle_collect(batch)
    except PoimenError as error:
        log.warning("batch %s: the canvas has gone on, which the store does not know yet: %s", batch, error)
