"""`poimen.checkpoint` inside of an item: saves the body's state in the store, and tells it to stop."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore

from poimen_tasks import codec, context
from poimen_tasks.errors import Cancelled, Paused, StoreRefused, StoreUnavailable
from poimen_tasks.store.pause_scripts import ItemAsked

if TYPE_CHECKING:
    from poimen_tasks.worker.calling import LaneCalls

__all__ = ["Checkpoints"]

log = logging.getLogger(__name__)

_ASK_EVERY = 0.2


class PausedItem(Paused, Ignore):
    """What `checkpoint()` raises: Celery's own wrappers let it pass, and its tracer takes it for no failure."""


class Checkpoints:
    """Those of one lane: called by the body of the item that runs there."""

    def __init__(self, lane: LaneCalls) -> None:
        self._lane = lane
        self._run: tuple[Any, int] | None = None
        self._asked_at = 0.0
        self._saved: bytes | None = None

    def __call__(self, state: Any) -> Any:
        """See `Poimen.checkpoint`."""
        lane = self._lane
        run = (lane._claim, lane._running.position)  # noqa: SLF001 - a part of the lane
        begins = self._run is None or self._run[0] is not run[0] or self._run[1] != run[1]
        if state is not context.UNSET:
            self._run = run
            self._told(self._save(run[1], state))
            return state
        if begins:
            # What earlier runs saved, in whichever process.
            asked = self._ask(run[1], want=True)
            self._run = run
            self._told(asked)
        elif perf_counter() - self._asked_at >= _ASK_EVERY:
            self._told(self._try(run[1]))
        elif lane.host.stopping():
            self._told(None)
        return None if self._saved is None else codec.decode(self._saved)

    def _ask(self, position: int, *, want: bool) -> ItemAsked:
        lane = self._lane
        asked = lane.host.store.pauses.ask_item(lane.batch, position, token=lane._token, want=want)  # noqa: SLF001
        if want:
            self._saved = asked.state
        return asked

    def _save(self, position: int, state: Any) -> ItemAsked | None:
        """Save; a server that takes nothing more costs the state, not the work."""
        lane, limit = self._lane, self._lane.host.store.settings.max_result_bytes
        data = codec.encode(state, what=f"checkpoint of item {position} of batch {lane.batch}", limit=limit)
        try:
            asked = lane.host.store.pauses.save_checkpoint(
                lane.batch,
                position,
                token=lane._token,  # noqa: SLF001
                state=data,
            )
        except (StoreRefused, StoreUnavailable) as error:
            log.warning("batch %s: a checkpoint of item %d was not saved: %s", lane.batch, position, error)
            return self._try(position) if isinstance(error, StoreRefused) else None
        self._saved = data
        return asked

    def _try(self, position: int) -> ItemAsked | None:
        """Ask; while the store does not answer the body goes on."""
        try:
            return self._ask(position, want=False)
        except StoreUnavailable as error:
            log.warning("batch %s: item %d could not ask whether it is to stop: %s", self._lane.batch, position, error)
            return None

    def _told(self, asked: ItemAsked | None) -> None:
        self._asked_at = perf_counter()
        if self._lane.host.stopping():
            raise PausedItem("the worker leaves")
        if asked is None:
            return
        running = self._lane._running  # noqa: SLF001
        if asked.cancelled or asked.revoked:
            item = f"item at position {running.position} of " if asked.revoked else ""
            raise Cancelled(f"{item}batch {running.batch!r} was {'revoked' if asked.revoked else 'cancelled'}")
        if asked.stop:
            raise PausedItem(f"item at position {running.position} of batch {running.batch!r} is paused")
