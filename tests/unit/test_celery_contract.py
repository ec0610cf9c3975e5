"""What we rely on inside Celery, held against the installed version: its tracer, its hooks, its request class."""

from __future__ import annotations

import ast
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_task, signals
from celery.app import trace
from celery.backends.base import Backend
from celery.exceptions import Ignore
from celery.worker.request import Request

from poimen_tasks.errors import UnsupportedWork
from poimen_tasks.store.columns import Encoded
from poimen_tasks.worker.celery_compat.app_state import forget_connections, own_queues
from poimen_tasks.worker.celery_compat.capture import Capture, KeptRetry, capture_here
from poimen_tasks.worker.celery_compat.item_tracer import build_item_tracer
from poimen_tasks.worker.celery_compat.pool_exit import hasten_exit
from poimen_tasks.worker.celery_compat.stacks import in_focus, quicken_requests
from tests.conftest import ROOT

Run = Callable[..., Any]


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app without broker and results."""
    app = Celery("contract", set_as_current=False)
    yield app
    app.close()


class Kept(Capture):
    """A capture that also keeps what the tracer returned."""

    __slots__ = ("info",)


@pytest.fixture
def run(app: Celery) -> Iterator[Run]:
    """Runs a task's item with our tracer and gives what was captured."""
    outer = capture_here(Capture(None))

    def run(task: Any, *args: Any, retries: int = 0) -> Kept:
        capture = Kept(None)
        capture_here(capture)
        tracer = build_item_tracer(app, task, "here")
        capture.reset("b.7")
        request = {"id": "b.7", "headers": {}, "is_eager": False, "retries": retries, "hostname": "here"}
        with in_focus(task):
            capture.info = tracer("b.7", list(args), {}, request)[1]
        capture.message_id = None
        return capture

    yield run
    capture_here(outer)


PRIVATE = ("celery.app.trace", "billiard.pool")


def imported(path: Path) -> Iterator[str]:
    """Every module and name that a file imports, with its full name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_package_imports_what_is_private() -> None:
    """Names that begin with an underscore, the tracer and billiard's pool are imported in `celery_compat` only."""
    package = ROOT / "poimen_tasks"
    found = {
        path.relative_to(package).parts[:2]
        for path in package.rglob("*.py")
        for name in imported(path)
        if name.startswith(("celery.", "kombu.", "billiard.")) and (name.startswith(PRIVATE) or "._" in name)
    }
    assert found == {("worker", "celery_compat")}


def test_the_tracer_reads_what_we_replace() -> None:
    """The names that we give the tracer's function are names it reads."""
    inner = [code for code in trace.build_tracer.__code__.co_consts if inspect.iscode(code)]
    names = {*trace.build_tracer.__code__.co_names, *(name for code in inner for name in code.co_names)}
    assert {"saferepr", "logger", "_task_stack"} <= names


def test_the_backend_has_what_we_catch() -> None:
    """The methods that the tracer calls, with the arguments we name."""
    for name in ("mark_as_done", "mark_as_failure", "mark_as_retry", "store_result", "process_cleanup"):
        assert callable(getattr(Backend, name))
    assert list(inspect.signature(Backend.mark_as_failure).parameters)[1:7] == [
        "task_id", "exc", "traceback", "request", "store_result", "call_errbacks",
    ]  # fmt: skip
    assert callable(Backend._call_task_errbacks)


def test_the_request_class_has_the_hooks() -> None:
    """The parent tells of a start, a lost child and a hard limit through these."""
    assert list(inspect.signature(Request.on_accepted).parameters) == ["self", "pid", "time_accepted"]
    assert list(inspect.signature(Request.on_timeout).parameters) == ["self", "soft", "timeout"]
    assert list(inspect.signature(Request.on_failure).parameters)[:2] == ["self", "exc_info"]


