"""Tickets become messages: one real Celery group of lanes, its group id the batch's id.

Any number of callers may publish; a ticket whose generation is no longer the slot's ends at once where it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from celery import group
from celery.canvas import maybe_signature
from celery.utils import uuid

from poimen_tasks import codec
from poimen_tasks.dispatch.messages import is_kept_message, publish_message
from poimen_tasks.store.values import Part, Ticket, WaitingCall

if TYPE_CHECKING:
    from celery import Celery
    from celery.canvas import Signature

__all__ = ["LANE_LIFE", "LANE_TASK", "publish_calls", "publish_tickets"]

#: The name of the task whose runs are lanes.
LANE_TASK = "poimen.lane"

#: Seconds after which a lane with time-limited items goes on under a fresh ticket: Celery's own limit backs ours.
LANE_LIFE = 10.0

_BACKSTOP = 5.0
_PIPELINE = 1000
# Where publishing waits for the broker's word (AMQP's `confirm_publish`): a ticket that is lost is issued again.
_CONFIRM = 5.0

_NEVER = 10 * 365 * 86400.0


def _lane_limit(queue: str, parts: Sequence[Part]) -> float:
    """Above what any item that the lane may claim can take; a worker's own default would strike whatever runs then."""
    limits = [part.time_limit for part in parts if part.queue == queue]
    return _NEVER if None in limits or not limits else max(filter(None, limits)) + LANE_LIFE + _BACKSTOP


def _lane_options(ticket: Ticket, parts: Sequence[Part]) -> dict[str, Any]:
    """Where the message goes; a fresh message id each time, because a revoked id never runs again."""
    part, limit = parts[ticket.partition], _lane_limit(ticket.queue, parts)
    # Soft limits are the items' own, kept by the lane: Celery's would strike an innocent one.
    options: dict[str, Any] = {"task_id": uuid(), "time_limit": limit, "soft_time_limit": limit}
    # Named even where an exchange leads to it: so the queue is declared and bound before the message comes.
    options |= {"queue": ticket.queue, "confirm_timeout": _CONFIRM}
    if part.exchange and part.exchange != part.queue:
        options |= {"exchange": part.exchange, "routing_key": part.routing_key}
    if part.priority is not None:
        options["priority"] = part.priority
    return options


def _lane(app: Celery, ticket: Ticket, parts: Sequence[Part]) -> Signature[Any]:
    lane = app.tasks[LANE_TASK].si(ticket.batch, ticket.slot, ticket.generation, ticket.queue)
    if not {"json", "application/json"}.isdisjoint(app.conf.accept_content or ()):
        # An app of the same namespace may publish for another one, which may not know the serializer of this one.
        lane.set(serializer="json")
    return lane.set(**_lane_options(ticket, parts))


def publish_tickets(app: Celery, tickets: Iterable[Ticket], parts_of: Mapping[str, Sequence[Part]]) -> int:
    """Publish tickets as lanes, in one pipeline where the transport has one. Returns how many.

    Args:
        app: the Celery app whose broker carries them.
        tickets: from a script's reply.
        parts_of: the partitions of each batch among them.
    """
    count = 0
    for batch, some in groupby(sorted(tickets), key=lambda ticket: ticket.batch):
        lanes = [_lane(app, ticket, parts_of[batch]) for ticket in some]
        count += len(lanes)
        with app.producer_or_acquire() as producer:
            if len(lanes) == 1:
                # A group of one, without the group's own work: the first ticket decides how soon a batch begins.
                lanes[0].apply_async(group_id=batch, producer=producer, add_to_parent=False)
                continue
            with producer.batch(max_size=_PIPELINE):
                group(lanes, app=app).apply_async(task_id=batch, producer=producer, add_to_parent=False)
    return count


def publish_calls(app: Celery, calls: Iterable[WaitingCall]) -> None:
    """Publish the messages of plain calls that waited or were parked, each under its own id."""
    kept = []
    for call in calls:
        message: Any = codec.decode(call.message)
        if is_kept_message(message):
            kept.append((message, call.id))
        else:
            waited: Any = maybe_signature(message, app=app)
            waited.apply_async(add_to_parent=False)
    if not kept:
        return
    policy = {"retry": app.conf.task_publish_retry, "retry_policy": dict(app.conf.task_publish_retry_policy or {})}
    with app.producer_or_acquire() as producer, producer.batch(max_size=_PIPELINE):
        for message, key in kept:
            publish_message(producer, message, key, confirm_timeout=_CONFIRM, **policy)
