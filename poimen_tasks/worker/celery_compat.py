"""The only module that touches what Celery keeps private; a contract test holds it against the installed Celery.

An item inside a lane is run by Celery's own tracer (`celery.app.trace.build_tracer`), so that signals, hooks, logging
and `self.retry` are Celery's. Three seams turn its effects into ours:

- `task.backend` becomes a `LaneBackend`: what the tracer would store as a result is caught for the item that runs here.
- `task.signature_from_request` gives `self.retry` a signature that is kept instead of published.
- `task.replace` and `task.add_to_chord` refuse inside an item, because a batch's size is fixed.

A plain message of a task is run by the tracer that Celery keeps as `task.__trace__`. What is put there is wrapped (see
`check_tracer`), whoever built it and however often: the parent's consumer does, each pool process does.

Whoever wraps `build_tracer` to watch tasks (Sentry does) watches items too: see `_tracer_builder`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from billiard import pool as billiard_pool
from billiard.einfo import ExceptionInfo
from celery import _state, states
from celery.app import trace
from celery.exceptions import Ignore
from kombu import pools
from kombu.exceptions import EncodeError

from poimen_tasks.errors import Paused, SerializationError, UnsupportedWork
from poimen_tasks.store.wire import pack_result
from poimen_tasks.worker.failures import call_mismatch, described
from poimen_tasks.worker.retrying import install_retry

if TYPE_CHECKING:
    from celery import Celery, Task

__all__ = [
    "Capture",
    "KeptRetry",
    "PausedItem",
    "ResultError",
    "build_item_tracer",
    "capture_here",
    "check_tracer",
    "forget_connections",
    "hasten_exit",
    "ignored",
    "in_focus",
    "own_queues",
    "quicken_requests",
]


log = logging.getLogger(__name__)

_LEAST_LOOKS = 30  # of 0.1 s each


class _QuietLogger:
    """The tracer's logger, but that it says INFO is off when the tracer is built."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the logger's own name
        """Only what is worse than INFO."""
        return level > logging.INFO and self._logger.isEnabledFor(level)


def _no_text(_value: Any, _length: int | None = None) -> str:
    return ""


class _RequestStack(threading.local):
    """What Celery's `LocalStack` does, at a tenth of its cost: the requests that run in this thread."""

    def __init__(self) -> None:
        self.stack: list[Any] = []

    def push(self, request: Any) -> None:
        """A request begins."""
        self.stack.append(request)

    def pop(self) -> Any:
        """A request ends."""
        return self.stack.pop() if self.stack else None

    @property
    def top(self) -> Any:
        """The request that runs, or None."""
        return self.stack[-1] if self.stack else None

    def __len__(self) -> int:
        return len(self.stack)


def quicken_requests(app: Celery) -> None:
    """Give every task a quick stack of requests; before a worker builds its tracers, while nothing runs."""
    for task in app.tasks.values():
        if not task.request_stack:
            stack: Any = _RequestStack()
            task.request_stack = stack


def hasten_exit() -> None:
    """In a pool process: do not wait for half a minute at its end for a parent that listens no more.

    A message that comes in the moment of a warm shutdown is handed to a process and then dropped from the parent's
    book, so its result is never read, and the process waits for that. All others are read within milliseconds, and
    what a process has left in its pipe is read when it has ended.
    """
    counted: Any = billiard_pool
    counted.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = _LEAST_LOOKS


def forget_connections(app: Celery) -> None:
    """Close the app's connections to broker and result backend; the next use, in any thread, follows its settings."""
    inside = vars(app)
    broker = inside.get("_pool")
    if broker is not None:
        for group in (pools.producers, pools.connections):
            for key, pool in list(group.items()):
                if pool is broker or getattr(pool, "connections", None) is broker:
                    pool.force_close_all()
                    dict.__delitem__(group, key)
        inside["_pool"] = vars(app.amqp)["_producer_pool"] = None
        inside.pop("control", None)  # it keeps the producers that it took first
    backends = [inside.get("_backend_cache"), vars(inside["_local"]).get("backend")]
    # Backends of other threads go with them: what is kept for a thread is kept here.
    inside["_backend_cache"], inside["_local"] = None, threading.local()
    for backend in filter(None, backends):
        _close_backend(backend)


