"""A worker's look at its server before it starts: one that loses batches, or that strangers can reach, is refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from poimen_tasks.errors import PoimenError
from poimen_tasks.health import Level
from poimen_tasks.health.server import check_access, check_eviction
from poimen_tasks.store.survey import Survey

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = ["refuse_unsafe_server"]

log = logging.getLogger(__name__)


def refuse_unsafe_server(store: Store) -> None:
    """End this process, unless the settings allow what is wrong. A server that does not answer yet is not asked again.

    Raises:
        SystemExit: the server evicts, or other machines reach it without a password; the text says what to set.
    """
    try:
        facts = Survey(store.client).server()
    except PoimenError as error:
        log.warning("the store could not be asked whether it is safe: %s", error)
        return
    settings = store.settings
    for finding, allowed, switch in (
        (check_eviction(facts), settings.allow_eviction, "POIMEN_ALLOW_EVICTION"),
        (check_access(facts, store.client.url), settings.allow_open_server, "POIMEN_ALLOW_OPEN_SERVER"),
    ):
        if finding.level is Level.ERROR and not allowed:
            raise SystemExit(f"Redis: {finding.message}; {finding.advice}; or {switch}=true to start all the same")
