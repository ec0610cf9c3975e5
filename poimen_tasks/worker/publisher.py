"""Publishes tickets and plain calls for whoever has recorded them: what cannot be published is overdue soon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from kombu.exceptions import KombuError

from poimen_tasks.dispatch.publish import publish_calls, publish_tickets
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.cache_scripts import Landed
from poimen_tasks.store.scripts import unpack_parts
from poimen_tasks.store.values import Part, Ticket, WaitingCall

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.store import Store

__all__ = ["Publisher"]

log = logging.getLogger(__name__)

_UNKNOWN: Mapping[str, Sequence[Part]] = MappingProxyType({})


class Publisher:
    """Nothing here raises for a broker that cannot be reached: its caller has recorded the work already.

    Args:
        app: whose broker carries it.
        store: gives the store in which partitions are looked up.
    """

    def __init__(self, app: Celery, store: Callable[[], Store]) -> None:
        self._app = app
        self._store = store

    def tickets(self, tickets: Sequence[Ticket], parts_of: Mapping[str, Sequence[Part]] = _UNKNOWN) -> None:
        """Publish tickets; one that cannot be published is overdue soon, and the keeper issues it again.

        Args:
            tickets: from a script's reply.
            parts_of: the partitions of batches among them, as far as they are at hand.
        """
        known = dict(parts_of)
        try:
            for batch in {ticket.batch for ticket in tickets} - known.keys():
                (blob,) = self._store().reads.field(batch, "parts")
                known[batch] = unpack_parts(blob) if blob else []
            publish_tickets(self._app, [ticket for ticket in tickets if known[ticket.batch]], known)
        except (KombuError, OSError, PoimenError) as error:
            log.warning("%d tickets could not be published, they are issued again soon: %s", len(tickets), error)
        except Exception:
            # A transport's own errors, as of a broker that is out of memory.
            log.exception("%d tickets could not be published, they are issued again soon", len(tickets))

    def calls(self, calls: Sequence[WaitingCall]) -> None:
        """Publish plain calls that waited; one that cannot be published is overdue soon, and published again."""
        try:
            publish_calls(self._app, calls)
        except Exception as error:  # noqa: BLE001 - every transport has errors of its own
            log.warning("%d calls could not be published, they are published again soon: %s", len(calls), error)

    def landed(self, landed: Landed) -> None:
        """Publish what follows of the end of a computation."""
        if landed.tickets:
            self.tickets(landed.tickets)
        if landed.calls:
            self.calls(landed.calls)
