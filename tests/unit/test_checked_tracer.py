"""What runs plain messages inside Celery: every way leads through `__trace__`, which is wrapped, whoever builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.app import trace
from celery.exceptions import Ignore

from poimen_tasks.worker.celery_compat.plain_tracer import check_tracer, ignored

NAME = "contract.double"


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app without broker and results."""
    app = Celery("checked", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def seen() -> list[str]:
    """Ids of the messages that were asked for."""
    return []


@pytest.fixture
def task(app: Celery, seen: list[str]) -> Any:
    """A task whose plain messages are asked for, and kept from running when their id says so."""

    @app.task(name=NAME, ignore_result=True, shared=False)
    def double(value: int) -> int:
        return 2 * value

    found: Any = app.tasks[NAME]

    def check(_task: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
        def checked(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
            seen.append(uuid)
            return ignored("held") if uuid == "held" else tracer(uuid, args, kwargs, request)

        return checked

    check_tracer(found, check)
    check_tracer(found, check)  # once a task
    return found


def request(uuid: str) -> dict[str, Any]:
    """What a worker knows of a message."""
    return {"id": uuid, "task": NAME, "is_eager": False, "retries": 0, "hostname": "here", "args": (), "kwargs": {}}


def through_pool(task: Any, uuid: str) -> Any:
    """As a pool process runs it."""
    place = ({NAME: task}, None, "here")
    return trace.fast_trace_task(NAME, uuid, request(uuid), ((4,), {}, {}), None, None, _loc=place)


def through_task(task: Any, uuid: str) -> Any:
    """As the other pools run it."""
    return trace.trace_task(task, uuid, (4,), {}, request(uuid))


@pytest.mark.parametrize("run", [through_pool, through_task])
def test_every_way_is_asked(app: Celery, task: Any, seen: list[str], run: Callable[..., Any]) -> None:
    """Whichever tracer was put there, and however often another is: a message is asked for once."""
    for uuid in ("one", "two"):
        task.__trace__ = trace.build_tracer(NAME, task, app.loader, "here", app=app)
        assert run(task, uuid)[0] in (0, 8)  # no error; the value itself
    assert seen == ["one", "two"]


@pytest.mark.parametrize("run", [through_pool, through_task])
def test_what_is_held_does_not_run(app: Celery, task: Any, run: Callable[..., Any]) -> None:
    """What the check refuses looks like `Ignore` to the worker: acknowledged, neither a success nor a failure."""
    task.__trace__ = trace.build_tracer(NAME, task, app.loader, "here", app=app)
    (told,) = [one for one in run(task, "held") if isinstance(one, ExceptionInfo)]
    assert isinstance(getattr(told.exception, "exc", told.exception), Ignore)


def test_a_tracer_that_was_there_is_wrapped(app: Celery, seen: list[str]) -> None:
    """A task that has its tracer already, as in a worker that runs, is asked for from then on."""

    @app.task(name="contract.late", ignore_result=True, shared=False)
    def late() -> None:
        """Nothing."""

    found: Any = app.tasks["contract.late"]
    found.__trace__ = trace.build_tracer("contract.late", found, app.loader, "here", app=app)
    check_tracer(found, lambda _task, tracer: lambda *args: (seen.append(args[0]), tracer(*args))[1])
    trace.trace_task(found, "x", (), {}, {**request("x"), "task": "contract.late"})
    assert seen == ["x"]


def test_other_tasks_and_direct_calls_are_left_alone(app: Celery, task: Any, seen: list[str]) -> None:
    """A task without a check has Celery's tracer itself; `apply` and a call in the caller's process ask nobody."""

    @app.task(name="contract.other", shared=False)
    def other() -> None:
        """Nothing."""

    free: Any = app.tasks["contract.other"]
    built = trace.build_tracer("contract.other", free, app.loader, "here", app=app)
    free.__trace__ = built
    assert free.__trace__ is built
    assert (task(4), task.apply((4,)).get()) == (8, 8)
    assert seen == []
