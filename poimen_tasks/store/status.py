"""A batch's status, built from its counters, the fleet's capacity and the pauses: one pipeline for any number.

Only while something is paused another one asks which of the scopes that cover these batches are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poimen_tasks.model import BatchState, BatchStatus, moment
from poimen_tasks.store.client import Client
from poimen_tasks.store.scripts import unpack_parts
from poimen_tasks.store.values import Part

__all__ = ["read_statuses"]

_COUNTS = ("total", "pending", "delayed", "waiting", "running", "ok", "failed", "cancelled", "skipped", "cached")
_MARKS = ("limit", "sealed", "over", "cancel", "callbacks", "round")
_TIMES = ("created", "started", "finished", "producer")
_TEXTS = ("workflow", "stage")
_FIELDS = (*_COUNTS, *_MARKS, *_TIMES, *_TEXTS, "parts")
_SILENCE = 5.0


def read_statuses(client: Client, batches: Sequence[str]) -> list[BatchStatus | None]:
    """The status of each batch in one round trip; None for one that is not known."""
    rows, clock, tick, capacity, any_paused = client.read(lambda redis: _pipeline(client, redis, batches))
    now = clock[0] + clock[1] / 1e6
    # Capacity is rewritten by each tick: without any tick nobody serves, whatever was written last.
    fleet = capacity if tick is not None and now - float(tick) < _SILENCE else {}
    found = [
        None if values[-1] is None else (batch, dict(zip(_FIELDS, values, strict=True)))
        for batch, values in zip(batches, rows, strict=True)
    ]
    pauses = _paused_scopes(client, [one for one in found if one is not None]) if any_paused else frozenset()
    return [None if one is None else _status(*one, now, fleet, pauses) for one in found]


def _paused_scopes(client: Client, found: Sequence[tuple[str, dict[str, Any]]]) -> frozenset[str]:
    """Which of the scopes that cover these batches are paused."""
    scopes = sorted({scope for batch, row in found for scope in _scopes(batch, row, unpack_parts(row["parts"]))})
    if not scopes:
        return frozenset()
    flags = client.read(lambda redis: redis.hmget(client.keys.build("pauses"), scopes))
    return frozenset(scope for scope, flag in zip(scopes, flags, strict=True) if flag is not None)


def _scopes(batch: str, row: dict[str, Any], parts: Sequence[Part]) -> list[str]:
    """The scopes that cover a batch, wholly or in part."""
    whole = ["*", f"w:{_text(row['workflow'])}", f"b:{batch}"]
    return [*whole, *(scope for part in parts for scope in (f"q:{part.queue}", f"a:{part.activity}"))]


def _pipeline(client: Client, redis: Any, batches: Sequence[str]) -> tuple[Any, ...]:
    keys, pipeline = client.keys, redis.pipeline(transaction=False)
    pipeline.time()
    pipeline.hget(keys.build("clock"), "tick")
    pipeline.hgetall(keys.build("capacity"))
    pipeline.exists(keys.build("pauses"))
    for batch in batches:
        pipeline.hmget(keys.record(batch), list(_FIELDS))
    clock, tick, capacity, pauses, *rows = pipeline.execute()
    return rows, clock, tick, capacity, pauses


def _status(
    batch: str, row: dict[str, Any], now: float, fleet: dict[bytes, bytes], pauses: frozenset[str]
) -> BatchStatus:
    parts = unpack_parts(row["parts"])
    paused_by = tuple(dict.fromkeys(scope for scope in _scopes(batch, row, parts) if scope in pauses))
    paused = _covers(batch, row, parts, pauses)
    return _build_status(batch, row, now, _unserved(row, parts, fleet), paused_by, paused=paused)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _unserved(row: dict[str, Any], parts: Sequence[Part], capacity: dict[bytes, bytes]) -> tuple[str, ...]:
    if row["over"] == b"1":
        return ()
    return tuple(sorted({part.queue for part in parts if not int(capacity.get(part.queue.encode(), b"0"))}))


def _covers(batch: str, row: dict[str, Any], parts: Sequence[Part], pauses: frozenset[str]) -> bool:
    """Whether nothing of the batch can be claimed."""
    if not pauses.isdisjoint(_scopes(batch, row, ())):
        return True
    return bool(parts) and all(f"q:{part.queue}" in pauses or f"a:{part.activity}" in pauses for part in parts)


def _state_of(row: dict[str, Any], numbers: dict[str, int], now: float, *, paused: bool) -> BatchState:
    if numbers["over"]:
        if numbers["cancel"]:
            return BatchState.CANCELLED
        return BatchState.COMPLETED if numbers["ok"] == numbers["total"] else BatchState.FAILED
    if paused:
        return BatchState.PAUSED
    if not numbers["sealed"] and now > float(row["producer"] or 0):
        return BatchState.STALLED
    return BatchState.RUNNING if row["started"] else BatchState.OPEN


def _build_status(
    batch: str,
    row: dict[str, Any],
    now: float,
    unserved: tuple[str, ...],
    paused_by: tuple[str, ...],
    *,
    paused: bool,
) -> BatchStatus:
    numbers = {name: int(row[name] or 0) for name in (*_COUNTS, *_MARKS)}
    times = {name: float(row[name]) if row[name] and float(row[name]) else None for name in _TIMES}
    return BatchStatus(
        batch_id=batch,
        workflow=_text(row["workflow"]),
        stage=_text(row["stage"]),
        state=_state_of(row, numbers, now, paused=paused),
        succeeded=numbers["ok"],
        concurrency=numbers["limit"] or None,
        created_at=moment(times["created"]),
        started_at=moment(times["started"]),
        finished_at=moment(times["finished"]),
        unserved_queues=unserved,
        callbacks_pending=numbers["callbacks"],
        paused_by=paused_by,
        **{name: numbers[name] for name in _COUNTS if name != "ok"},
    )
