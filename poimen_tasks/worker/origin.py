"""What a message belongs to: one that is sent from inside an item carries the item's workflow and batch.

A plain call that has them passes them on to whatever is sent while it runs: calls of its body, the rest of its chain,
its links, the body of its chord. So a pause of the workflow covers all that comes of it.
"""

from __future__ import annotations

from typing import Any

from celery import signals

from poimen_tasks import context
from poimen_tasks.dispatch.messages import BATCH_HEADER, WORKFLOW_HEADER
from poimen_tasks.dispatch.publish import LANE_TASK

__all__ = ["install_origin"]


def install_origin() -> None:
    """Mark messages in this process, whichever app sends them. May be called again."""
    signals.before_task_publish.connect(_mark, weak=False, dispatch_uid="poimen.origin")


def _mark(sender: Any = None, headers: Any = None, **_: Any) -> None:
    """Before a message is published. What its sender has said himself stays."""
    workflow, batch = context.origin_here()
    if (not workflow and not batch) or sender == LANE_TASK or headers is None:
        return
    if workflow:
        headers.setdefault(WORKFLOW_HEADER, workflow)
    if batch:
        headers.setdefault(BATCH_HEADER, batch)
