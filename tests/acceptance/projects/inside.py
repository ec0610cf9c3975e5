"""An app whose bodies do everything that a body may do.

`INSIDE_ROLE=worker` gives a worker another version of some functions than the producer has.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Task, signals
from celery.exceptions import Ignore, Reject
from pydantic import BaseModel

from poimen_tasks import Poimen, RetryPolicy

poimen = Poimen("inside")
app = poimen.celery
app.conf.timezone = "Asia/Tokyo"
IN_WORKER = os.environ.get("INSIDE_ROLE") == "worker"


def note(path: str, *words: Any) -> None:
    """Append a line."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(words, default=repr) + "\n")


@app.task(bind=True)
def facts(self: Any, *_: Any) -> dict[str, Any]:
    """What the request says."""
    request = self.request
    names = ("id", "root_id", "correlation_id", "retries", "hostname", "delivery_info", "timelimit", "args", "is_eager")
    return {name: getattr(request, name) for name in names} | {"direct": request.called_directly}


@app.task(bind=True)
def changes_its_headers(self: Any, name: str) -> list[str]:
    """Leave something in the headers; what others left is not there."""
    self.request.headers[name] = "left"
    return sorted(self.request.headers)


# ------------------------------------------------------------------------------------------- retries
@app.task(bind=True, max_retries=2, default_retry_delay=0.01)
def retries(self: Any, how: str, step: int = 0) -> Any:
    """Retry in one of many ways; `step` is what a retry changes."""
    if self.request.retries and how in {"quiet", "quiet and raise", "caught", "aware", "naive", "text", "elsewhere"}:
        return [self.request.retries, self.request.delivery_info["routing_key"]]
    RETRIES[how](self, step)
    return "went on"


def _throws(**options: Any) -> Callable[[Any, int], None]:
    def body(self: Any, _step: int) -> None:
        raise self.retry(**options)

    return body


def _quiet_and_raise(self: Any, _step: int) -> None:
    self.retry(throw=False)
    raise ValueError("after the retry")


def _caught(self: Any, _step: int) -> None:
    try:
        raise KeyError("cause")
    except KeyError:
        raise self.retry() from None


def _changed(self: Any, step: int) -> None:
    if step < 2:
        raise self.retry(args=("changed", step + 1))


def _keywords(self: Any, step: int) -> None:
    if step < 1:
        raise self.retry(kwargs={"step": step + 1})


def _when(moment: Callable[[], Any]) -> Callable[[Any, int], None]:
    def body(self: Any, _step: int) -> None:
        raise self.retry(eta=moment())

    return body


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=0.1)


RETRIES: dict[str, Callable[[Any, int], Any]] = {
    "with exc": _throws(exc=ValueError("given")),
    "without exc": _throws(),
    "max_retries here": _throws(max_retries=1, exc=ValueError("once")),
    "quiet": lambda self, _step: self.retry(throw=False),
    "quiet and raise": _quiet_and_raise,
    "caught": _caught,
    "changed": _changed,
    "keywords": _keywords,
    "aware": _when(_soon),
    "naive": _when(lambda: _soon().replace(tzinfo=None)),
    "text": _when(lambda: _soon().isoformat()),
    "no time": _throws(countdown="soon"),
    "never": _throws(countdown=float("inf")),
    "elsewhere": _throws(queue="nowhere", priority=9, countdown=0.01),
    "bad argument": lambda self, _step: self.retry(args=({1, 2},)),
}


@app.task(bind=True, autoretry_for=(Exception,), dont_autoretry_for=(LookupError,), retry_backoff=False)
def autoretries(self: Any, kind: str) -> None:
    """Celery's autoretry, for two kinds of errors."""
    self.default_retry_delay = 0.01
    raise {"value": ValueError, "key": KeyError}[kind](kind)


@app.task(bind=True)
def rejects_once(self: Any) -> str:
    """Reject and be put back, once."""
    if self.request.retries == 0:
        raise Reject("later", requeue=True)
    return "then"


@app.task(bind=True)
def ignores_after_a_state(self: Any) -> None:
    """Celery's own way to end in a state of one's own."""
    self.update_state(state="HALFWAY", meta={"done": 3})
    raise Ignore("enough")


@app.task(bind=True)
def tells_its_state(self: Any) -> str:
    """Progress for whoever asks the result backend."""
    self.update_state(state="PROGRESS", meta={"done": 7})
    return str(self.request.id)


@app.task(bind=True)
def replaces(self: Any) -> Any:
    """Ask for another task in its place."""
    return self.replace(facts.s())


@app.task(bind=True)
def adds_to_chord(self: Any) -> Any:
    """Ask for another member."""
    return self.add_to_chord(facts.s())


