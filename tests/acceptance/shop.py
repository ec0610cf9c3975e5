"""The app that the acceptance tests run: settings come from `POIMEN_*` variables, so each test has its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from celery.exceptions import Ignore, Reject

from poimen_tasks import CachePolicy, Cancelled, Paused, Poimen, RetryPolicy, policy
from tests.acceptance.noting import note

poimen = Poimen("shop")
app = poimen.celery
if soft := os.environ.get("SHOP_SOFT"):
    app.conf.worker_soft_shutdown_timeout = float(soft)
# Not shared with other apps: the module is imported anew for each test.
task = partial(poimen.task, shared=False)


def _until(ready: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {ready}")
        time.sleep(0.02)


@task
def noop(value: Any) -> None:
    """Nothing."""


@task
def add(x: int, y: int) -> int:
    """A sum."""
    return x + y


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    """What it was given."""
    return [list(args), kwargs]


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
def total(values: list[int]) -> int:
    """The sum of a list: a chord's body."""
    return sum(values)


@task
def told(path: str, what: Any = None, tag: str = "") -> str:
    """Note what a callback was given."""
    note(path, f"{tag}{what!r}")
    return "told"


@task
def tell(what: Any, path: str, tag: str = "") -> str:
    """Note what a callback was given, first argument first."""
    note(path, f"{tag}{what!r}")
    return "told"


@task
def boom(text: str) -> None:
    """Fail."""
    raise ValueError(text)


@task
def odd_fails(number: int) -> int:
    """Fail for odd numbers."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@task
def fails_unless(path: str) -> str:
    """Fail until the file exists."""
    if not Path(path).exists():
        raise RuntimeError("not yet")
    return "there"


@task(retry=RetryPolicy(max_attempts=3, initial=0.05, maximum=0.2))
def third_time(path: str) -> int:
    """Fail twice, then succeed."""
    note(path, "run")
    runs = len(Path(path).read_text().splitlines())
    if runs < 3:
        raise ConnectionError(f"run {runs}")
    return runs


@task
def tracked(tracker: str, name: str) -> int:
    """Bring a task of a tracker to its end; the version that it has then."""
    states = poimen.tracker(tracker)
    for status in ("in_progress", "in_review"):
        states.update(name, status)
    return states.update(name, "completed").version


@task(retry=RetryPolicy(max_attempts=5, initial=0.01, retry_on=(ConnectionError,), never_on=(TimeoutError,)))
def never_on_timeout(path: str, kind: str) -> None:
    """Fail with an error that is, or is not, worth another attempt."""
    note(path, kind)
    raise {"timeout": TimeoutError, "connection": ConnectionError, "value": ValueError}[kind](kind)


@app.task(shared=False, bind=True, max_retries=2)
def retries_itself(self: Any, path: str, number: int) -> int:
    """Retry with another argument until it is large enough, or Celery's own limit is reached."""
    note(path, f"{number} {self.request.retries}")
    if number < 2:
        raise self.retry(args=(path, number + 1), countdown=0.05)
    return number


@app.task(shared=False, bind=True, max_retries=1)
def retries_too_often(self: Any) -> None:
    """Exceed max_retries."""
    raise self.retry(countdown=0.01, exc=KeyError("gone"))


@app.task(shared=False, bind=True)
def retries_slowly(self: Any, path: str) -> None:
    """Retry in an hour."""
    note(path, "run")
    raise self.retry(countdown=3600)


@app.task(shared=False, bind=True)
def retries_quietly(self: Any, path: str) -> str:
    """Retry without throwing: the body goes on, but it is a retry all the same."""
    note(path, "run")
    if self.request.retries == 0:
        self.retry(countdown=0.01, throw=False)
    return "second"


@app.task(shared=False, autoretry_for=(OSError,), retry_backoff=False, default_retry_delay=0.02, max_retries=3)
def autoretried(path: str) -> int:
    """Celery's autoretry."""
    note(path, "run")
    runs = len(Path(path).read_text().splitlines())
    if runs < 2:
        raise OSError("disk")
    return runs


@task
def ignored() -> None:
    """Not wanted after all."""
    raise Ignore


