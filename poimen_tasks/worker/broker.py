"""What a worker's parent tells and asks the broker besides its tasks, in a thread of its own.

A broker may be slow, frozen or away for minutes. The keeper must renew leases meanwhile, so it never waits for one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, Full, Queue
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from poimen_tasks.errors import PoimenError
from poimen_tasks.store.values import Ticket, WaitingCall
from poimen_tasks.worker.fork_gate import GATE

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.worker.publisher import Publisher

__all__ = ["BrokerThread", "QueueDepths"]

log = logging.getLogger(__name__)

# A broker that answers takes milliseconds; whoever waits longer than this had better look again later.
_PATIENCE = 5.0
_LOOK_AGAIN = 1.0
_MOST_ERRANDS = 1000


class QueueDepths:
    """Counts the messages that wait in queues, over a connection of its own; used by one thread.

    Asking AMQP for a queue that does not exist closes the channel, so the channel is nobody else's.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Any = None
        self._channel: Any = None
        self._not_before = 0.0

    def count(self, queue: str) -> int | None:
        """How many messages wait in a queue, 0 when it does not exist; None while the broker does not answer."""
        if monotonic() < self._not_before:
            return None
        try:
            return int(self._open().queue_declare(queue=queue, passive=True).message_count)
        except self._app.connection_for_write().channel_errors:
            self._channel = None  # there is no such queue, and no such channel any more
            return 0
        except Exception as error:  # noqa: BLE001 - every transport has errors of its own
            log.debug("cannot ask the broker how many messages wait in %s: %s", queue, error)
            self.close()
            self._not_before = monotonic() + _LOOK_AGAIN
            return None

    def close(self) -> None:
        """Drop the connection; the next look opens one."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.collect()  # not close(), which waits until the broker agrees

    def _open(self) -> Any:
        if self._connection is None:
            connection = self._app.connection_for_write()
            if connection.transport.driver_type == "amqp":
                limits = {"read_timeout": _PATIENCE, "write_timeout": _PATIENCE}
                connection.transport_options = {**(connection.transport_options or {}), **limits}
            self._connection = connection
        if self._channel is None:
            self._channel = self._connection.channel()
        return self._channel


class Following(Protocol):
    """What a script's reply says when something may go on."""

    @property
    def tickets(self) -> Sequence[Ticket]:
        """Tickets of batches."""

    @property
    def calls(self) -> Sequence[WaitingCall]:
        """Plain calls that waited."""


class BrokerThread:
    """Publishes tickets and looks at queues, so that the keeper need not wait for the broker.

    Args:
        publisher: publishes tickets, and plain calls that waited.
        check: looks after overdue tickets, given as the store names them.
        look: called once a period.
        period: seconds.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        check: Callable[[list[list[str]]], None],
        look: Callable[[], None],
        period: float,
    ) -> None:
        self._publisher = publisher
        self._check = check
        self._look = look
        self._period = period
        self._outbox: Queue[Callable[[], None] | None] = Queue(_MOST_ERRANDS)
        self._overdue: list[list[str]] | None = None
        self._thread = threading.Thread(target=self._run, name="poimen-broker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Publish what there is, and end; seconds to wait for that."""
        try:
            self._outbox.put_nowait(None)
        except Full:
            return
        self._thread.join(timeout)

    def issue(self, tickets: Sequence[Ticket]) -> None:
        """Have tickets published; never waits."""
        if tickets:
            self._send(partial(self._publisher.tickets, tickets), f"{len(tickets)} tickets")

    def release(self, calls: Sequence[WaitingCall]) -> None:
        """Have plain calls published that waited; never waits."""
        if calls:
            self._send(partial(self._publisher.calls, calls), f"{len(calls)} calls")

    def follow(self, reply: Following) -> None:
        """Have published what may go on, by a script's reply; never waits."""
        self.issue(reply.tickets)
        self.release(reply.calls)

    def run(self, errand: Callable[[], None]) -> bool:
        """Have something done here; False when there is too much to do."""
        try:
            self._outbox.put_nowait(errand)
        except Full:
            return False
        return True

    def _send(self, errand: Callable[[], None], what: str) -> None:
        if not self.run(errand):
            log.warning("%s wait for a broker that does not answer, they are published again", what)

    def check(self, overdue: list[list[str]]) -> None:
        """Have overdue tickets looked after; ignored while those of an earlier call are."""
        if self._overdue is None:
            self._overdue = overdue or None

    def _run(self) -> None:
        next_look = monotonic() + self._period
        while True:
            try:
                errand = self._outbox.get(timeout=max(0.0, next_look - monotonic()))
            except Empty:
                next_look = monotonic() + (self._period if self._safely(self._look_around) else _LOOK_AGAIN)
                continue
            if errand is None:
                return
            self._safely(errand)

    def _look_around(self) -> None:
        if self._overdue is not None:
            try:
                self._check(self._overdue)
            finally:
                self._overdue = None
        self._look()

    def _safely(self, do: Callable[[], None]) -> bool:
        try:
            with GATE.passed():
                do()
        except PoimenError as error:
            log.warning("keeper: %s", error)
        except Exception:
            log.exception("keeper: unexpected error; it goes on")
        else:
            return True
        return False
