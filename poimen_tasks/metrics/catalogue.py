"""Every metric: its name, type, labels and meaning. `docs/metrics.md` has the same table, held against this one.

Names follow Prometheus: a unit behind the name, `_total` for what only grows. No label has a batch, an item, a workflow
or a worker in it: such a set would grow for ever. Labels that name a task or a queue are bounded, see `filling`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["CATALOGUE", "Definition"]


class Definition(NamedTuple):
    """One metric: `labels` of each of its samples, `help` as the exposition has it."""

    name: str
    kind: Literal["gauge", "counter", "info"]
    help: str
    labels: tuple[str, ...] = ()


CATALOGUE: tuple[Definition, ...] = (
    Definition("poimen_up", "gauge", "1: the store answered this scrape; 0: it did not, and only health is told"),
    Definition("poimen_build_info", "info", "The version that tells this", ("version",)),
    Definition("poimen_health", "gauge", "The worst finding of a check of poimen health: 0 ok, 1 warning, 2 error",
               ("check",)),
    Definition("poimen_scrape_seconds", "gauge", "What reading all this took"),
    Definition("poimen_store_round_trip_seconds", "gauge", "One round trip to the store"),
    Definition("poimen_store_memory_bytes", "gauge", "Memory that the store's server uses"),
    Definition("poimen_store_memory_limit_bytes", "gauge", "Its maxmemory; 0: none"),
    Definition("poimen_workers", "gauge",
               "Workers: alive, leaving (alive and asked to leave), or silent for over 6 s, until another forgets it",
               ("state",)),
    Definition("poimen_slots", "gauge", "Items that the live workers run at a time"),
    Definition("poimen_lanes", "gauge", "Slots of batches in use: lanes that live"),
    Definition("poimen_tickets", "gauge", "Tickets that wait for a worker"),
    Definition("poimen_plain_calls", "gauge", "Plain calls of tasks: running, or parked by a pause", ("state",)),
    Definition("poimen_keeper_silence_seconds", "gauge", "Seconds since any worker told that it lives"),
    Definition("poimen_queue_slots", "gauge", "Slots of the live workers that serve a queue", ("queue",)),
    Definition("poimen_queue_lanes", "gauge", "Lanes that serve a queue", ("queue",)),
    Definition("poimen_queue_tickets", "gauge", "Tickets that wait on a queue", ("queue",)),
    Definition("poimen_batches_kept", "gauge", "Batches in the store: open, or over and within their retention"),
    Definition("poimen_batches_open", "gauge", "Batches that are not over"),
    Definition("poimen_callbacks_open", "gauge", "Callbacks that are not over"),
    Definition("poimen_oldest_batch_seconds", "gauge", "Age of the oldest batch that is not over; 0: there is none"),
    Definition("poimen_batches_examined", "gauge",
               "Open batches that the next three are about: the oldest 1,000 at most"),
    Definition("poimen_batches", "gauge", "Open batches by state: open, running, paused, stalled", ("state",)),
    Definition("poimen_batches_unserved", "gauge", "Open batches with a queue that no live worker serves"),
    Definition("poimen_items", "gauge", "Items of open batches by state: pending, delayed, waiting, running",
               ("state",)),
    Definition("poimen_items_finished_total", "counter",
               "Outcomes recorded, of items: succeeded, failed, cancelled, skipped", ("activity", "status")),
    Definition("poimen_items_retried_total", "counter", "Attempts of items that failed and are made again",
               ("activity",)),
    Definition("poimen_lanes_lost_total", "counter", "Lanes that were lost: their process died, or fell silent"),
    Definition("poimen_batches_finished_total", "counter", "Batches that ended: completed, failed, cancelled",
               ("state",)),
    Definition("poimen_callbacks_finished_total", "counter",
               "Callbacks that ended: succeeded, failed, cancelled, skipped", ("status",)),
    Definition("poimen_paused_scopes", "gauge",
               "Scopes that are paused now: everything, workflow, batch, queue, activity; unknown: beyond 10,000",
               ("scope",)),
    Definition("poimen_pauses_total", "counter", "Pauses so far"),
    Definition("poimen_resumes_total", "counter", "Resumes so far"),
    Definition("poimen_cache_entries", "gauge", "Results in the cache"),
    Definition("poimen_cache_entries_limit", "gauge", "How many there may be: POIMEN_CACHE_MAX_ENTRIES"),
    Definition("poimen_cache_bytes", "gauge", "Size of the results in the cache"),
    Definition("poimen_cache_limit_bytes", "gauge", "How large they may be together: POIMEN_CACHE_MAX_BYTES"),
    Definition("poimen_cache_computations", "gauge", "Results that are computed now, once for all that ask"),
    Definition("poimen_cache_requests_total", "counter",
               "Results asked for: hit, miss, coalesced (waited for an equal call)", ("activity", "result")),
    Definition("poimen_cache_saved_seconds_total", "counter", "What hits and coalesced calls took when computed",
               ("activity",)),
    Definition("poimen_cache_removed_total", "counter", "Results removed: evicted, expired, invalidated, corrupt",
               ("reason",)),
    Definition("poimen_cache_rejected_total", "counter",
               "Results not kept: refused (too large), stale, fenced, uncacheable (no key)", ("reason",)),
    Definition("poimen_audit_entries", "gauge", "Entries in the audit stream; with a sealer, those that wait for it"),
    Definition("poimen_audit_lag_seconds", "gauge", "How long the oldest of them has waited; 0 without a sealer"),
    Definition("poimen_audit_sealer", "gauge", "The sealer: 1 of none, alive, stopped", ("state",)),
    Definition("poimen_audit_added_total", "counter", "Entries written so far, of which one may become many lines"),
    Definition("poimen_audit_sealed_total", "counter", "Lines of the sealed log: its last sequence"),
    Definition("poimen_audit_dropped_total", "counter", "Entries dropped while no sealer was registered"),
    Definition("poimen_audit_vanished_total", "counter", "Entries that left the stream unsealed: gaps in the log"),
)  # fmt: skip
