"""The keeper's part in plain calls: it renews those that run here, and brings back those that a pause had parked."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from celery.worker import state as worker_state

from poimen_tasks.dispatch.publish import LANE_TASK
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.values import WaitingCall
from poimen_tasks.worker.group_keys import refresh_groups, refresh_period

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.store import Store
    from poimen_tasks.worker.broker import BrokerThread, QueueDepths

__all__ = ["CallKeeper"]

log = logging.getLogger(__name__)

_MOST_KEPT = 50_000


class CallKeeper:
    """Plain calls as a worker's parent knows them: by Celery's own list of what runs.

    Args:
        app: whose worker this is.
        store: the keeper's.
        hostname: the worker's name.
        broker: the thread that speaks to it.
        processes: whether each call runs in a process of its own.
        publish: publishes calls; used by that thread, as are
        depths: how many messages wait.
    """

    def __init__(
        self,
        app: Celery,
        store: Store,
        broker: BrokerThread,
        *,
        hostname: str,
        processes: bool,
        publish: Callable[[Sequence[WaitingCall]], None],
        depths: QueueDepths,
    ) -> None:
        self._app = app
        self._store = store
        self._hostname = hostname
        self._processes = processes
        self._broker = broker
        self._publish = publish
        self._depths = depths
        self._looking = False
        self._known: dict[str, int] = {}
        self._dropped: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._revoked: deque[str] = deque(maxlen=_MOST_KEPT)

    def drop(self, key: str, why: str) -> None:
        """A parked call came back and was discarded. Called from the worker's own loop."""
        self._dropped.put((key, why))

    def revoke(self, ids: Iterable[str]) -> None:
        """These calls were revoked: those that are parked do not begin. Called from the worker's own loop."""
        self._revoked.extend(ids)

    def beat(self) -> None:
        """Once a tick: what runs for longer is renewed, and what a killed process ran is over."""
        self._settle_dropped()
        self._settle_revoked()
        running = self._running()
        gone = [field for field, pid in self._known.items() if field not in running and _is_gone(pid)]
        lasting = [field for field in running if field in self._known]
        self._known = running
        if lasting:
            self._store.calls.renew_calls(lasting, lease=self._store.settings.lease)
        if gone:
            self._store.calls.end_calls(gone)

    def tend(self, chores: dict[bytes, Any]) -> None:
        """The elected keeper's: parked calls whose message was lost, and results that must not be forgotten."""
        released = [(key.decode(), queue.decode()) for key, queue in chores.get(b"parked") or ()]
        if released and not self._looking:
            self._looking = True
            if not self._broker.run(partial(self._look_after, released)):
                self._looking = False
        if chores.get(b"keep"):
            self._keep_groups()

    def _look_after(self, released: list[tuple[str, str]]) -> None:
        """Released calls that have not begun yet. While the broker does not answer they stay overdue."""
        depths: dict[str, int | None] = {"": 0}  # not published yet
        try:
            for key, queue in released:
                if queue not in depths:
                    depths[queue] = self._depths.count(queue)
                depth = depths[queue]
                if depth is not None and (calls := self._store.calls.release_parked(key, waits=depth > 0)):
                    self._publish(calls)
        finally:
            self._looking = False

    def _keep_groups(self) -> None:
        period = refresh_period(self._app)
        calls = self._store.calls.keep_calls(period=period or 3600.0)
        try:
            refresh_groups(self._app, calls)
        except Exception as error:  # noqa: BLE001 - every backend has errors of its own
            log.warning("results of groups with %d paused calls could not be kept: %s", len(calls), error)

    def _running(self) -> dict[str, int]:
        """What Celery says that this worker runs: field and process."""
        try:
            requests: list[Any] = list(worker_state.active_requests)
        except RuntimeError:  # it changed meanwhile
            return self._known
        own = os.getpid()
        found = {}
        for request in requests:
            if request.task_name != LANE_TASK:
                pid = (request.worker_pid or 0) if self._processes else own
                found[f"{request.id}\t{self._hostname}\t{pid}"] = pid
        return found

    def _settle_revoked(self) -> None:
        if not self._revoked:
            return
        ids = [self._revoked.popleft() for _ in range(len(self._revoked))]
        try:
            self._store.calls.revoke_calls(ids)
        except PoimenError:
            self._revoked.extend(ids)
            raise

    def _settle_dropped(self) -> None:
        while True:
            try:
                key, why = self._dropped.get_nowait()
            except Empty:
                return
            try:
                self._store.calls.drop_call(key, why=why)
            except PoimenError:
                self._dropped.put((key, why))
                raise


def _is_gone(pid: int) -> bool:
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
