"""Decodes outcome blobs into `Outcome` values, a blob at a time and column by column.

A reader's **cursor** is the ordinal of the stream entry times 65,536, plus the item's place within the entry. So it
says exactly which outcomes were seen, even when the reader stopped in the middle of an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import Any

from poimen_tasks.errors import InvalidArgument, SerializationError
from poimen_tasks.model import ErrorInfo, ItemStatus, Outcome
from poimen_tasks.store.outcome_blob import OutcomeColumns, decode_outcomes
from poimen_tasks.store.ranges import expand_ranges

__all__ = ["ENTRY", "STATUSES", "cursor_start", "decode_blob", "queue_waits", "resume_at", "start_times"]

ENTRY = 1 << 16
"""Cursor values that belong to one stream entry."""

STATUSES = (ItemStatus.SUCCEEDED, ItemStatus.FAILED, ItemStatus.CANCELLED, ItemStatus.SKIPPED)
"""What the numbers in a blob's status column mean."""


def cursor_start(ordinal: int) -> int:
    """The cursor of the first item of a stream entry."""
    return ordinal * ENTRY


def resume_at(after: object) -> tuple[int, int]:
    """Where to go on reading: the ordinal of an entry, and how many of its items were seen already.

    Raises:
        InvalidArgument: not a cursor.
    """
    if after is None:
        return 0, 0
    if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after < 1 << 63:
        raise InvalidArgument(f"after {after!r:.60} is not a cursor; use the cursor of an outcome, or None")
    ordinal, place = divmod(after, ENTRY)
    return ordinal, place + 1


def start_times(columns: OutcomeColumns) -> list[float] | None:
    """When each item's body began, seconds since 1970; None when none did."""
    if columns.starts is None:
        return None
    base = columns.base
    return [base + mark * 1e-6 for mark in accumulate(columns.starts)]


def queue_waits(columns: OutcomeColumns, started: Sequence[float]) -> list[float]:
    """Seconds from ready to started; clocks of two machines may disagree, so never below 0."""
    enqueued = columns.enqueued
    if isinstance(enqueued, list):
        return [max(0.0, start - ready) for start, ready in zip(started, enqueued, strict=True)]
    return [start - enqueued if start > enqueued else 0.0 for start in started]


def decode_blob(blob: bytes, cursor_start: int, *, skip: int = 0) -> list[Outcome[Any]]:
    """The outcomes in a blob, in its order.

    Args:
        blob: the field `b` of a stream entry; empty for an entry without items.
        cursor_start: the cursor of its first item.
        skip: how many of its items to leave out, because they were seen.

    Raises:
        SerializationError: the bytes are not an outcome blob.
    """
    columns = decode_outcomes(blob)
    if columns is None:
        return []
    try:
        outcomes = list(map(_new, repeat(Outcome), zip(*_fields(columns, cursor_start), strict=True)))
    except (TypeError, ValueError, IndexError) as error:
        raise SerializationError(f"outcome blob of {len(blob)} bytes: columns of different lengths: {error}") from error
    return outcomes[skip:] if skip else outcomes


_new: Any = tuple.__new__


def _fields(columns: OutcomeColumns, cursor_start: int) -> tuple[Iterable[Any], ...]:
    """The columns of `Outcome`, in its order."""
    positions = expand_ranges(columns.ranges)
    count = len(positions)
    started = start_times(columns)
    return (
        map(str, positions) if columns.ids is None else columns.ids,
        repeat(STATUSES[0], count) if columns.statuses is None else map(STATUSES.__getitem__, columns.statuses),
        repeat(None, count) if columns.results is None else columns.results,
        repeat(None, count) if not columns.errors else _errors(columns.errors, count),
        repeat(None, count) if started is None else started,
        repeat(0.0, count) if started is None else [micros * 1e-6 for micros in columns.durations or ()],
        repeat(0.0, count) if started is None else queue_waits(columns, started),
        repeat(1, count) if columns.attempts is None else columns.attempts,
        repeat(columns.worker, count),
        repeat(False, count) if not columns.cached else _flags(columns.cached, count),
        range(cursor_start, cursor_start + count),
    )


def _errors(told: list[list[Any]], count: int) -> list[ErrorInfo | None]:
    errors: list[ErrorInfo | None] = [None] * count
    for i, kind, message, traceback in told:
        errors[i] = ErrorInfo(type=kind, message=message, traceback=traceback)
    return errors


def _flags(places: list[int], count: int) -> list[bool]:
    flags = [False] * count
    for i in places:
        flags[i] = True
    return flags