def _close_backend(backend: Any) -> None:
    consumer, client = getattr(backend, "result_consumer", None), vars(backend).get("client")
    if consumer is not None:
        consumer.stop()
    if hasattr(client, "connection_pool"):
        client.connection_pool.disconnect()


@contextmanager
def own_queues(app: Celery) -> Iterator[None]:
    """A worker that is started within chooses its queues; the app has its own choice again afterwards."""
    queues = vars(app.amqp.queues)
    chosen = queues.get("_consume_from")
    try:
        yield
    finally:
        queues["_consume_from"] = chosen


class _FocusStack:
    """Stands in for Celery's stack of running tasks within a claim: `in_focus` has put the task there once."""

    @staticmethod
    def push(_task: Any) -> None:
        """Nothing."""

    @staticmethod
    def pop() -> None:
        """Nothing."""


@contextmanager
def in_focus(task: Any) -> Iterator[None]:
    """The task is `celery.current_task` in this thread, for a whole claim instead of for each item."""
    if task is None:
        yield
        return
    stack: Any = vars(_state)["_task_stack"]
    stack.push(task)
    try:
        yield
    finally:
        stack.pop()


#: What Celery's function reads from here instead of from its own module. It catches `Ignore`, without hooks and log
#: lines; so an item leaves that raised our own `Paused` by itself.
_OURS = {
    "saferepr": _no_text,
    "logger": _QuietLogger(trace.logger),
    "_task_stack": _FocusStack,
    "Ignore": (Ignore, Paused),
}
_MOST_WRAPPERS = 8


def _copy(function: FunctionType, names: dict[str, Any], closure: tuple[CellType, ...] | None) -> FunctionType:
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _made_ours(function: Any, depth: int = 0) -> FunctionType | None:
    """A copy of Celery's `build_tracer` that reads three names from here; nothing in Celery itself is changed.

    A wrapper around Celery's function is copied too, with the copy inside. None when Celery's is not found in it.
    """
    if not isinstance(function, FunctionType) or depth > _MOST_WRAPPERS:
        return None
    if function.__globals__ is vars(trace) and function.__name__ == "build_tracer":
        return _copy(function, {**vars(trace), **_OURS}, function.__closure__)
    cells = function.__closure__ or ()
    for at, cell in enumerate(cells):
        try:
            inner = _made_ours(cell.cell_contents, depth + 1)
        except ValueError:  # an empty cell
            continue
        if inner is not None:
            return _copy(function, function.__globals__, (*cells[:at], CellType(inner), *cells[at + 1 :]))
    return None


def _tracer_builder() -> Callable[..., Any]:
    """What builds tracers of items. Looked up when one is built: Sentry may be set up before us or after.

    A wrapper that hides Celery's function otherwise is used as it is: items cost more then, and are watched all the
    same.
    """
    return _made_ours(trace.build_tracer) or trace.build_tracer


_CHECK, _TRACE = "_poimen_check", "__trace__"

#: Wraps a tracer: takes the task and its tracer, returns what runs instead.
Check = Callable[[Any, Callable[..., Any]], Callable[..., Any]]


class _CheckedTracer:
    """Stands for `__trace__` in a task's class: a tracer that is put there is wrapped where the task has a check."""

    def __get__(self, task: Any, owner: Any = None) -> Any:
        return None if task is None else vars(task).get(_TRACE)

    def __set__(self, task: Any, tracer: Any) -> None:
        check = vars(task).get(_CHECK)
        vars(task)[_TRACE] = tracer if tracer is None or check is None else check(task, tracer)


