"""A producer: what a view, a command or a beat task would call."""

from __future__ import annotations

from collections.abc import Iterable

from celery import chord, group
from poimen_tasks import Batch

from acme.celery import poimen
from orders.tasks import bill, charge


def charge_all(orders: Iterable[int], day: str) -> Batch:
    """Charge every order once, ten at a time, and bill what was charged."""
    work = chord(group(charge.s(order) for order in orders), bill.s())
    return poimen.dispatch(work, workflow=f"nightly-{day}", batch_id=f"charge-{day}", concurrency=10)
