"""The census as Celery tasks: one call a file, and a chord body that adds them up."""

from __future__ import annotations

from typing import Any

from examples.census.metrics import measure_file, summarise
from poimen_tasks import Poimen

poimen = Poimen("census")
app = poimen.celery
app.conf.task_default_queue = "census"  # on a shared server its workers take nobody else's messages


@poimen.task
def measure(path: str) -> dict[str, Any]:
    """Measure one file; one that is not Python source fails as an item, with its reason."""
    return measure_file(path)


@poimen.task
def aggregate(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The chord's body: every file was measured."""
    return summarise(results)


@poimen.task
def aggregate_measured(batch_id: str) -> dict[str, Any]:
    """The body's errback: some files failed, so add up the others."""
    return summarise(outcome.result for outcome in poimen.batch(batch_id).outcomes() if outcome.ok)