def check_tracer(task: Task[Any, Any], check: Check) -> None:
    """Have whatever tracer runs plain messages of this task wrapped, now and whenever another is built. Once a task.

    Calls in the caller's process and items of batches have tracers of their own, which are left alone.
    """
    kind: Any = task.__class__
    mine = vars(task)
    if _CHECK in mine:
        return
    # Only in the task's own class: Celery makes one for each function. Tasks of other apps in it have no check.
    if not any(isinstance(vars(base).get(_TRACE), _CheckedTracer) for base in kind.__mro__):
        setattr(kind, _TRACE, _CheckedTracer())
    mine[_CHECK] = check
    built = mine.get(_TRACE)
    if built is not None:
        task.__trace__ = built


def ignored(reason: str) -> Any:
    """What a tracer returns for a body that raised `Ignore`: acknowledged, neither a success nor a failure."""
    try:
        raise Ignore(reason)  # noqa: TRY301 - the information about an exception is that of one being handled
    except Ignore as error:
        return trace.trace_ok_t(ExceptionInfo(internal=True), trace.TraceInfo(states.IGNORED, error), 0.0, None)


class PausedItem(Paused, Ignore):
    """What `checkpoint()` raises: Celery's own wrappers let it pass, and its tracer takes it for no failure."""


class ResultError(SerializationError, EncodeError):
    """A task's return value does not travel; the tracer knows `EncodeError` and fails the task."""


