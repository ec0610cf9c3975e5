"""What travels between producers, Redis and workers: chunk blobs and outcome blobs.

A **chunk blob** holds the calls of 256 consecutive items, an **outcome blob** what one finish recorded. Both are
columns, not records, because their cost is counted in bytes per item. Encoder and decoder of each stand side by side
here; producers and workers both need them and may not import each other.

Both blobs are plain codec values, so `codec.decode` alone reads them. They are *written* column by column and the
encoded columns are joined: a column that is already encoded (a result that a worker checked when it was made) goes in
as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import sub
from typing import Any, NamedTuple

from poimen_tasks import codec
from poimen_tasks.errors import SerializationError

__all__ = [
    "BIG_CALL",
    "CHUNK",
    "KIND_ARGS",
    "KIND_FULL",
    "KIND_SINGLE",
    "ChunkView",
    "Encoded",
    "OutcomeColumns",
    "decode_outcomes",
    "encode_chunk",
    "encode_outcomes",
    "expand_ranges",
    "pack_result",
    "ranges_of",
]

CHUNK = 256
"""Items in a chunk blob; every chunk of a batch but its last is full."""

BIG_CALL = 1024
"""A call of more encoded bytes than this is stored out of line, so that a chunk stays cheap to read."""

KIND_SINGLE = 0
"""Every call of the chunk is its single positional argument."""
KIND_ARGS = 1
"""Every call is the list of its positional arguments."""
KIND_FULL = 2
"""Every call is `[args, kwargs]`."""

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_SHORT = 1024


# --- lists made of encoded pieces --------------------------------------------------------------------------------


class Encoded(bytes):
    """A value in its codec form: put into a column as it is, never encoded again."""

    __slots__ = ()


def _pack_columns(names: Sequence[str], columns: list[Any]) -> bytes:
    """Encode up to 15 columns in one call, without the head of the list around them."""
    return codec.encode_many(columns, name=names.__getitem__)[1:]


# --- chunk blobs -------------------------------------------------------------------------------------------------


def encode_chunk(
    *,
    enqueued: float,
    parts: int | list[int],
    kind: int,
    calls: bytes,
    ids: list[str] | None = None,
    extras: list[tuple[int, dict[str, Any]]] | None = None,
) -> bytes:
    """Encode the calls of up to 256 consecutive items.

    Args:
        enqueued: when they were dispatched, seconds since 1970.
        parts: the partition of all of them, or of each.
        kind: how a call is written: `KIND_SINGLE`, `KIND_ARGS` or `KIND_FULL`.
        calls: the encoded list of calls; None stands for a call that is out of line.
        ids: the ids of all of them; None when each is its position.
        extras: `(i, {...})` for items that carry more: `t` task id, `m` model id, `g` tags, `l` limit key, `x` expires
            (seconds since 1970), `cb` and `eb` signatures to call on success and failure, `big` true when the call is
            out of line.
    """
    head = _pack_columns(("enqueued", "parts", "kind"), [float(enqueued), parts, kind])
    return b"".join((b"\x96", head, calls, _pack_columns(("ids", "item options"), [ids, extras or None])))


class ChunkView:
    """The calls of a chunk blob, each built when it is asked for; `i` counts from the chunk's first item."""

    __slots__ = ("_calls", "_extras", "_ids", "_kind", "_parts", "enqueued")

    def __init__(self, blob: bytes) -> None:
        """Read a chunk blob.

        Raises:
            SerializationError: the bytes are not a chunk blob.
        """
        row = codec.decode(blob)
        if not isinstance(row, list) or len(row) != 6 or not isinstance(row[3], list):
            raise SerializationError(f"chunk blob of {len(blob)} bytes: expected a list of 6 columns, got {row!r:.80}")
        self.enqueued: float = row[0]
        self._parts: int | list[int] = row[1]
        self._kind: int = row[2]
        self._calls: list[Any] = row[3]
        self._ids: list[str] | None = row[4]
        self._extras: dict[int, dict[str, Any]] = dict(row[5] or ())

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def has_extras(self) -> bool:
        """False when no item of the chunk carries more than its call."""
        return bool(self._extras)

    def call(self, i: int) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of an item whose call is not out of line."""
        return self._open(self._calls[i])

    def is_big(self, i: int) -> bool:
        """True when the item's call is out of line: read it and give it to `open_big`."""
        return bool(self._extras) and "big" in self._extras.get(i, ())

    def open_big(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments from the bytes of a call that was stored out of line."""
        return self._open(codec.decode(data))

    def _open(self, call: Any) -> tuple[list[Any], dict[str, Any]]:
        if self._kind == KIND_SINGLE:
            return [call], {}
        if self._kind == KIND_ARGS:
            return call, {}
        return call[0], call[1]

    def part(self, i: int) -> int:
        """The partition of an item."""
        return self._parts if isinstance(self._parts, int) else self._parts[i]

    def item_id(self, i: int, position: int) -> str:
        """The id of an item, given its position in the batch."""
        return str(position) if self._ids is None else self._ids[i]

    def custom_ids(self, lo: int, hi: int) -> list[str] | None:
        """The ids of the items `lo:hi` of this chunk, or None when each is its position."""
        return None if self._ids is None else self._ids[lo:hi]

    def extras(self, i: int) -> dict[str, Any]:
        """What an item carries besides its call; see `encode_chunk`."""
        return self._extras.get(i, _NOTHING)


_NOTHING: dict[str, Any] = {}


# --- outcome blobs -----------------------------------------------------------------------------------------------


def _is_plain(value: Any) -> bool:
    """True for a value that any column carries without a look inside."""
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return True
    if kind is int:
        return bool(_INT_MIN <= value <= _INT_MAX)
    # A text that is not ASCII could hold a lone surrogate; a long one is cheaper to keep encoded.
    return kind is str and len(value) <= _SHORT and value.isascii()


def pack_result(value: Any, *, what: str = "result", limit: int | None = None) -> Any:
    """Make a task's return value ready for a buffer of results.

    Short scalars are returned as they are. Anything else is encoded at once and returned as `Encoded`, so a value that
    cannot travel is found while its own item can still be failed, and never spoils the items beside it.

    Args:
        value: what the task returned.
        what: names it in an error, e.g. `item "7": result`.
        limit: how many encoded bytes it may take.

    Raises:
        SerializationError: the codec does not carry it; the path to the offending value is named.
        PayloadTooLarge: it is over the limit.
    """
    return value if _is_plain(value) else Encoded(codec.encode(value, what=what, limit=limit))


def _pack_results(results: list[Any]) -> bytes:
    """Encode a column of results some of which are encoded already."""
    return codec.frame([value if type(value) is Encoded else codec.encode(value) for value in results])


def ranges_of(positions: Sequence[int]) -> list[int]:
    """Write positions as flat half-open ranges `[lo, hi, lo, hi, ...]` in the same order."""
    if not positions:
        return []
    first, count = positions[0], len(positions)
    if positions[-1] - first == count - 1 and list(positions) == list(range(first, first + count)):
        return [first, first + count]
    flat = [first, first + 1]
    for position in positions[1:]:
        if position == flat[-1]:
            flat[-1] += 1
        else:
            flat += (position, position + 1)
    return flat


def expand_ranges(flat: Sequence[int]) -> Sequence[int]:
    """The positions that flat ranges stand for, in order."""
    if len(flat) == 2:
        return range(flat[0], flat[1])
    return [position for lo, hi in zip(flat[::2], flat[1::2], strict=True) for position in range(lo, hi)]


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
    packed_head, packed_tail = _pack_columns(_COLUMNS, head), _pack_columns(_COLUMNS[6:], tail)
    return b"".join((b"\x9c", packed_head, _pack_results(results), packed_tail))


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
