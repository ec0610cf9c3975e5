"""What waits in the broker's queues, beside what the store knows of them. Asked in the broker's thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.worker.broker import QueueDepths
    from poimen_tasks.worker.known_lanes import KnownLanes
    from poimen_tasks.worker.publisher import Publisher
    from poimen_tasks.worker.shared import SharedState

__all__ = ["QueueWatch"]


class QueueWatch:
    """That of one worker.

    Args:
        store: the keeper's.
        depths: how many messages wait.
        lanes: those that run here.
        shared: where lanes read whether others wait.
        offers: the queues that the worker serves, and its slots.
        reserved: how many messages the worker holds that have not begun.
        publisher: publishes tickets that are issued again.
    """

    def __init__(
        self,
        store: Store,
        depths: QueueDepths,
        lanes: KnownLanes,
        *,
        shared: SharedState,
        offers: Callable[[], Sequence[tuple[str, int]]],
        reserved: Callable[[], int],
        publisher: Publisher,
    ) -> None:
        self._store = store
        self._depths = depths
        self._lanes = lanes
        self._shared = shared
        self._offers = offers
        self._reserved = reserved
        self._publisher = publisher

    def look(self) -> None:
        """Say whether anybody else waits for a slot of this worker.

        Asked here once for all lanes of the worker, because each asking for itself would cost more than its step.
        """
        self._shared.others_wait = bool(self._lanes) and self._others_wait()

    def _others_wait(self) -> bool:
        """Whether messages that are not tickets wait, in a queue or in this worker's hands."""
        waiting = self._reserved()
        for queue, _slots in self._offers():
            count = self._depths.count(queue)
            waiting += 0 if count is None else count - self._store.reads.tickets_out(queue)
        return waiting > 0

    def check(self, overdue: list[list[str]]) -> None:
        """Issue an overdue ticket again when its queue holds fewer messages than tickets are out.

        While the broker does not answer it stays overdue, so that it is looked for as soon as the broker is back.

        Args:
            overdue: batch and slot of each, as the store names them.
        """
        short: dict[str, bool | None] = {}
        for batch, slot in overdue:
            queue = self._store.reads.ticket_queue(batch, int(slot))
            if queue is not None and queue not in short:
                short[queue] = self._is_short(queue)
            missing = False if queue is None else short[queue]
            if missing is not None:
                tickets = self._store.scripts.reissue_ticket(batch, int(slot), reissue=missing)
                if tickets:
                    self._publisher.tickets(tickets)

    def _is_short(self, queue: str) -> bool | None:
        count = self._depths.count(queue)
        return None if count is None else count < self._store.reads.tickets_out(queue)
