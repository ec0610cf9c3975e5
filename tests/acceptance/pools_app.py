"""The app that the tests of pools, fleets and beat run: bodies that meet, wait, hold the GIL, and tell who they are."""

from __future__ import annotations

import ctypes
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from celery import current_task

from poimen_tasks import Poimen, RetryPolicy
from poimen_tasks.context import current_item
from tests.acceptance.noting import note

poimen = Poimen("pools")
app = poimen.celery
# Not shared with other apps: the module is imported anew for each test.
task = partial(poimen.task, shared=False)


def _lines(path: str) -> int:
    return len(Path(path).read_text(encoding="utf-8").splitlines()) if Path(path).exists() else 0


def _until(ready: Any, what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


@task
def add(x: int, y: int) -> int:
    """A sum."""
    return x + y


@task
def total(values: list[int]) -> int:
    """A chord's body."""
    return sum(values)


@task
def nap(seconds: float) -> float:
    """Sleep."""
    time.sleep(seconds)
    return seconds


@task
def marked(path: str, name: str, seconds: float = 0.0) -> str:
    """Note that it started, sleep, note that it ended."""
    note(path, f"start {name} {os.getpid()}")
    time.sleep(seconds)
    note(path, f"end {name} {os.getpid()}")
    return name


@task
def meet(path: str, name: str, others: int, seconds: float = 0.0) -> str:
    """Note that it started, wait until so many have, sleep, note that it ended: so many run at once, or all fail."""
    note(path, f"start {name} {os.getpid()}")
    _until(lambda: _lines(path) >= others, f"{name}: only {_lines(path)} of {others} run at the same time")
    time.sleep(seconds)
    note(path, f"end {name} {os.getpid()}")
    return name


@task(bind=True, prefetch=1)
def who(self: Any, number: int, path: str, others: int) -> list[Any]:
    """What tells an item from its neighbours, before and after they ran in between."""

    def known() -> list[Any]:
        item = current_item()
        assert item is not None
        return [self.request.id.rpartition(".")[2], item.position, current_task.request.args[0], self.request.retries]

    before = known()
    note(path, str(number))
    _until(lambda: _lines(path) >= others, "the others did not come")
    return [*before, *known()]


@task
def boom(text: str) -> None:
    """Fail."""
    raise ValueError(text)


@task(retry=RetryPolicy(max_attempts=3, initial=0.05, maximum=0.2))
def third_time(path: str) -> int:
    """Fail twice, then succeed."""
    note(path, "run")
    if _lines(path) < 3:
        raise ConnectionError("again")
    return _lines(path)


@app.task(shared=False, bind=True, max_retries=2)
def retries_itself(self: Any, number: int) -> list[int]:
    """Retry with another argument, Celery's way."""
    if number < 2:
        raise self.retry(args=(number + 1,), countdown=0.05)
    return [number, self.request.retries]


@task
def until_cancelled(path: str) -> str:
    """Run until somebody cancels."""
    note(path, "start")

    def check() -> bool:
        poimen.checkpoint()
        return False

    _until(check, "never cancelled")
    return "never"


@task
def holds_gil(path: str, name: str, seconds: float) -> str:
    """Sleep in C code that does not let go of the interpreter: no other thread of this process runs meanwhile."""
    note(path, f"start {name} {os.getpid()}")
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    note(path, f"end {name} {os.getpid()}")
    return name


@app.task(shared=False, soft_time_limit=0.3)
def soft_limited(seconds: float) -> str:
    """Run into the soft limit."""
    time.sleep(seconds)
    return "done"


@app.task(shared=False, time_limit=0.4)
def hard_limited(seconds: float) -> str:
    """Run into the hard limit, and swallow the exception."""
    try:
        time.sleep(seconds)
    except Exception:  # noqa: BLE001 - what a careless body does
        return "swallowed"
    return "done"


@task
def grows(megabytes: int) -> int:
    """Keep memory; tells in which process."""
    _kept.append(b"x" * (megabytes << 20))
    time.sleep(0.02)
    return os.getpid()


_kept: list[bytes] = []

if "POOLS_OLD" not in os.environ:

    @task
    def newest(path: str, name: str) -> str:
        """A task that an older deployment does not have."""
        note(path, f"{name} {os.getppid()}")
        time.sleep(0.05)
        return name
