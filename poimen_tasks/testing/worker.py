"""A Celery worker in a thread of this process: real messages, real lanes, and bodies that a test can patch."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from celery import current_app, signals
from celery.app import default_app
from celery.result import allow_join_result
from celery.worker import WorkController
from celery.worker import state as worker_state
from kombu.exceptions import OperationalError

from poimen_tasks._checks import check_count, check_list
from poimen_tasks.errors import PoimenError
from poimen_tasks.worker.celery_compat.app_state import own_queues

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.app import Poimen

__all__ = ["EmbeddedWorker"]

_POLL = 0.01
_WAKE = 2.0
_LOOKS = 5.0  # one that waits for its broker looks once a second whether it shall stop; sooner it would stay for ever
_TICK = 0.05


class EmbeddedWorker:
    """A worker for tests, with its keeper; a context manager.

    It is a Celery worker but for what belongs to a process of its own: signal handlers, logging, and processes for the
    bodies. So time limits are not enforced, and a body that never returns keeps `stop()` from ending.

    Args:
        poimen: whose tasks it runs.
        pool: `threads` or `solo`.
        concurrency: how many bodies at a time; solo has one.
        queues: the queues it serves; None: those of the app.
        timeout: seconds for its start, and for its end.

    Raises:
        InvalidArgument: the concurrency is no number from 1, or the queues are no list.

    Raises (on start):
        PoimenError: it was not ready in time.
        SettingsError: there is no Redis.
    """

    def __init__(
        self,
        poimen: Poimen,
        *,
        pool: str = "threads",
        concurrency: int = 4,
        queues: Sequence[str] | None = None,
        timeout: float = 15.0,
    ) -> None:
        if pool not in ("threads", "solo"):
            raise PoimenError(f"pool {pool!r:.60} cannot run inside a test's process; use threads or solo")
        self.hostname = f"test-{secrets.token_hex(4)}@embedded"
        self.pool = pool
        check_count("concurrency", concurrency)
        self.concurrency = concurrency if pool == "threads" else 1
        self.queues = None if queues is None else check_list("queues", "names of queues", queues)
        self.timeout = timeout
        self._app: Celery = poimen.celery
        self._thread: threading.Thread | None = None
        self._consumer: Any = None
        self._around = ExitStack()

    def __repr__(self) -> str:
        return f"EmbeddedWorker({self.hostname!r}, pool={self.pool!r}, concurrency={self.concurrency})"

    @property
    def alive(self) -> bool:
        """True from its start to its end."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Self:
        """Start it, and return when it takes messages; nothing happens when it runs already."""
        if self.alive:
            return self
        ready = threading.Event()
        with ExitStack() as around:
            around.enter_context(_current(self._app))
            around.enter_context(own_queues(self._app))
            # Celery forbids to wait for a result where a worker runs; the test is not one of its tasks.
            around.enter_context(allow_join_result())
            worker = self._make(ready)
            self._thread = threading.Thread(target=worker.start, name=f"poimen-worker-{self.hostname}", daemon=True)
            self._thread.start()
            try:
                self._await(ready)
            except PoimenError:
                with suppress(PoimenError):  # the first error tells more
                    self._end()
                raise
            around.callback(self._end)
            around.enter_context(allow_join_result())
            self._around = around.pop_all()
        return self

    def stop(self) -> None:
        """Let running bodies end, give back what has not begun, and stop its threads; harmless when it has ended.

        Raises:
            PoimenError: a body goes on; its thread is left behind.
        """
        self._around.close()

    def reload(self) -> None:
        """Also take plain calls of tasks that were defined after its start; items of a batch need no such thing."""
        self._consumer.update_strategies()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make(self, ready: threading.Event) -> Any:
        self._app.finalize()

        def on_ready(consumer: Any) -> None:
            self._consumer = consumer
            # At its end a worker waits for its timer, which sleeps for a second where nothing is due, and for the
            # broker's answer that no message has come, which takes a second, too.
            consumer.timer.call_repeatedly(_TICK, _nothing)
            consumer.task_consumer.channel.brpop_timeout = _TICK
            signals.worker_ready.send(sender=consumer)
            ready.set()

        return WorkController(
            app=self._app,
            hostname=self.hostname,
            pool=self.pool,
            concurrency=self.concurrency,
            queues=self.queues,
            ready_callback=on_ready,
            # Celery's loop of events puts locks out of use that the rest of this process needs.
            use_eventloop=False,
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )

    def _await(self, ready: threading.Event) -> None:
        waited = 0.0
        while not ready.wait(_POLL):
            waited += _POLL
            if not self.alive or waited > self.timeout:
                raise PoimenError(
                    f"worker {self.hostname} {'was not ready in time' if self.alive else 'ended at its start'}; "
                    "Celery's log says why"
                )

    def _end(self) -> None:
        if self._thread is None:
            return
        # Lanes give up their slots, as at a warm shutdown; the message wakes the worker's loop.
        signals.worker_shutting_down.send(sender=self.hostname, sig="stop", how="Warm", exitcode=0)
        if self.alive and self._consumer is not None:
            with suppress(OperationalError):  # the broker is gone
                self._app.control.shutdown(destination=[self.hostname])
            self._thread.join(min(_WAKE, self.timeout))
        if self.alive:
            with _asked_to_stop():
                self._thread.join(max(_LOOKS, self.timeout))
        if self.alive:
            raise PoimenError(f"worker {self.hostname} did not stop within {self.timeout:g} s: a body is still running")
        self._thread = self._consumer = None


def _nothing() -> None:
    """Keep the timer awake."""


def _behind(proxy: Any) -> Any:
    return proxy._get_current_object()  # noqa: SLF001 - what a proxy's documentation tells to call


@contextmanager
def _current(app: Celery) -> Iterator[None]:
    """The app is the current one here, and the default one in the worker's threads."""
    # In this order: asking for the current app makes a default one where there is none.
    current, default = map(_behind, (current_app, default_app))
    app.set_current()
    app.set_default()
    try:
        yield
    finally:
        default.set_default()
        current.set_current()


@contextmanager
def _asked_to_stop() -> Iterator[None]:
    """The message did not come through, as with a server that is gone: ask every worker of this process."""
    state: Any = worker_state
    state.should_stop = 0
    try:
        yield
    finally:
        state.should_stop = None
