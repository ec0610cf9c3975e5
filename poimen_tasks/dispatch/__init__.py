"""The producer's side: canvas becomes items, items become a batch, a batch becomes a report."""

from __future__ import annotations

from poimen_tasks.dispatch.batch import Batch
from poimen_tasks.dispatch.canvas import Map, StarMap
from poimen_tasks.dispatch.dispatcher import dispatch
from poimen_tasks.dispatch.each import NOT_GIVEN, each_signature, register_each
from poimen_tasks.dispatch.report import BatchReport
from poimen_tasks.dispatch.runtime import Runtime
from poimen_tasks.dispatch.workflow import Workflow
from poimen_tasks.dispatch.workflow_report import WorkflowReport, WorkflowStatus

__all__ = [
    "NOT_GIVEN",
    "Batch",
    "BatchReport",
    "Map",
    "Runtime",
    "StarMap",
    "Workflow",
    "WorkflowReport",
    "WorkflowStatus",
    "dispatch",
    "each_signature",
    "register_each",
]
