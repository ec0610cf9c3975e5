"""The app whose plain calls the tests of pauses park: settings come from `POIMEN_*` variables."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from celery import Task

from poimen_tasks import Poimen
from poimen_tasks.store.call_scripts import CallScripts
from tests.acceptance.noting import note

poimen = Poimen("holding")
app = poimen.celery
if "HOLDING_RESULT_EXPIRES" in os.environ:
    app.conf.result_expires = timedelta(seconds=float(os.environ["HOLDING_RESULT_EXPIRES"]))
if "HOLDING_VISIBILITY" in os.environ:
    app.conf.broker_transport_options = {"visibility_timeout": float(os.environ["HOLDING_VISIBILITY"])}
app.conf.accept_content = [*app.conf.accept_content, "msgpack"]
task = partial(poimen.task, shared=False)


def die_when_parked(trap: Path) -> None:
    """While the trap is there, the whole worker dies as soon as a call is parked; its message is unacknowledged."""
    original = CallScripts.park_call

    def park_call(*args: Any, **kwargs: Any) -> tuple[str, str]:
        reply = original(*args, **kwargs)
        if reply[0] == "parked" and trap.exists():
            trap.unlink()
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    CallScripts.park_call = park_call  # type: ignore[method-assign,assignment]


if "HOLDING_DIE_PARKED" in os.environ:
    die_when_parked(Path(os.environ["HOLDING_DIE_PARKED"]))


def wait_for(gate: str) -> None:
    """Until the test opens the gate, at most a minute: a body has nothing but the file to look at."""
    deadline = time.monotonic() + 60
    while not Path(gate).exists() and time.monotonic() < deadline:
        time.sleep(0.02)


@task
def add(x: int, y: int) -> int:
    """A sum."""
    return x + y


@task
def total(values: list[int]) -> int:
    """The sum of a list: a chord's body."""
    return sum(values)


@task
def tell(what: Any, path: str) -> Any:
    """Note what it was given, and pass it on."""
    note(path, str(what))
    return what


@app.task(shared=False, acks_late=True, reject_on_worker_lost=True)
def tell_late(what: Any, path: str) -> Any:
    """The same, acknowledged when it is over."""
    note(path, str(what))
    return what


@app.task(shared=False, ignore_result=True)
def tell_only(what: Any, path: str) -> None:
    """The same, without a result."""
    note(path, str(what))


@task
def waits_for(path: str, gate: str) -> str:
    """Note that it runs, and end when the gate is there."""
    note(path, f"start {os.getpid()}")
    wait_for(gate)
    note(path, "end")
    return "done"


@app.task(shared=False, bind=True, acks_late=True, default_retry_delay=0.2)
def waits_late(self: Any, path: str, gate: str) -> str:
    """The same, acknowledged when it is over; its process may be killed under it once."""
    note(path, f"start {os.getpid()} {self.request.retries}")
    wait_for(gate)
    return "done"


@app.task(shared=False, bind=True, max_retries=1)
def retries_once(self: Any, path: str) -> int:
    """Fail once; one retry is all it has."""
    note(path, f"attempt {self.request.retries}")
    if self.request.retries == 0:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task(shared=False, bind=True)
def replaced(self: Any, path: str, left: int) -> int:
    """Replace itself by itself, under the same message id."""
    note(path, f"left {left}")
    if left:
        raise self.replace(self.s(path, left - 1))
    return 0


@app.task(shared=False, bind=True)
def whole(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What its message says."""
    request = self.request
    return {
        "args": list(args),
        "kwargs": kwargs,
        "id": request.id,
        "root_id": request.root_id,
        "parent_id": request.parent_id,
        "retries": request.retries,
        "timelimit": request.timelimit,
        "expires": request.expires,
        "priority": request.delivery_info.get("priority"),
        "routing_key": request.delivery_info.get("routing_key"),
        "mark": request.get("mark"),
        "workflow": request.get("poimen_workflow"),
        "batch": request.get("poimen_batch"),
    }


@task
def sends(path: str, depth: int = 1) -> str:
    """Send a plain call from inside, which sends another."""
    note(path, f"depth {depth}")
    if depth:
        sends.delay(path, depth - 1)
    return "sent"


@task
def starts(path: str) -> str:
    """An item that sends a plain call."""
    note(path, "item")
    sends.delay(path)
    return "started"


@task(cache=True)
def priced(path: str, name: str, gate: str) -> str:
    """A cached call that ends when the gate is there."""
    note(path, name)
    wait_for(gate)
    return f"price of {name}"


class Based(Task):  # type: ignore[type-arg]
    """A custom base that calls the body its own way."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The body, and that it was this one's."""
        return ["based", super().__call__(*args, **kwargs)]


@app.task(shared=False, base=Based)
def based(value: int) -> int:
    """A task of that base."""
    return value


class ByClass(app.Task):  # type: ignore[name-defined,misc]
    """A task that is a class."""

    name = "tests.acceptance.holding.by_class"

    def run(self, value: int) -> int:
        """Twice."""
        return 2 * value


by_class = app.register_task(ByClass())
