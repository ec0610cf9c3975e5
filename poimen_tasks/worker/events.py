"""Celery's task events for items: buffered as plain dicts, sampled, and published in batches beside the work.

Flower, `celery events` and whatever else listens show an item as a task. An event is a wish, not a record: what cannot
be sent is counted and forgotten, and no item ever waits for it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from celery.events.event import get_exchange
from celery.utils.saferepr import saferepr
from celery.utils.time import utcoffset

from poimen_tasks.worker.fork_gate import GATE

if TYPE_CHECKING:
    from celery import Celery

__all__ = [
    "EventStream",
    "TaskEvent",
    "Watched",
    "are_enabled",
    "failure_text",
    "short",
    "short_repr",
    "traceback_text",
]

log = logging.getLogger(__name__)

_BATCH = 100
"""Events in one message: larger ones make Redis drop a slow listener."""
_INTERVAL = 0.25
_PAUSE = 0.05
_MOST_BUFFERED = 10_000
_MOST_TEXT, _MOST_TRACEBACK = 1024, 4096

_SECRET = re.compile(
    r"""((['"])[\w.-]*(?:passw(?:or)?d|secret|token|api_?key|credential|authorization)[\w.-]*\2: )"""
    r"""b?(['"])(?:\\.|(?!\3).)*(?:\3|$)""",
    re.IGNORECASE | re.DOTALL,
)
_URL_PASSWORD = re.compile(r"""(://[^\s/:@'"]*:)[^\s/@'"]+@""")

#: One event as it goes out.
TaskEvent = dict[str, Any]


def short(text: str, most: int = _MOST_TEXT) -> str:
    """A text cut to a length, without what looks like a password in a URL or under a name that says so."""
    if ": " in text:
        text = _SECRET.sub(r"\1'***'", text)
    if "://" in text:
        text = _URL_PASSWORD.sub(r"\1***@", text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def short_repr(value: Any) -> str:
    """A value's repr, cut as Celery cuts it; a value whose repr fails has its type's name."""
    if _is_short(value) or (type(value) is tuple and len(value) < 8 and all(map(_is_short, value))):
        return short(repr(value))  # what most calls look like; Celery's own takes five times as long
    try:
        return short(saferepr(value, maxlen=_MOST_TEXT))
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def failure_text(kind: str, message: str) -> str:
    """An error as Celery's events show one: `ValueError('no')`."""
    return short(f"{kind}({message[:_MOST_TEXT]!r})")


def traceback_text(text: str) -> str:
    """The beginning and the end of a traceback."""
    half = _MOST_TRACEBACK // 2
    return short(text if len(text) <= _MOST_TRACEBACK else f"{text[:half]}\n...\n{text[-half:]}", _MOST_TRACEBACK + 5)


def are_enabled(consumer: Any) -> bool:
    """Whether a worker's task events are on: from its start, or by `celery control enable_events`."""
    dispatcher = getattr(consumer, "event_dispatcher", None)
    return bool(dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))


def _is_short(value: Any) -> bool:
    kind = type(value)
    return kind is int or kind is float or kind is bool or value is None or (kind is str and len(value) < 120)


class Watched(Protocol):
    """What runs now and may have something to tell."""

    def look(self) -> None:
        """Called a few times a second, from the stream's own thread."""


class EventStream:
    """One process's way to whoever listens.

    Args:
        app: whose broker carries the events.
        hostname: the worker's node name; with another one a phantom worker would show up.
        rate: items a second that are told, at most; 0: only those that failed, were retried or cancelled.
        wanted: whether the worker's events are enabled now.
    """

    def __init__(self, app: Celery, *, hostname: str, rate: float, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted
        self.rate = rate
        self.dropped = 0
        self._app: Any = app  # the stubs know no clock
        self._hostname = hostname
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._most = max(1.0, rate) if rate else 0.0
        self._tokens, self._refilled = self._most, time.monotonic()
        self._buffer: deque[TaskEvent] = deque()
        self._watched: set[Watched] = set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._producer: Any = None
        self._failing = False

    # -- what a lane calls -------------------------------------------------------------------------------------------

    def take(self, wanted: int) -> int:
        """How many of so many items are told now: a bucket that holds a second's worth."""
        if not self.rate:
            return 0
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._most, self._tokens + (now - self._refilled) * self.rate)
            self._refilled = now
            granted = min(wanted, max(0, int(self._tokens)))
            self._tokens -= granted
        return granted

    def event(self, kind: str, uuid: str, timestamp: float, **fields: Any) -> TaskEvent:
        """An event with what each of them carries."""
        return {
            "type": kind,
            "uuid": uuid,
            "hostname": self._hostname,
            "pid": self._pid,
            "timestamp": timestamp,
            "utcoffset": utcoffset(),
            "clock": self._app.clock.forward(),
            **fields,
        }

    def add(self, events: list[TaskEvent]) -> None:
        """Have them sent soon; when too many wait already, they are dropped."""
        if len(self._buffer) + len(events) > _MOST_BUFFERED:
            self._drop(len(events), "too many wait to be sent")
            return
        self._buffer.extend(events)
        if self._thread is None:
            self._start()
        if len(self._buffer) >= _BATCH or not self._watched:
            self._wake.set()

    def watch(self, watched: Watched) -> None:
        """Look there a few times a second, until `unwatch`."""
        self._watched.add(watched)
        if self._thread is None:
            self._start()
        self._wake.set()

    def unwatch(self, watched: Watched) -> None:
        """It is over; what it told goes out at once."""
        self._watched.discard(watched)
        self._wake.set()

    def close(self, timeout: float = 1.0) -> None:
        """Send what there is, for so many seconds at most: the process ends."""
        thread = self._thread
        self._closing = True
        self._wake.set()
        if thread is not None:
            thread.join(timeout)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="poimen-events", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_INTERVAL if self._watched or self._buffer else None)
            self._wake.clear()
            for watched in tuple(self._watched):
                try:
                    watched.look()
                except Exception:
                    log.exception("an event could not be made")
            self._flush()
            if not self._closing:
                time.sleep(_PAUSE)  # lanes that end in quick succession share a message
        self._flush()
        self._disconnect()

    def _flush(self) -> None:
        while self._buffer:
            batch = [self._buffer.popleft() for _ in range(min(_BATCH, len(self._buffer)))]
            try:
                with GATE.passed():
                    self._publish(batch)
            except Exception as error:  # noqa: BLE001 - a transport's own errors; work must not suffer from any
                self._disconnect()
                self._drop(len(batch) + len(self._buffer), f"{type(error).__name__}: {error}")
                self._buffer.clear()
            else:
                self._failing = False

    def _publish(self, batch: list[TaskEvent]) -> None:
        """One message in the form that Celery's own dispatcher gives to a group of events."""
        if self._producer is None:
            connection = self._app.connection_for_write()
            exchange = get_exchange(connection, name=self._app.conf.event_exchange)
            self._producer = self._app.amqp.Producer(connection, exchange=exchange, auto_declare=False)
        self._producer.publish(
            batch,
            routing_key="task.multi",
            declare=[self._producer.exchange],
            serializer=self._app.conf.event_serializer,
            headers={"hostname": self._hostname},
            delivery_mode=1,
            retry=True,  # a connection that was idle for long may have been closed
            retry_policy={"max_retries": 1, "interval_start": 0, "interval_max": 0},
        )

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):  # it is broken, or the process ends
                producer.connection.close()

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        if not self._failing:
            self._failing = True
            log.warning("task events are lost (%d so far), items are not: %s", self.dropped, why)
