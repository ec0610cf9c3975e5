"""What the store tells, as samples: metric, labels, number.

Labels are bounded. A task is named by what scripts count (about 1,000 series, see `counting.lua`) or is one of the
first `MOST_NAMES` with cached results; a queue is one of the first `MOST_NAMES` in use. The others add up to `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from poimen_tasks.model import BatchState, BatchStatus
from poimen_tasks.settings import Settings
from poimen_tasks.store.audit_scripts import StreamState
from poimen_tasks.store.metric_reads import Facts, QueueLoad
from poimen_tasks.store.reads import LIVE, WorkerInfo

__all__ = ["MOST_NAMES", "Samples", "of_audit", "of_batches", "of_cache", "of_facts", "of_fleet"]

#: Queues, and tasks with cached results, that have a label of their own.
MOST_NAMES = 100
OTHER = "other"

#: Metric, values of its labels in their order, number.
Samples = Iterable[tuple[str, tuple[str, ...], float]]

_STATUSES = {"ok": "succeeded", "failed": "failed", "cancelled": "cancelled", "skipped": "skipped"}
_SCOPES = {"*": "everything", "w": "workflow", "b": "batch", "q": "queue", "a": "activity"}
_OPEN = (BatchState.OPEN, BatchState.RUNNING, BatchState.PAUSED, BatchState.STALLED)
_ITEMS = ("pending", "delayed", "waiting", "running")
_ENDS = ("completed", "failed", "cancelled")
_RESULTS = {"hits": "hit", "misses": "miss", "coalesced": "coalesced"}
_REMOVED = {"evictions": "evicted", "expired": "expired", "invalidated": "invalidated", "corrupt": "corrupt"}
_REJECTED = ("refused", "stale", "fenced", "uncacheable")


def of_facts(facts: Facts) -> Samples:
    """The server, counts of what is there, and totals."""
    yield "poimen_store_memory_bytes", (), facts.memory
    yield "poimen_store_memory_limit_bytes", (), facts.memory_limit
    yield "poimen_lanes", (), facts.leases
    yield "poimen_tickets", (), facts.tickets
    yield "poimen_plain_calls", ("running",), facts.running_calls
    yield "poimen_plain_calls", ("parked",), facts.parked_calls
    if facts.tick is not None:
        yield "poimen_keeper_silence_seconds", (), max(0.0, facts.now - facts.tick)
    yield "poimen_batches_kept", (), facts.kept
    yield "poimen_batches_open", (), facts.open
    yield "poimen_callbacks_open", (), facts.callbacks
    yield "poimen_oldest_batch_seconds", (), 0 if facts.oldest is None else max(0.0, facts.now - facts.oldest)
    yield from _totals(facts.totals)
    for letter, scope in _SCOPES.items():
        yield "poimen_paused_scopes", (scope,), facts.scopes.get(letter, 0)
    yield "poimen_paused_scopes", ("unknown",), max(0, facts.paused - sum(facts.scopes.values()))
    yield "poimen_pauses_total", (), facts.pauses
    yield "poimen_resumes_total", (), facts.resumes
    yield "poimen_cache_entries", (), facts.cache_entries
    yield "poimen_cache_bytes", (), facts.cache_bytes
    yield "poimen_cache_computations", (), facts.computations


def _totals(totals: Mapping[tuple[str, ...], int]) -> Samples:
    found = Counter[tuple[str, tuple[str, ...]]]()  # a task may be called `other`, too
    for (kind, *names), count in totals.items():
        match kind, names:
            case "i", [status, activity] if status in _STATUSES:
                found["poimen_items_finished_total", (activity or OTHER, _STATUSES[status])] += count
            case "r", [activity]:
                found["poimen_items_retried_total", (activity or OTHER,)] += count
    for (name, labels), count in sorted(found.items()):
        yield name, labels, count
    yield "poimen_lanes_lost_total", (), totals.get(("l",), 0)
    for state in _ENDS:
        yield "poimen_batches_finished_total", (state,), totals.get(("b", state), 0)
    for name, status in _STATUSES.items():
        yield "poimen_callbacks_finished_total", (status,), totals.get(("c", name), 0)


def of_fleet(facts: Facts, workers: Sequence[WorkerInfo]) -> Samples:
    """The workers, and the queues that they serve or that work waits on."""
    live = [worker for worker in workers if facts.now - worker.seen <= LIVE]
    leaving = sum(worker.leaving for worker in live)
    yield "poimen_workers", ("alive",), len(live) - leaving
    yield "poimen_workers", ("leaving",), leaving
    yield "poimen_workers", ("silent",), len(workers) - len(live)
    yield "poimen_slots", (), sum(slots for worker in live for _, slots in worker.offers[:1])
    slots = Counter[str]()
    for worker in live:
        slots.update(dict(worker.offers))
    names = {*slots, *(name for name, load in facts.queues.items() if any(load))}
    label = _labels(names)
    rows = {label[name]: Counter[str]() for name in sorted(names)}
    for name in names:
        load = facts.queues.get(name, QueueLoad(0, 0))
        rows[label[name]].update(slots=slots[name], lanes=load.lanes, tickets=load.tickets)
    for queue, row in rows.items():
        for what in ("slots", "lanes", "tickets"):
            yield f"poimen_queue_{what}", (queue,), row[what]


def of_batches(statuses: Sequence[BatchStatus]) -> Samples:
    """The open batches that were looked at; one that ended meanwhile is none of them any more."""
    found = [status for status in statuses if not status.is_over]
    yield "poimen_batches_examined", (), len(found)
    states = Counter(status.state for status in found)
    for state in _OPEN:
        yield "poimen_batches", (str(state),), states[state]
    yield "poimen_batches_unserved", (), sum(bool(status.unserved_queues) for status in found)
    for name in _ITEMS:
        yield "poimen_items", (name,), sum(getattr(status, name) for status in found)


def of_cache(counts: Mapping[str, Mapping[str, int]], settings: Settings) -> Samples:
    """The result cache's limits and counters."""
    yield "poimen_cache_entries_limit", (), settings.cache_max_entries
    yield "poimen_cache_limit_bytes", (), settings.cache_max_bytes
    label = _labels(counts)
    rows = {label[name]: Counter[str]() for name in sorted(counts)}
    for name, row in counts.items():
        rows[label[name]].update(row)
    for activity, row in rows.items():
        for name, result in _RESULTS.items():
            yield "poimen_cache_requests_total", (activity, result), row[name]
        yield "poimen_cache_saved_seconds_total", (activity,), row["saved"] / 1e6
    whole = Counter[str]()
    for row in rows.values():
        whole.update(row)
    for name, reason in _REMOVED.items():
        yield "poimen_cache_removed_total", (reason,), whole[name]
    for reason in _REJECTED:
        yield "poimen_cache_rejected_total", (reason,), whole[reason]


def of_audit(state: StreamState) -> Samples:
    """The audit stream and its sealer."""
    sealer = "none" if not state.sealer else "alive" if state.alive else "stopped"
    for name in ("none", "alive", "stopped"):
        yield "poimen_audit_sealer", (name,), int(name == sealer)
    yield "poimen_audit_entries", (), state.length
    yield "poimen_audit_lag_seconds", (), state.lag if state.sealer else 0.0
    yield "poimen_audit_added_total", (), state.added
    yield "poimen_audit_sealed_total", (), state.sealed
    yield "poimen_audit_dropped_total", (), state.dropped
    yield "poimen_audit_vanished_total", (), state.vanished


def _labels(names: Iterable[str]) -> dict[str, str]:
    """The label of each name: itself for the first in order, `other` for the rest."""
    return {name: name if at < MOST_NAMES else OTHER for at, name in enumerate(sorted(names))}