def test_success_hooks_and_signals(app: Celery, run: Run) -> None:
    """A success is captured encoded; hooks and signals fire once, with the item's message id."""
    seen: list[tuple[str, Any]] = []

    class Hooked(app.Task):  # type: ignore[name-defined,misc]
        """A custom base."""

        def before_start(self, task_id: str, *_: Any) -> None:
            seen.append(("before", task_id))

        def on_success(self, retval: Any, *_: Any) -> None:
            seen.append(("success", retval))

        def after_return(self, status: str, *_: Any) -> None:
            seen.append(("after", status))

    @app.task(base=Hooked, bind=True, shared=False)
    def double(self: Any, value: int) -> dict[str, Any]:
        seen.append(("body", (self.request.id, self.request.retries, current_task.name)))
        return {"value": value * 2}

    def prerun(task_id: str, **_: Any) -> None:
        seen.append(("prerun", task_id))

    signals.task_prerun.connect(prerun, sender=double)
    quicken_requests(app)
    capture = run(double, 21)
    assert capture.state == "SUCCESS"
    assert isinstance(capture.result, Encoded)
    assert [name for name, _ in seen] == ["prerun", "before", "body", "success", "after"]
    assert dict(seen)["body"] == ("b.7", 0, double.name)


def test_a_failure_is_data(app: Celery, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Class name, text and traceback are captured, the failure hook runs, and the failure is logged as always."""
    failed: list[Any] = []

    @app.task(shared=False)
    def fails() -> None:
        raise ZeroDivisionError("nought")

    signals.task_failure.connect(lambda **told: failed.append(told["task_id"]), sender=fails, weak=False)
    with caplog.at_level(logging.ERROR, "celery.app.trace"):
        capture = run(fails)
    assert capture.state == "FAILURE"
    assert capture.error is not None
    assert capture.error[:2] == ("ZeroDivisionError", "nought")
    assert "in fails" in capture.error[2]
    assert failed == ["b.7"]
    assert "nought" in caplog.text


def test_a_success_is_not_logged(app: Celery, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A line a success would cost more than a short item."""

    @app.task(shared=False)
    def quiet() -> None:
        """Nothing."""

    with caplog.at_level(logging.DEBUG, "celery.app.trace"):
        run(quiet)
    assert caplog.text == ""


def test_self_retry_is_kept_not_published(app: Celery, run: Run) -> None:
    """`self.retry` publishes nothing here; its arguments and delay are kept."""

    @app.task(bind=True, shared=False)
    def again(self: Any, value: int) -> None:
        raise self.retry(args=(value + 1,), countdown=4)

    capture = run(again, 1)
    assert capture.state is None
    assert capture.retry is not None
    assert (capture.retry.args, capture.retry.options["countdown"]) == ((2,), 4)


def test_other_calls_of_the_same_task_are_untouched(app: Celery, run: Run) -> None:
    """Outside of an item the task's backend, retries and replace are Celery's own."""

    @app.task(bind=True, shared=False)
    def plain(self: Any) -> str:
        return str(self.request.called_directly)

    run(plain)
    assert plain() == "True"
    assert plain.backend.as_uri() == app.backend.as_uri()
    assert not isinstance(plain.signature_from_request(plain.request), KeptRetry)


def test_a_retry_that_goes_on_and_fails_is_a_retry(app: Celery, run: Run) -> None:
    """After `retry(throw=False)` neither a failure nor a result of the same run counts, nor does an errback run."""

    @app.task(bind=True, shared=False)
    def goes_on(self: Any) -> None:
        self.retry(throw=False)
        raise ValueError("afterwards")

    capture = run(goes_on)
    assert capture.retry is not None
    assert (capture.state, capture.error) == (None, None)


def wrapping(build: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    """A wrapper as Sentry has one: a closure over Celery's function."""

    def build_tracer(name: Any, task: Any, *args: Any, **options: Any) -> Any:
        tracer = build(name, task, *args, **options)

        def watched(*call: Any) -> Any:
            seen.append(call[0])
            return tracer(*call)

        return watched

    return build_tracer


class Hidden:
    """A wrapper whose Celery function cannot be found."""

    def __init__(self, build: Callable[..., Any], seen: list[str]) -> None:
        self.inner = wrapping(build, seen)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Build."""
        return self.inner(*args, **options)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("kind", "quiet"), [(wrapping, True), (Hidden, False)])
@pytest.mark.usefixtures("logged")
def test_who_wraps_the_tracer_sees_items(run: Run, wrapped: Any, caplog: pytest.LogCaptureFixture, quiet: bool) -> None:
    """Wrappers around `build_tracer` see each item, whenever they came; ours is inside them where it can be."""
    task, seen, times = wrapped
    assert run(task).state == "SUCCESS"
    assert seen == ["b.7"] * times
    assert (caplog.text == "") is quiet


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What the tracer says of a success is heard."""
    with caplog.at_level(logging.INFO, "celery.app.trace"):
        yield


@pytest.fixture
def wrapped(app: Celery, monkeypatch: pytest.MonkeyPatch, kind: Any, times: int) -> tuple[Any, list[str], int]:
    """A task, what wrappers around the tracer saw of it, and how many there are."""
    seen: list[str] = []
    build: Any = trace.build_tracer
    for _ in range(times):
        build = kind(build, seen)
    monkeypatch.setattr(trace, "build_tracer", build)

    @app.task(shared=False)
    def plain() -> str:
        return str(current_task.name)

    return plain, seen, times


def test_each_thread_has_the_backend_of_its_own(app: Celery, run: Run) -> None:
    """A backend that threads do not share is asked for in the thread that runs the item."""
    app.conf.result_backend = "cache+memory://"

    @app.task(bind=True, shared=False)
    def asks(self: Any) -> None:
        backends.append(self.backend._backend())

    backends: list[Any] = []
    run(asks)
    thread = threading.Thread(target=lambda: backends.append(asks.backend._backend()))
    thread.start()
    thread.join()
    assert backends[0] is app.backend
    assert backends[1] is not backends[0]


@pytest.mark.parametrize("name", ["replace", "add_to_chord"])
def test_what_changes_a_batch_is_refused(app: Celery, run: Run, name: str) -> None:
    """`self.replace` and `self.add_to_chord` fail their item clearly (fault A24)."""

    @app.task(bind=True, shared=False, name=f"changes.{name}")
    def changes(self: Any) -> None:
        getattr(self, name)(self.s())

    capture = run(changes)
    assert capture.error is not None
    assert capture.error[0] == UnsupportedWork.__name__


def test_ignore_reaches_us(app: Celery, run: Run) -> None:
    """`Ignore` is neither success nor failure; the tracer says which it was."""

    @app.task(shared=False)
    def ignores() -> None:
        raise Ignore

    capture = run(ignores)
    assert capture.state is None
    assert isinstance(capture.info.retval, Ignore)


def test_a_broken_exception_is_recorded_all_the_same(app: Celery, run: Run) -> None:
    """An exception whose text cannot be made is recorded by its name."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @app.task(shared=False)
    def breaks() -> None:
        raise Broken

    capture = run(breaks)
    assert capture.error is not None
    assert capture.error[0].endswith("Broken")
    assert capture.error[1]


def test_connections_follow_the_settings_once_forgotten(app: Celery) -> None:
    """What an app keeps of broker and result backend is made anew, by the settings of then."""
    app.conf.update(broker_url="memory://one//", result_backend="cache+memory://")
    pool, producers, backend = app.pool, app.amqp.producer_pool, app.backend
    assert (app.pool, app.amqp.producer_pool, app.backend) == (pool, producers, backend)
    forget_connections(app)
    app.conf.broker_url = "memory://two//"
    assert app.pool is not pool
    assert app.amqp.producer_pool is not producers
    assert app.backend is not backend
    assert "two" in app.producer_pool.connections.connection.as_uri()
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire()


def test_a_worker_of_a_while_leaves_the_queues_as_they_were(app: Celery) -> None:
    """Queues chosen for a worker are the app's choice only while it runs."""
    app.conf.task_default_queue = "mine"
    with own_queues(app):
        app.amqp.queues.select(["slow"])
        assert list(app.amqp.queues.consume_from) == ["slow"]
    assert list(app.amqp.queues.consume_from) == ["mine"]


def test_a_process_does_not_wait_long_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool process looks for its parent to have read everything as often as a number says that we may lower."""
    from billiard import pool

    monkeypatch.setattr(pool, "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT", 300)
    monkeypatch.setattr(pool, "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL", 0)
    looks: list[int] = []

    class Counter:
        @property
        def value(self) -> int:
            looks.append(1)
            return 0

    hasten_exit()
    worker = pool.Worker.__new__(pool.Worker)
    worker.on_ready_counter = Counter()
    assert worker._ensure_messages_consumed(completed=1) is False
    assert len(looks) == 30