# ------------------------------------------------------------------------------------------- failures
class NeedsTwo(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Holds(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = lambda: None


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Nested(NeedsTwo, ValueError):
    """Its base could be pickled in its place."""

    __init__ = NeedsTwo.__init__


def _deep(depth: int = 0) -> int:
    return _deep(depth + 1) + 1


def _local() -> None:
    class Local(Exception):
        """Of no module."""

    raise Local("here")


def _group() -> None:
    raise ExceptionGroup("two", [ValueError("first of two"), ExceptionGroup("inner", [KeyError("second of two")])])


def _chained() -> None:
    try:
        raise KeyError("cause")
    except KeyError as error:
        raise ValueError("effect") from error


def _throw(make: Callable[[], BaseException]) -> Callable[[], None]:
    def body() -> None:
        raise make()

    return body


def _numbers() -> Iterator[int]:
    yield 1


FAILURES: dict[str, Callable[[], Any]] = {
    "two arguments": _throw(lambda: NeedsTwo("a", "b")),
    "unpicklable": _throw(lambda: Holds("held")),
    "mute": _throw(Mute),
    "nested": _throw(lambda: Nested("a", "b")),
    "local": _local,
    "recursion": _deep,
    "group": _group,
    "chained": _chained,
    "surrogate": _throw(lambda: ValueError("bad \ud800 text")),
    "generator": _numbers,
    "function": lambda: _deep,
    "object": lambda: {"rows": [object()]},
    "set": lambda: {1, 2},
    "int key": lambda: {"a": {1: 2}},
    "exception as a result": lambda: ValueError("returned"),
    "memory": _throw(lambda: MemoryError("none left")),
}


@app.task
def fails(how: str) -> Any:
    """Fail in one of many ways."""
    return FAILURES[how]()


@app.task
def leaves(how: str) -> None:
    """Raise what is no `Exception`."""
    raise {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "asyncio": asyncio.CancelledError("stopped"),
        "own": type("Own", (BaseException,), {})("own"),
        "group": BaseExceptionGroup("some", [KeyboardInterrupt()]),
    }[how]


# ------------------------------------------------------------------------------------------- links
@app.task
def add(first: int, second: int) -> int:
    """Add."""
    return first + second


@app.task
def tell(what: Any, path: str, tag: str) -> Any:
    """Note what a callback was given."""
    note(path, tag, what)
    return what


@app.task
def errback_old(message_id: str, path: str) -> None:
    """An errback with the signature of Celery 3."""
    note(path, "old", message_id)


@app.task
def errback_new(request: Any, exc: BaseException, traceback: Any, path: str) -> None:
    """An errback with the signature since Celery 4."""
    note(path, "new", request.id, str(exc), type(exc).__name__, "in boom" in str(traceback))


@app.task
def boom(text: str) -> None:
    """Fail."""
    raise ValueError(text)


@app.task(bind=True)
def retries_then(self: Any, how: str) -> str:
    """Retry without throwing, then end as told."""
    if self.request.retries == 0:
        self.retry(throw=False, countdown=0.01)
    if how == "fails":
        raise ValueError(how)
    return how


@app.task
def naps(seconds: float) -> float:
    """Sleep."""
    time.sleep(seconds)
    return seconds


# ------------------------------------------------------------------------------------------- signals
@app.task(bind=True, max_retries=1)
def watched(self: Any, path: str, how: str) -> str:
    """A task that receivers of signals look at."""
    if how == "fails":
        raise ValueError(how)
    if how == "ignores":
        raise Ignore
    if how == "retries" and self.request.retries == 0:
        raise self.retry(countdown=0.01)
    return how


def _watch(name: str, signal: Any) -> None:
    def receive(sender: Any = None, **told: Any) -> None:
        if getattr(sender, "name", None) != watched.name:
            return
        request = told.get("request") or sender.request
        message_id = told.get("task_id") or request.id
        note(request.args[0], name, message_id, sender.name, str(told.get("result", told.get("exception", ""))))

    signal.connect(receive, weak=False)


for _name in ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry"):
    _watch(_name, getattr(signals, _name))


# ------------------------------------------------------------------------------------------- code of other versions
class Model(BaseModel):
    """A model."""

    name: str


class Renamed(Task):  # type: ignore[type-arg]
    """A class whose `run` differs."""

    name = "inside.renamed"

    if IN_WORKER:

        def run(self, only: int) -> int:
            """The older version."""
            return only
    else:

        def run(self, only: int, more: int) -> int:
            """The newer version."""
            return only + more


class Adds(Task):  # type: ignore[type-arg]
    """A base that hands its tasks one argument more."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, 1, **kwargs)


if IN_WORKER:

    def changed(only: int) -> int:
        """The older version."""
        return only

    def modelled(model: Model) -> str:
        """The older version."""
        return model.name
else:

    def changed(only: int, more: int) -> int:  # type: ignore[misc]
        """The newer version."""
        return only + more

    def modelled(model: Model, more: int) -> str:  # type: ignore[misc]
        """The newer version."""
        return model.name * more


def fits(path: str, value: Any) -> Any:
    """The call fits; the error is the body's."""
    note(path, "ran")
    return changed(value, value, value)


def given_more(first: int, second: int) -> int:
    """Fails inside, called with more than the message had."""
    return first + second + None  # type: ignore[operator]


ALWAYS = RetryPolicy(max_attempts=5, initial=0.01)
AGAIN: dict[str, Any] = {"autoretry_for": (Exception,), "retry_kwargs": {"countdown": 0.01, "max_retries": 4}}
mismatches = {
    "plain": app.task(name="inside.plain")(changed),
    "policy": poimen.task(name="inside.policy", retry=ALWAYS)(changed),
    "autoretry": app.task(name="inside.autoretry", **AGAIN)(changed),
    "both": poimen.task(name="inside.both", retry=ALWAYS, **AGAIN)(changed),
    "pydantic": app.task(name="inside.pydantic", pydantic=True)(modelled),
    "class": app.register_task(Renamed()),
}
body_errors = {
    "plain": app.task(name="inside.fits")(fits),
    "policy": poimen.task(name="inside.fits_policy", retry=RetryPolicy(max_attempts=2, initial=0.01))(fits),
    "autoretry": app.task(
        name="inside.fits_autoretry", autoretry_for=(Exception,), retry_kwargs={"countdown": 0.01, "max_retries": 1}
    )(fits),
}
adds = app.task(name="inside.adds", base=Adds, typing=False)(given_more)
