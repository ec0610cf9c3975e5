"""Task bodies that both sides run, and the sign by which a worker says that it is ready."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

__all__ = ["nap", "noop", "stamp"]


def noop(_value: int) -> None:
    """Do nothing."""


def stamp(_value: int) -> float:
    """When it started, seconds since 1970."""
    return time.time()


def nap(duration: float) -> list[float]:
    """Sleep; returns when it started and when it ended, seconds since 1970."""
    began = time.time()
    time.sleep(duration)
    return [began, time.time()]


@worker_ready.connect(weak=False)
def _say_ready(**_: Any) -> None:
    # The log says it only at level info.
    if directory := os.environ.get("BENCH_READY"):
        (Path(directory) / str(os.getpid())).touch()
