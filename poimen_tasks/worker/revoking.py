"""Celery's `revoke` and `terminate`, for items: every worker hears them, any may act, and the store does it once.

Celery's own commands run first and see the same ids, since a plain task's id may look like an item's.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from celery.platforms import signals
from celery.worker import control

from poimen_tasks.dispatch.publish import LANE_TASK
from poimen_tasks.errors import BatchNotFound, PoimenError

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.store.values import Revoked

__all__ = ["Revocations", "item_of", "send_signal"]

log = logging.getLogger(__name__)

ACTOR = "celery.revoke"
"""Who revokes, for the audit log: Celery's command does not say who sent it."""
_MOST_KEPT = 50_000
_A_CALL = 500
_ITEM = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9_.:-]{0,127}(?:@(?:success|failure|complete)\.\d{1,6})?)\.(0|[1-9]\d{0,9})"
).fullmatch


def item_of(message_id: str) -> tuple[str, int] | None:
    """Batch and position of what may be an item's message id, else None."""
    found = _ITEM(message_id)
    return None if found is None else (found[1], int(found[2]))


# -- the commands, in the worker's own loop --------------------------------------------------------------------------


@control.control_command(name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
    """Revoke task by task id (or list of ids); also items of batches."""
    reply = vars(control)["revoke"](state, task_id, terminate=terminate, signal=signal, **kwargs)
    return _revoke_items(state, task_id, signals.signum(signal or "SIGTERM") if terminate else 0, reply)


@control.control_command(
    name="terminate", variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]"
)
def terminate(state: Any, signal: Any, task_id: Any, **kwargs: Any) -> Any:
    """Terminate task by task id (or list of ids); also items of batches."""
    return revoke(state, task_id, terminate=True, signal=signal, **kwargs)


def _revoke_items(state: Any, task_id: Any, signal: int, reply: Any) -> Any:
    keeper = getattr(state.app.tasks.get(LANE_TASK), "keeper", None)
    ids = [task_id] if isinstance(task_id, str) else list(task_id or ())
    if keeper is not None:
        keeper.calls.revoke(one for one in ids if isinstance(one, str))
    items = [item for one in ids if isinstance(one, str) and (item := item_of(one)) is not None]
    if keeper is None or not items:
        return reply
    keeper.revocations.ask(items, signal)
    if reply == {"ok": "terminate: tasks unknown"}:
        return {"ok": f"terminate: {', '.join(f'{batch}.{position}' for batch, position in items)}"}
    return reply


# -- what follows, in the keeper's thread ----------------------------------------------------------------------------


class Revocations:
    """What was asked for and is not done yet.

    Args:
        store: the keeper's.
        done: told of each batch, with what changed there.
    """

    def __init__(self, store: Store, *, done: Callable[[str, Revoked], None]) -> None:
        self._store = store
        self._done = done
        self._asked: deque[tuple[str, int, int]] = deque(maxlen=_MOST_KEPT)

    def ask(self, items: Iterable[tuple[str, int]], signal: int) -> None:
        """Revoke these items `(batch, position)` soon; with a signal (0: none) for the processes that run them."""
        self._asked.extend((batch, signal, position) for batch, position in items)

    def settle(self) -> bool:
        """Do what was asked for. Returns whether there was anything to do.

        Raises:
            StoreUnavailable: it does not answer; what was asked for is kept.
        """
        if not self._asked:
            return False
        asked = sorted({self._asked.popleft() for _ in range(len(self._asked))})
        while asked:
            batch, signal, _ = asked[0]
            some = [row[2] for row in asked[:_A_CALL] if row[:2] == (batch, signal)]
            try:
                self._cancel(batch, some, signal)
            except PoimenError:
                self._asked.extend(asked)
                raise
            asked = asked[len(some) :]
        return True

    def _cancel(self, batch: str, positions: Sequence[int], signal: int) -> None:
        try:
            reply = self._store.scripts.cancel_items(batch, positions, reason="revoked", actor=ACTOR, signal=signal)
        except BatchNotFound:
            return  # a plain task's id that looks like an item's, or a batch that is forgotten
        if reply.settled or reply.running:
            log.info("batch %s: revoked items at %s, asked to stop at %s", batch, reply.settled, reply.running)
        self._done(batch, reply)


def send_signal(pid: int, number: int) -> bool:
    """Send a pool process a signal. False where lanes have no process of their own: the running item is only told."""
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        log.info("process %d is gone already", pid)
    return True
