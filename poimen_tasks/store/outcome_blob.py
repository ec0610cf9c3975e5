"""An outcome blob: what one finish recorded, as workers write it and whoever asks for outcomes reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import sub
from typing import Any, NamedTuple

from poimen_tasks import codec
from poimen_tasks.errors import SerializationError
from poimen_tasks.store.columns import Encoded, pack_column, pack_columns
from poimen_tasks.store.ranges import ranges_of

__all__ = ["OutcomeColumns", "decode_outcomes", "encode_outcomes"]


def _micros(seconds: Iterable[float]) -> list[int]:
    return [round(value * 1e6) for value in seconds]


def _starts(started: Sequence[float]) -> list[int]:
    """Microseconds from the start before; rounded against the first one, so that errors do not add up."""
    base = started[0]
    marks = [round((start - base) * 1e6) for start in started]
    return [0, *map(sub, marks[1:], marks)]


def _text(value: str) -> str:
    """A text that surely encodes: an error must be recorded even when its message is not valid Unicode."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def encode_outcomes(
    *,
    positions: Sequence[int],
    started: Sequence[float] | None,
    durations: Sequence[float],
    statuses: list[int] | None = None,
    results: list[Any] | None = None,
    errors: Sequence[tuple[int, str, str, str]] | None = None,
    attempts: list[int] | None = None,
    worker: str = "",
    enqueued: float | list[float] = 0.0,
    ids: list[str] | None = None,
    cached: Sequence[int] | None = None,
) -> bytes:
    """Encode what one finish records; every argument is a column over the same items.

    Meant for a runner that keeps one plain list per column, appends to each once an item, and encodes once.
    Columns that say nothing (all succeeded, one attempt each, no result) are left out.

    Args:
        positions: places in the batch, in the order of the other columns.
        started: seconds since 1970; None when none of them started.
        durations: seconds in the body; ignored when none started.
        statuses: 0 succeeded, 1 failed, 2 cancelled, 3 skipped; None when all succeeded.
        results: return values from `pack_result`; None for one that did not succeed.
        errors: `(i, type, message, traceback)` with `i` the place in these columns.
        attempts: runs each item took; None for one each.
        worker: the worker's name.
        enqueued: when the items became ready to run, seconds since 1970; one for all, or one each.
        ids: the items' ids; None when each is its position.
        cached: places in these columns of results that came from the cache.

    Raises:
        SerializationError: a result did not go through `pack_result` and the codec does not carry it.
    """
    if not positions:
        return b""
    head = [
        ranges_of(positions),
        float(started[0]) if started else 0.0,
        _starts(started) if started else None,
        _micros(durations) if started else None,
        statuses if statuses is not None and any(statuses) else None,
    ]
    tail = [
        [[i, _text(kind), _text(message), _text(trace)] for i, kind, message, trace in errors] if errors else None,
        None if attempts is None or attempts.count(1) == len(attempts) else attempts,
        _text(worker),
        enqueued if isinstance(enqueued, list) else float(enqueued),
        ids,
        list(cached) if cached else None,
    ]
    if results is None or results.count(None) == len(results):
        return codec.encode_many([*head, None, *tail], name=_COLUMNS.__getitem__)
    if Encoded not in set(map(type, results)):
        return codec.encode_many([*head, results, *tail], name=_COLUMNS.__getitem__)
    packed_head, packed_tail = pack_columns(_COLUMNS, head), pack_columns(_COLUMNS[6:], tail)
    return b"".join((b"\x9c", packed_head, pack_column(results), packed_tail))


class OutcomeColumns(NamedTuple):
    """An outcome blob, read: see `encode_outcomes`. Starts (from the one before) and durations are microseconds."""

    ranges: list[int]
    base: float
    starts: list[int] | None
    durations: list[int] | None
    statuses: list[int] | None
    results: list[Any] | None
    errors: list[list[Any]] | None
    attempts: list[int] | None
    worker: str
    enqueued: float | list[float]
    ids: list[str] | None
    cached: list[int] | None


_COLUMNS = OutcomeColumns._fields


def decode_outcomes(blob: bytes) -> OutcomeColumns | None:
    """Read an outcome blob into its columns; None for the empty blob of an entry without items.

    Raises:
        SerializationError: the bytes are not an outcome blob.
    """
    if not blob:
        return None
    row = codec.decode(blob)
    if not isinstance(row, list) or len(row) != 12 or not isinstance(row[0], list):
        raise SerializationError(f"outcome blob of {len(blob)} bytes: expected a list of 12 columns, got {row!r:.80}")
    return OutcomeColumns(*row)