class KeptRetry:
    """What `self.retry` asked for: stands in for the signature that Celery would publish."""

    def __init__(self, request: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self._request = request

    def apply_async(self, *_args: Any, **_options: Any) -> None:
        """Keep it: the lane records the retry together with the outcomes around it."""
        _captures.current.retry = self
        # With throw=False the body goes on, and may return: its links belong to the attempt that is the last.
        self._request.callbacks = None


class Capture:
    """What the tracer said about the item that runs in this thread; refilled for each item."""

    __slots__ = ("error", "limit", "message_id", "result", "retry", "state")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.message_id: str | None = None
        self.state: str | None = None
        self.result: Any = None
        self.error: tuple[str, str, str] | None = None
        self.retry: KeptRetry | None = None

    def reset(self, message_id: str | None) -> None:
        """Begin with another item."""
        self.message_id = message_id
        self.state = self.error = self.retry = self.result = None


class _Captures(threading.local):
    current: Capture = Capture(None)


_captures = _Captures()


def capture_here(capture: Capture) -> Capture:
    """Items that run in this thread from now on report to this capture. Returns the one before: eager lanes nest."""
    before = _captures.current
    _captures.current = capture
    return before


class LaneBackend:
    """Catches what the tracer stores for the item of this thread; passes everything else to the task's backend."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self._task = task
        self._own: Any = vars(task).get("_backend")

    def _backend(self) -> Any:
        """The task's own backend, else the app's, of which each thread may have one."""
        return self._task.app.backend if self._own is None else self._own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend(), name)

    def process_cleanup(self) -> None:
        """Celery calls this after each task; within a lane once, after the lane, is enough."""
        if _captures.current.message_id is None:
            self._backend().process_cleanup()

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        """Swallow STARTED of our item; a state of the user's own goes to the app's backend."""
        if task_id == _captures.current.message_id and state == states.STARTED:
            return result
        return self._backend().store_result(task_id, result, state, *args, **kwargs)

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, **kwargs: Any
    ) -> None:
        """Our item succeeded; encoded here, so that a result that does not travel fails the item with all hooks."""
        current = _captures.current
        if task_id != current.message_id:
            self._backend().mark_as_done(task_id, result, request, store_result, **kwargs)
            return
        if current.retry is not None:
            return
        try:
            current.result = pack_result(result, what=f"item {task_id}: result", limit=current.limit)
        except SerializationError as error:
            raise ResultError(str(error)) from error
        current.state = states.SUCCESS

    def mark_as_failure(  # noqa: PLR0917 - Celery's signature
        self,
        task_id: str,
        exc: BaseException,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        call_errbacks: bool = True,
        **kwargs: Any,
    ) -> None:
        """Our item failed; its own errbacks run as Celery runs them."""
        current = _captures.current
        if task_id != current.message_id:
            self._backend().mark_as_failure(task_id, exc, traceback, request, store_result, call_errbacks, **kwargs)
            return
        if current.retry is not None or current.state is not None:
            return  # it runs again, or has ended: a hook of its own failed afterwards
        # Celery hands on a stand-in for what cannot be pickled; what was raised is at hand here.
        raised = sys.exc_info()[1] or exc
        if request is not None:
            raised = call_mismatch(self._task, request.args, request.kwargs, raised) or raised
        current.state = states.FAILURE
        current.error = described(raised, str(traceback or "") if raised is exc else None)
        if call_errbacks and request is not None and request.errbacks:
            self._call_errbacks(request, exc, traceback)

    def _call_errbacks(self, request: Any, exc: BaseException, traceback: Any) -> None:
        try:
            self._backend()._call_task_errbacks(request, exc, traceback)  # noqa: SLF001
        except Exception:
            # The item has failed all the same; the broker's error would hide why.
            log.exception("item %s: its errbacks could not be called", request.id)

    def mark_as_retry(self, task_id: str, exc: BaseException | None, traceback: Any = None, **kwargs: Any) -> None:
        """Our item retries: `self.retry` has told what to do, the error is kept for the log."""
        current = _captures.current
        if task_id != current.message_id:
            self._backend().mark_as_retry(task_id, exc, traceback, **kwargs)
            return
        current.error = None if exc is None else described(exc, "")


def _keep_retries(task: Task[Any, Any]) -> None:
    """Give `self.retry` of our items a signature that is kept."""
    original = task.signature_from_request

    def signature_from_request(
        request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **options: Any
    ) -> Any:
        asked = task.request if request is None else request
        if asked.id is not None and asked.id == _captures.current.message_id:
            mismatch = call_mismatch(task, asked.args, asked.kwargs, sys.exc_info()[1])
            if mismatch is not None:
                raise mismatch  # another attempt here would end alike, however often it is asked for
            if args is None and kwargs is None:
                return KeptRetry(asked, None, None, options)
            whole = (asked.args if args is None else args, asked.kwargs if kwargs is None else kwargs)
            return KeptRetry(asked, *whole, options)
        return original(request, args, kwargs, queue, **options)

    task.signature_from_request = signature_from_request  # type: ignore[method-assign]


def _refuse(task: Task[Any, Any], name: str) -> None:
    original = getattr(task, name)

    def refusing(*args: Any, **kwargs: Any) -> Any:
        if task.request.id is not None and task.request.id == _captures.current.message_id:
            raise UnsupportedWork(
                f"self.{name}() in an item of a batch is not supported: a batch's size is fixed; dispatch another batch"
            )
        return original(*args, **kwargs)

    setattr(task, name, refusing)


def _open_seams(task: Task[Any, Any]) -> None:
    if isinstance(vars(task).get("_backend"), LaneBackend):
        return
    stand_in: Any = LaneBackend(task)
    task.backend = stand_in
    _keep_retries(task)
    for name in ("replace", "add_to_chord"):
        _refuse(task, name)


def build_item_tracer(app: Celery, task: Task[Any, Any], hostname: str) -> Callable[..., Any]:
    """Celery's tracer for items of a task, without what only serves its log line of a success.

    That line, and the text of the result made for it, would cost more than a short item. Failures and retries are
    logged as always.
    """
    install_retry(task)  # it may have been registered after the worker began
    _open_seams(task)
    return _tracer_builder()(task.name, task, app.loader, hostname, app=app)  # type: ignore[no-any-return]
