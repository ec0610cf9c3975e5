"""Celery's request of a lane: how the worker's parent sees one begin and end."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from celery.worker import state as worker_state
from celery.worker.request import Request

from poimen_tasks.worker.known_lanes import KnownLane, LaneKey
from poimen_tasks.worker.lane_ticket import read_ticket
from poimen_tasks.worker.pools import Pool

if TYPE_CHECKING:
    from poimen_tasks.worker.keeper import Keeper

__all__ = ["LaneRequest"]

log = logging.getLogger(__name__)


class LaneRequest(Request):
    """The parent's view of a lane: it tells the keeper when a child begins one, and when one is lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keeper: Keeper | None = getattr(self.task, "keeper", None)
        if keeper is not None:
            keeper.lanes.expect(self)

    def _lane_key(self) -> LaneKey | None:
        ticket = read_ticket(self.args, self.kwargs)
        return None if ticket is None else (ticket.batch, ticket.slot, ticket.generation)

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """A child took it."""
        super().on_accepted(pid, time_accepted)
        keeper: Keeper | None = getattr(self.task, "keeper", None)
        key = self._lane_key()
        if keeper is not None and key is not None:
            # Without processes Celery tells the number of a thread's process, or of a greenlet: nothing to be killed.
            pool: Pool = getattr(self.task, "pool", Pool())
            child = pid if pool.processes else 0
            lane = KnownLane(
                key,
                child,
                lambda: _kill(child),
                is_over=self._is_over,
                acknowledge=self.acknowledge if self.task.acks_late else None,
                message_id=self.id,
            )
            keeper.lanes.began(lane, self)

    def _is_over(self) -> bool:
        return self not in worker_state.active_requests

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Celery's own limit struck: the body ignored ours."""
        super().on_timeout(soft, timeout)
        if not soft:
            self._tell("timeout", f"hard limit, enforced by the worker after {timeout} s")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """The child died, or the lane itself failed."""
        try:
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:
            self._tell("lost", str(exc_info.exception)[:300])

    def _tell(self, why: str, detail: str) -> None:
        keeper: Keeper | None = getattr(self.task, "keeper", None)
        key = self._lane_key()
        if keeper is not None and key is not None:
            keeper.lanes.lost(key, why, detail)


def _kill(pid: int) -> bool:
    """Kill a child. False where lanes have no process of their own: the running item ends by itself."""
    if not pid:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        log.info("process %d is gone already", pid)
    return True
