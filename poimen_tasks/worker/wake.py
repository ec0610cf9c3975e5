"""Threads and greenlets tell the worker's loop that a slot is free: it does not notice by itself.

With `worker_disable_prefetch` a worker whose slots are all taken asks the broker for nothing. A pool process that ends
a task wakes the loop through its pipe; a thread or a greenlet has none, and the loop would sleep on for up to two
seconds while the slot is free.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from kombu.utils.eventio import READ

from poimen_tasks.worker.pools import pool_of

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["install_wake"]


class FreeSlotStep(bootsteps.StartStopStep):
    """Wakes the loop whenever a task of this worker ends. Started anew with each connection to the broker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    name = "FreeSlot"

    _poller: Any = None
    _bell: socket.socket | None = None
    _ear: socket.socket | None = None

    def include_if(self, c: Any) -> bool:
        """Only where the broker is asked by polling, and tasks end without the loop's notice."""
        kind = pool_of(type(c.pool))
        return bool(c.conninfo.transport.driver_type == "redis") and not (kind.processes or kind.blocks)

    def create(self, c: Any) -> None:
        """Once a worker."""
        _after_each_task(c.pool, self._ring)

    def start(self, c: Any) -> None:
        """A connection begins. A loop without a hub (greenlets): listen where it waits, hush before it waits again."""
        # Sockets, not a pipe: their calls never wait, whatever a monkey patch has made of them.
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        if c.hub is not None:
            return
        channel = c.task_consumer.channel
        self._poller = channel.connection.cycle.poller
        self._poller.register(self._ear, READ)
        ask = channel.qos.can_consume

        def can_consume() -> bool:
            self._hush()
            return bool(ask())

        channel.qos.can_consume = can_consume

    def register_with_event_loop(self, _c: Any, hub: Any) -> None:
        """A loop with a hub (threads)."""
        hub.add_reader(self._ear, self._hush)

    def stop(self, c: Any) -> None:
        """The connection is over."""
        poller, self._poller = self._poller, None
        bell, ear = self._bell, self._ear
        self._bell = self._ear = None
        if bell is None or ear is None:
            return
        with contextlib.suppress(KeyError, ValueError, OSError):
            if poller is not None:
                poller.unregister(ear)
            if c.hub is not None:
                c.hub.remove_reader(ear)
        bell.close()
        ear.close()

    def _ring(self) -> None:
        bell = self._bell
        with contextlib.suppress(OSError):  # it is ringing already, or the connection ends at this moment
            if bell is not None:
                bell.send(b"\0")

    def _hush(self) -> None:
        ear = self._ear
        with contextlib.suppress(OSError):
            while ear is not None and ear.recv(4096):
                pass


def _after_each_task(pool: Any, ring: Callable[[], None]) -> None:
    """Call `ring` when a task has ended and its slot is counted as free."""
    apply = pool.on_apply

    def then_ring(callback: Any) -> Any:
        def ended(*args: Any, **kwargs: Any) -> Any:
            try:
                return callback(*args, **kwargs)
            finally:
                ring()

        return ended

    def on_apply(target: Any, args: Any = None, kwargs: Any = None, callback: Any = None, **options: Any) -> Any:
        if callback is not None:
            callback = then_ring(callback)
        if options.get("timeout_callback") is not None:
            options["timeout_callback"] = then_ring(options["timeout_callback"])
        return apply(target, args, kwargs, callback=callback, **options)

    pool.on_apply = on_apply


def install_wake(app: Celery) -> None:
    """Workers of this app have it."""
    app.steps["consumer"].add(FreeSlotStep)