@task
def rejected(requeue: bool) -> None:
    """Reject."""
    raise Reject("no", requeue=requeue)


@task
def exits(code: int) -> None:
    """Leave the interpreter."""
    sys.exit(code)


@task
def unserialisable() -> Any:
    """A result that does not travel."""
    return {"rows": [1, {2, 3}]}


@task
def dies(path: str) -> None:
    """Kill its own process, always: a poison pill."""
    note(path, str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


@task(retry=RetryPolicy(max_attempts=1, max_lost=1))
def dies_at_once() -> None:
    """Kill its own process; one loss is enough."""
    os.kill(os.getpid(), signal.SIGKILL)


@task
def dies_once(path: str) -> str:
    """Kill its own process the first time."""
    first = not Path(path).exists()
    note(path, str(os.getpid()))
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@app.task(shared=False, soft_time_limit=0.3)
def soft_limited(seconds: float) -> str:
    """Run into the soft limit."""
    time.sleep(seconds)
    return "done"


@app.task(shared=False, time_limit=0.4)
def hard_limited(seconds: float) -> str:
    """Run into the hard limit, and swallow the first exception."""
    try:
        time.sleep(seconds)
    except Exception:  # noqa: BLE001 - what a careless body does
        return "swallowed"
    return "done"


@task
def until_cancelled(path: str) -> str:
    """Run until somebody cancels."""
    note(path, "start")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        poimen.checkpoint()
        time.sleep(0.02)
    return "never"


@task
def waits_inside() -> str:
    """Dispatch from inside an item and wait for it, which is refused."""
    batch = poimen.dispatch(poimen.map(noop, [1]))
    try:
        batch.wait(timeout=1)
    except RuntimeError as error:
        return type(error).__name__
    return "waited"


@task
def dispatches_inside(path: str) -> str:
    """Dispatch from inside an item, fail once: the second run dispatches the same batch."""
    batch = poimen.dispatch(poimen.map(noop, range(3)))
    note(path, batch.id)
    return batch.id


@policy(prefetch=1)
@app.task(shared=False)
def one_by_one(value: int) -> int:
    """Claimed one at a time."""
    return value


@task
def slow_sometimes(number: int) -> int:
    """Short, but the tenth item takes its time."""
    if number == 30:
        time.sleep(1.0)
    return number


@task
def verbose_failure(length: int) -> None:
    """Fail with a very long message."""
    raise ValueError("x" * length)


@task
def callback_dispatches(what: Any) -> str:
    """A callback that dispatches a batch of its own."""
    return poimen.dispatch(poimen.map(noop, [1])).id


@task
def next_stage(results: list[int], path: str) -> str:
    """A callback that dispatches the next stage of its workflow."""
    batch = poimen.dispatch(poimen.starmap(add, [(value, 1) for value in results]), stage="second")
    note(path, batch.id)
    return batch.id


@task
def dispatches_on(path: str) -> str:
    """Wait to be cancelled, then try to dispatch."""
    note(path, "start")
    _until(Path(path + ".go").exists)
    try:
        poimen.dispatch(poimen.map(noop, [1]))
    except RuntimeError as error:
        return type(error).__name__
    except Cancelled:
        note(path, "refused")
        raise
    note(path, "dispatched")
    return "dispatched"


@task
def waits_for_workflow() -> str:
    """Wait for the workflow that this item belongs to, which is refused."""
    try:
        poimen.workflow("wf-inside").wait(timeout=1)
    except RuntimeError as error:
        return type(error).__name__
    return "waited"


@task(cache=True)
def priced(path: str, name: str, seconds: float = 0.0) -> str:
    """A cached call that notes each run of its body."""
    note(path, name)
    time.sleep(seconds)
    return f"price of {name}"


@task(cache=True, retry=RetryPolicy(max_attempts=3, initial=0.05, jitter=False))
def priced_third_time(path: str, name: str) -> str:
    """A cached call that fails twice before it succeeds."""
    note(path, name)
    if len(Path(path).read_text().splitlines()) < 3:
        raise ConnectionError(name)
    return name


@task(cache=True)
def priced_never(path: str, name: str) -> str:
    """A cached call that fails."""
    note(path, name)
    raise ValueError(name)


@task(cache=True)
def sized(size: int, seconds: float = 0.0) -> bytes:
    """A cached value of some size, computed in some time."""
    time.sleep(seconds)
    return os.urandom(size)


@task(cache=CachePolicy(on_uncacheable="run"))
def priced_anyway(path: str, number: float) -> None:
    """A cached task that runs uncached where its arguments have no canonical form."""
    note(path, str(number))


@task
def joined(texts: Any) -> str:
    """One text of several: what comes behind cached calls."""
    return ", ".join(texts) if isinstance(texts, list) else texts


@task(cache=True)
def doubled(path: str, number: int) -> int:
    """A cached call without anything to wait for; notes each run."""
    note(path, str(number))
    return 2 * number


@task(cache=True)
def leans_on(path: str, name: str, other: str) -> str:
    """A cached call that meets its counterpart, and then asks for the counterpart's result."""
    note(path, name)
    _until(lambda: {name, other} <= set(Path(path).read_text().split()))
    key = poimen.cache.key_for(leans_on, path, other, name)
    return poimen.cache.get_or_compute(key, lambda: f"{other} as {name} sees it") + "!"


@task
def decide(reasoning: str) -> str:
    """Record a decision of its own; who and what about is the running item's."""
    return poimen.audit.planner_decision(action="decided", reasoning=reasoning).event_id


@task
def change(paths: list[str]) -> str:
    """Record what it changed, under another name than the dispatcher's."""
    return poimen.audit.implementer_change(action="changed", files_modified=paths, actor="bob").event_id


@task
def stepping(path: str, name: str, steps: int, seconds: float = 0.05) -> int:
    """Work in steps, saving after each how many are done."""
    done = poimen.checkpoint() or 0
    note(path, f"start {name} {done}")
    while done < steps:
        time.sleep(seconds)
        done += 1
        note(path, f"step {name} {done}")
        poimen.checkpoint(done)
    return done


@task(cache=True)
def stepping_once(path: str, name: str, steps: int) -> str:
    """A cached call that asks whether it is to stop, until a file says that it may end."""
    for _ in range(steps):
        if Path(path + ".go").exists():
            break
        time.sleep(0.05)
        poimen.checkpoint()
    note(path, f"ran {name}")
    return name


@policy(retry=RetryPolicy(max_attempts=3, initial=0.01))
@app.task(shared=False, bind=True, autoretry_for=(Exception,), max_retries=2)
def stepping_with_retries(self: Any, path: str, name: str, steps: int) -> list[int]:
    """The same under wrappers that retry whatever is raised; returns what was done, and on which attempt."""
    done = poimen.checkpoint() or 0
    note(path, f"start {name} {done}")
    while done < steps:
        time.sleep(0.05)
        done += 1
        poimen.checkpoint(done)
    return [done, self.request.retries]


@task
def stubborn(path: str, name: str) -> str:
    """Run until a file says so, asking nobody."""
    note(path, f"start {name} {os.getpid()}")
    _until(Path(path + ".go").exists)
    return name


@task
def stops_itself(path: str) -> str:
    """Raise what `checkpoint` raises, though nothing is paused, the first time."""
    note(path, "run")
    if len(Path(path).read_text().splitlines()) == 1:
        raise Paused("later")
    return "done"


@task
def saves(state: Any) -> Any:
    """Save something and read it again."""
    poimen.checkpoint(state)
    return poimen.checkpoint()


@task
def looks() -> Any:
    """What an earlier run saved."""
    return poimen.checkpoint()


@task
def saves_a_set() -> None:
    """Save what does not travel."""
    poimen.checkpoint({"done": {1, 2}})


@task(retry=RetryPolicy(max_attempts=3, initial=0.05, jitter=False, retry_on=(ConnectionError,)))
def cycled(path: str, number: int) -> int:
    """Note the run; every seventeenth fails, every eleventh is retried once at least."""
    note(path, f"run {number}")
    time.sleep(0.005)
    if number % 17 == 5:
        raise ValueError(number)
    if number % 11 == 3 and Path(path).read_text().split("\n").count(f"run {number}") < 2:
        raise ConnectionError(number)
    return number * number
