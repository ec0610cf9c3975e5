"""The app whose tasks the tests of canvases put together: settings come from `POIMEN_*` variables."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from celery import chain, chord, group, signals
from celery.exceptions import Ignore

from poimen_tasks import Poimen, RetryPolicy
from tests.acceptance.noting import note

poimen = Poimen("steps")
app = poimen.celery
app.conf.result_backend = os.environ.get("STEPS_RESULTS", app.conf.result_backend)
task = partial(poimen.task, shared=False)


@task
def one() -> int:
    """One."""
    return 1


@task
def add(x: int, y: int) -> int:
    """A sum."""
    return x + y


@task
def double(x: int) -> int:
    """Twice."""
    return 2 * x


@task
def total(values: list[int]) -> int:
    """The sum of a list."""
    return sum(values)


@task
def same(value: Any) -> Any:
    """What it was given."""
    return value


@task
def upto(count: int) -> list[int]:
    """A list for a step that takes lists."""
    return list(range(count))


@task
def boom(text: str = "boom") -> None:
    """Fail."""
    raise ValueError(text)


@task
def bounce(value: Any) -> None:
    """Fail, whatever it is given."""
    raise ValueError(f"bounced {value!r}")


@task
def odd_fails(number: int) -> int:
    """Fail for odd numbers."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@task
def tell(what: Any, path: str, tag: str = "") -> Any:
    """Note what it was given, and pass it on."""
    note(path, f"{tag}{what!r}")
    return what


@task
def told(path: str, tag: str) -> str:
    """Note that it ran, whatever came before."""
    note(path, tag)
    return tag


@task
def alarm(task_id: str, path: str) -> str:
    """An errback of the old style: a task that gets the failed one's id."""
    note(path, f"alarm {task_id}")
    return "alarmed"


@app.task(shared=False)
def siren(request: Any, exc: BaseException, traceback: Any, path: str = "") -> None:
    """An errback of the new style: called in place with what failed."""
    note(path, f"siren {type(exc).__name__}: {exc}")


@task(retry=RetryPolicy(max_attempts=3, initial=0.02, maximum=0.05))
def third_time(path: str, number: int) -> int:
    """Fail twice, then succeed."""
    note(path, f"run {number}")
    if Path(path).read_text().splitlines().count(f"run {number}") < 3:
        raise ConnectionError("not yet")
    return number


@app.task(shared=False, bind=True, max_retries=2)
def retries_itself(self: Any, number: int) -> int:
    """Celery's own retry, twice."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.02)
    return number


@app.task(shared=False, bind=True, max_retries=1)
def gives_up(self: Any) -> None:
    """Retry too often."""
    raise self.retry(countdown=0.01, exc=KeyError("gone"))


@task
def ignored() -> None:
    """Not wanted after all."""
    raise Ignore


@app.task(shared=False, bind=True)
def becomes_sum(self: Any, x: int) -> Any:
    """Give its place to another task."""
    return self.replace(add.s(x, 10))


@app.task(shared=False, bind=True)
def becomes_chord(self: Any, x: int) -> Any:
    """Give its place to a chord."""
    return self.replace(chord([add.si(x, i) for i in range(3)], total.s()))


@app.task(shared=False, bind=True)
def becomes_group(self: Any, x: int) -> Any:
    """Give its place to a group."""
    return self.replace(group(add.si(x, i) for i in range(3)))


@app.task(shared=False, bind=True)
def becomes_same(self: Any, value: Any) -> Any:
    """Give its place to a task that passes the value on."""
    return self.replace(same.s(value))


@app.task(shared=False, bind=True)
def becomes_each(self: Any, count: int) -> Any:
    """Give its place to a batch."""
    return self.replace(poimen.each(double, range(count)))


@app.task(shared=False, bind=True)
def stamps(self: Any, value: Any = None) -> Any:
    """The stamps of its message."""
    return dict(self.request.stamps or {})


@app.task(shared=False, bind=True)
def place(self: Any, value: Any = None) -> Any:
    """What its message says of its place in a canvas."""
    return {name: getattr(self.request, name) for name in ("id", "root_id", "parent_id")}


@task
def marked(value: Any, path: str, seconds: float = 0.0) -> Any:
    """Note that it started, sleep, note that it ended."""
    note(path, f"start {value} {os.getpid()}")
    time.sleep(seconds)
    note(path, f"end {value}")
    return value


@task
def waits_for(value: Any, path: str) -> Any:
    """End when the file is there."""
    deadline = time.monotonic() + 30
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


@task
def needs(value: Any, path: str) -> Any:
    """Fail until the file is there."""
    if not Path(path).exists():
        raise FileNotFoundError("not yet")
    return value


@task
def starts_each(number: int) -> str:
    """Start a canvas with a batch in it from inside an item; its result's id."""
    started = chain(upto.s(number), poimen.each(double), total.s()).apply_async()
    return str(started.id)


def die_once_after(sender: Any = None, **_: Any) -> None:
    """Kill this process when one of the named tasks has run, before anything is told of it; once for each."""
    directory = os.environ.get("STEPS_DIE")
    if directory and sender.name in os.environ.get("STEPS_DIE_AFTER", "").split():
        mark = Path(directory) / sender.name
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


signals.task_postrun.connect(die_once_after)


def lose_once(sender: Any = None, **_: Any) -> None:
    """The first message of the named task is taken from its queue and thrown away, as by a connection that is cut."""
    name, mark = os.environ.get("STEPS_LOSE", ""), Path(os.environ.get("STEPS_LOST", ""))
    if name:
        take = sender.strategies[name]

        def strategy(message: Any, *rest: Any, **options: Any) -> Any:
            if mark.exists():
                return take(message, *rest, **options)
            mark.touch()
            return message.ack()

        sender.strategies[name] = strategy


signals.worker_ready.connect(lose_once)
