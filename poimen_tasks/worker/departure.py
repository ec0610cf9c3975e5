"""What a worker does from the first request to stop until its end.

No lane claims any more, at once. Running items finish; when their grace is over they are asked to stop, and then, where
each has a process of its own, ended: what they hold goes back as if it had not begun. Last, the workflows that are not
over are kept on disk.

Celery's part goes on beside it: a warm shutdown waits for the pool, a cold one ends it.

A store that is away does not hold it up: lanes wait a while for it to take what they have to report, and then give that
up, as if the worker had been killed. What they ran runs again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from poimen_tasks.errors import PoimenError, StoreUnavailable
from poimen_tasks.worker.leaving import longest_wait

if TYPE_CHECKING:
    from poimen_tasks.pause.snapshots import Snapshots
    from poimen_tasks.store import Store
    from poimen_tasks.worker.keeper import Keeper
    from poimen_tasks.worker.known_lanes import KnownLane
    from poimen_tasks.worker.shared import SharedState

__all__ = ["SETTLING", "Departure"]

log = logging.getLogger(__name__)

_POLL = 0.05
_HEARING = 3.0
"""Seconds within which the parent hears of a lane that a child began before it could know that the worker leaves."""
_STOPPING = 2.0
"""Seconds for a body to meet its next checkpoint once it is asked to stop."""
_ENDING = 5.0
SETTLING = _STOPPING + 1.0
"""Seconds between the request to stop and the end of the pool: for bodies to stop, or to be ended, and to go back."""
ACTOR = "worker"


class Departure:
    """One for each run of a worker; begun by a signal, by `poimen drain`, or by Celery's own shutdown.

    Args:
        keeper: of this worker.
        shared: what its pool processes see.
        grace: seconds that running items may take; None: as long as they take.
        snapshots: where workflows are kept.
    """

    def __init__(self, keeper: Keeper, shared: SharedState, *, grace: float | None, snapshots: Snapshots) -> None:
        self._keeper = keeper
        self._shared = shared
        self._snapshots = snapshots
        self._grace = grace
        self._deadline = float("inf")
        self._heard_at = self._begun_at = 0.0
        self._away = longest_wait(keeper.store.settings)
        self._begun = threading.Lock()
        self._told = False
        self._cold = False
        # Not a daemon: the process does not end before what it runs is settled, however Celery ends.
        self._thread = threading.Thread(target=self._run, name="poimen-departure", daemon=False)

    def begin(self, *, within: float | None = None) -> None:
        """No item begins here any more. Called again, it may only shorten the time that is left.

        Args:
            within: of a cold shutdown, seconds until running items are asked to stop, so that they have in time before
                the pool is ended; None for a warm one.
        """
        self._cold = self._cold or within is not None
        self._shared.leaving = True
        limits = [limit for limit in (self._grace, within) if limit is not None]
        if limits:
            self._deadline = min(self._deadline, monotonic() + max(0.0, min(limits)))
        if self._begun.acquire(blocking=False):
            log.info("leaving: no further item begins here, %d lanes end", len(self._keeper.lanes.all()))
            self._begun_at = monotonic()
            self._heard_at = self._begun_at + _HEARING
            # The interpreter is on its way out; or the signal came while gevent's loop ran, which must not wait for the
            # thread to say that it has started: it is under way then.
            with suppress(RuntimeError, AssertionError):
                self._thread.start()

    def join(self) -> None:
        """Wait for its end, if it has begun."""
        if self._thread.ident is not None:
            self._thread.join()

    # -- its thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._wait(lambda: self._deadline):
                self._shared.stopping = True
                log.warning("the grace is over: %d lanes are asked to stop", len(self._keeper.lanes.all()))
                stop_at = monotonic() + _STOPPING
                if not self._wait(lambda: stop_at):
                    self._end_lanes()
            _keep_workflows(self._keeper.store, self._snapshots, self._keeper.lanes.served())
        except Exception:
            log.exception("leaving: unexpected error; what runs here is given to others when its lease is over")
        finally:
            if self._cold:  # a cold shutdown tells nobody of its end
                self._keeper.stop()

    def _wait(self, until: Callable[[], float]) -> bool:
        """Wait for the lanes to end, those too of which this process is yet to hear. False when the time is over."""
        pause, lanes = threading.Event(), self._keeper.lanes
        while self._lanes() or (lanes.are_coming() and monotonic() < self._heard_at):
            if monotonic() >= until():
                return False
            pause.wait(_POLL)
        return True

    def _lanes(self) -> list[KnownLane]:
        """The lanes that hold it up: all that are not settled, or while the store is away those that run."""
        lanes = self._keeper.lanes.all()
        if monotonic() - max(self._begun_at, self._keeper.answered_at) < self._away:
            return lanes
        if lanes and not self._told:
            self._told = True
            log.warning("the store is away: %d lanes give up what they cannot report", len(lanes))
        return [lane for lane in lanes if not (lane.is_over() or lane.has_died())]

    def _end_lanes(self) -> None:
        for lane in self._keeper.lanes.all():
            self._keeper.lanes.end(lane, "the worker leaves")
        ended = monotonic() + _ENDING
        self._wait(lambda: ended)


def _keep_workflows(store: Store, snapshots: Snapshots, batches: list[str]) -> None:
    """Take snapshots of the workflows of these batches that are not over; errors are logged."""
    kept = set()
    for batch in batches:
        try:
            workflow = _open_workflow(store, batch)
            if workflow is None or workflow in kept:
                continue
            snapshot = snapshots.create(workflow, actor=ACTOR, reason="the worker leaves")
            kept.add(workflow)
            log.info("workflow %s is kept in snapshot %s", workflow, snapshot.id)
        except StoreUnavailable as error:
            log.warning("no workflow is kept: %s", error)
            return  # nor does it answer about the others, of which there may be thousands
        except PoimenError as error:
            log.warning("batch %s: its workflow was not kept: %s", batch, error)


def _open_workflow(store: Store, batch: str) -> str | None:
    """The workflow of a batch that is not over, or whose callbacks are not; of a callback, that of its batch."""
    workflow, over, callbacks = store.reads.field(batch.partition("@")[0], "workflow", "over", "callbacks")
    if workflow is None or (over == b"1" and not int(callbacks or 0)):
        return None
    return workflow.decode()
