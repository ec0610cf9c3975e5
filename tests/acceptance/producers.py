"""Several producer processes at once: each dispatches, pauses, looks at and resumes workflows of its own.

`python -m tests.acceptance.producers <first> <stop>` prints a JSON report.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import nursery
from tests.conftest import ROOT


def produce(names: list[str]) -> dict[str, Any]:
    """Dispatch, pause, look, resume, wait; returns what went wrong and how many items succeeded."""
    shop = importlib.import_module("tests.acceptance.shop")
    errors: list[str] = []
    succeeded = 0
    for name in names:
        try:
            shop.poimen.pause(workflow=name, reason="test", actor="producer")
            batch = shop.poimen.dispatch(shop.poimen.map(shop.noop, range(3)), workflow=name)
            state = shop.poimen.pauses.state(name)
            if not (state.paused and shop.poimen.pauses.is_paused(name) and batch.status().state == "paused"):
                errors.append(f"{name}: {state}")
            shop.poimen.resume(workflow=name, actor="producer")
            succeeded += batch.wait(timeout=60).succeeded
        except Exception as error:  # noqa: BLE001 - the report has it
            errors.append(f"{name}: {error!r}")
    return {"errors": errors, "succeeded": succeeded}


def run_producers(count: int, workflows: int, *, env: Mapping[str, str], directory: Path) -> list[dict[str, Any]]:
    """Run so many processes for so many workflows in all."""
    running = []
    for number in range(count):
        names = [f"wf-{at}" for at in range(number, workflows, count)]
        with (directory / f"producer-{number}.log").open("wb") as log:
            running.append(
                nursery.start(
                    ["tests.acceptance.producers", *names],
                    env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            )
    return [json.loads(process.communicate(timeout=180)[0]) for process in running]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(produce(sys.argv[1:])))
