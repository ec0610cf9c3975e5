"""The census as Celery tasks: one call a file, and a chord body that adds them up."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from examples.census.metrics import measure_source, summarise
from poimen_tasks import CacheKey, Poimen

poimen = Poimen("census")
app = poimen.celery
app.conf.task_default_queue = "census"  # on a shared server its workers take nobody else's messages

#: What the measurements are cached under.
MEASURED = "census.measured"
# Another interpreter reads another syntax. Change the number when the census measures something else.
_MODEL = f"1 python {platform.python_version()} radon {version('radon')}"


@poimen.task
def measure(path: str) -> dict[str, Any]:
    """Measure one file; one that is not Python source fails as an item, with its reason.

    What was measured is kept under the very bytes it was measured from: a file that moved is known, one that changed,
    even while it was read, is not.
    """
    data = Path(path).read_bytes()
    key = CacheKey(MEASURED, input_hash=hashlib.sha256(data).hexdigest(), model_id=_MODEL)
    return {"path": path, **poimen.cache.get_or_compute(key, lambda: measure_source(data, path), ttl=0)}


@poimen.task
def aggregate(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The chord's body: every file was measured."""
    return summarise(results)


@poimen.task
def aggregate_measured(batch_id: str) -> dict[str, Any]:
    """The body's errback: some files failed, so add up the others."""
    return summarise(outcome.result for outcome in poimen.batch(batch_id).outcomes() if outcome.ok)
