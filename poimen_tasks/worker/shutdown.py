"""Every way in which a worker is asked to leave: signals, `poimen drain`, and Celery's own shutdown."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from celery.worker import state as worker_state

from poimen_tasks.worker.departure import SETTLING, Departure

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.pause.snapshots import Snapshots
    from poimen_tasks.worker.keeper import Keeper
    from poimen_tasks.worker.shared import SharedState

__all__ = ["Shutdown"]

log = logging.getLogger(__name__)


class Shutdown:
    """That of the workers of one process; whichever way comes first begins their departure."""

    def __init__(self, app: Celery, shared: SharedState) -> None:
        self._app = app
        self._shared = shared
        self._departure: Departure | None = None

    def prepare(self, keeper: Keeper, *, grace: float | None, snapshots: Snapshots) -> None:
        """A worker is ready; see `Departure` for the arguments."""
        self._departure = Departure(keeper, self._shared, grace=grace, snapshots=snapshots)
        _heed_signals(self._signalled)

    def is_asked(self) -> bool:
        """True when the worker shuts down, also where Celery tells nobody of it."""
        asked: tuple[Any, Any] = (worker_state.should_stop, worker_state.should_terminate)
        return self._shared.leaving or any(flag is not None and flag is not False for flag in asked)

    def begin(self, *, within: float | None) -> None:
        """Leave; see `Departure.begin`."""
        self._shared.leaving = True
        if self._departure is not None:
            self._departure.begin(within=within)

    def drain(self) -> None:
        """`poimen drain` asks for this worker: the same as SIGTERM."""
        if not self._shared.leaving:
            log.warning("asked to drain: this worker leaves")
            self.begin(within=None)
            state: Any = worker_state
            state.should_stop = 0  # Celery's loop looks at it and ends as after SIGTERM

    def join(self) -> None:
        """Wait until a worker that leaves has settled what it ran."""
        departure, self._departure = self._departure, None
        if departure is not None:
            departure.join()

    def _signalled(self, *, cold: bool) -> None:
        """A signal came. Of a cold shutdown Celery tells only when its soft part is over, and ends the pool then."""
        soft = float(self._app.conf.worker_soft_shutdown_timeout or 0.0)
        self.begin(within=max(0.0, soft - SETTLING) if cold else None)


def _heed_signals(leave: Callable[..., None]) -> None:
    """Hear of a request to stop before Celery does: of a cold shutdown it tells others only when it is half over.

    Only where this is a process of its own; elsewhere the handlers are not ours.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    remapped = os.environ.get("REMAP_SIGTERM") == "SIGQUIT"
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before) and before is not signal.default_int_handler:
            signal.signal(
                number, _then(leave, before, cold=number == signal.SIGQUIT or (remapped and number == signal.SIGTERM))
            )


def _then(leave: Callable[..., None], before: Callable[..., object], *, cold: bool) -> Callable[..., None]:
    def heed(number: int, frame: FrameType | None) -> None:
        leave(cold=cold)
        try:
            before(number, frame)
        except NotImplementedError:
            # Of a pool that cannot end a body (solo): we are within that body, and it is not to fail for this.
            worker_state.should_terminate = True  # type: ignore[assignment]  # the stubs know None only
        # Celery puts the handler of a cold shutdown in its place: Ctrl+C a second time is one.
        after = signal.getsignal(number)
        if number == signal.SIGINT and not cold and after is not heed and callable(after):
            signal.signal(number, _then(leave, after, cold=True))

    return heed
