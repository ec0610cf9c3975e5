"""Looks a system over: the server, the fleet, the batches' counters, the Celery app's settings.

`examine` runs every check and yields what it found; given `Repairs` it puts right what a script can in one step.
`glance` runs those that cost next to nothing, for whoever asks every few seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from poimen_tasks.errors import StoreRefused, StoreUnavailable
from poimen_tasks.health.audit import check_audit, lag_of
from poimen_tasks.health.batches import check_batches, check_leftovers
from poimen_tasks.health.cache import check_cache
from poimen_tasks.health.celery_settings import check_celery
from poimen_tasks.health.environment import check_environment
from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.health.fleet import LIVE, check_ears, check_slots, check_workers
from poimen_tasks.health.pauses import check_pauses
from poimen_tasks.health.repairs import Publish, Repairs
from poimen_tasks.health.server import check_server, no_server
from poimen_tasks.health.trackers import check_trackers
from poimen_tasks.store.keys import LAYOUT
from poimen_tasks.store.survey import Survey

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = [
    "LIVE",
    "Finding",
    "Level",
    "Publish",
    "Repairs",
    "check_audit",
    "check_batches",
    "check_cache",
    "check_celery",
    "check_ears",
    "check_environment",
    "check_leftovers",
    "check_pauses",
    "check_server",
    "check_settings",
    "check_slots",
    "check_trackers",
    "check_workers",
    "examine",
    "glance",
    "lag_of",
]


def examine(
    store: Store,
    conf: Mapping[str, Any],
    *,
    repairs: Repairs | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[Finding]:
    """Run every check.

    Args:
        store: the store to look at.
        conf: the Celery app's configuration.
        repairs: put right what can be; None only looks.
        progress: told what is looked at, for a person who waits.

    Yields:
        At least one finding a check, in the order in which they are best read. A server that does not answer, or holds
        another layout, or another type of key than a check reads, ends the examination.
    """
    progress("server")
    survey = Survey(store.client)
    try:
        facts = survey.server()
    except (StoreUnavailable, StoreRefused) as error:
        yield no_server(error)
        yield from check_settings(conf)
        return
    yield from check_server(facts, store.client.url)
    if facts.layout not in (None, str(LAYOUT)):
        return
    try:
        yield from _look_over(store, survey, repairs, progress)
    except StoreRefused as error:
        yield no_server(error)
    yield from check_settings(conf)


def _look_over(
    store: Store, survey: Survey, repairs: Repairs | None, progress: Callable[[str], None]
) -> Iterator[Finding]:
    """What the store holds."""
    now, workers = store.reads.now(), store.reads.workers()
    served = {queue for worker in workers if now - worker.seen <= LIVE for queue, _ in worker.offers}
    batches, findings = check_batches(store, survey, served, repairs, progress)
    yield from check_workers(workers, now, waiting=batches)
    yield from check_ears(survey, workers, now)
    yield from findings
    progress("slots of the fleet")
    yield check_slots(store, repairs)
    progress("pauses")
    yield from check_pauses(store, repairs)
    yield check_cache(store, repairs, progress)
    yield from check_trackers(store, repairs, progress)
    yield from check_leftovers(store, survey, repairs, progress)
    yield from check_audit(store.audit.describe_audit(), store.settings)


def glance(store: Store) -> Iterator[Finding]:
    """The server, the workers, the audit stream: a few reads, however much there is.

    Args:
        store: the store to look at.

    Yields:
        As `examine`; a server that does not answer is a finding, not an error.
    """
    survey = Survey(store.client)
    try:
        facts = survey.server()
        yield from check_server(facts, store.client.url)
        if facts.layout in (None, str(LAYOUT)):
            workers, now = store.reads.workers(), store.reads.now()
            yield from check_workers(workers, now, waiting=store.reads.count_open())
            yield from check_ears(survey, workers, now)
            yield from check_audit(store.audit.describe_audit(), store.settings)
    except (StoreUnavailable, StoreRefused) as error:
        yield no_server(error)


def check_settings(conf: Mapping[str, Any]) -> Iterator[Finding]:
    """What needs no server: names in the environment, and the Celery app's settings."""
    yield from check_environment(os.environ)
    yield from check_celery(conf)
