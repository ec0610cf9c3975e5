"""What the scripts take and answer, as values."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "Appended",
    "Opened",
    "Part",
    "Reaped",
    "Revoked",
    "Sealed",
    "Slice",
    "Ticket",
    "WaitingCall",
]


class Part(NamedTuple):
    """One partition of a batch: what all items of one route, activity and set of limits share.

    The partition number is its place in order of first appearance. `priority` is the broker's number (None: its
    default), limits are seconds (None: none), `prefetch` caps the items of one claim, `max_lost` how often a worker
    may die under an item; `cached`: results come from the cache where it has them.
    """

    queue: str
    exchange: str
    routing_key: str
    priority: int | None
    activity: str
    soft_time_limit: float | None
    time_limit: float | None
    prefetch: int | None
    max_lost: int
    cached: bool = False


class Slice(NamedTuple):
    """Consecutive items of a batch, encoded, as one append writes them.

    Attributes:
        count: items in it.
        chunks: their chunk blobs in order; the slice begins at a multiple of 256.
        runs: `(partition, lo, hi)` of the items that may run at once; positions are those of the batch.
        delayed: `(position, partition, due)` of the others; due in seconds since 1970.
        ids: the ids of all its items, or None when each is its position.
        big: `(position, encoded call)` of the calls that are stored out of line.
        digests: `(chunk number, 32 bytes an item)`: cache keys, for chunks that have items with one; zeros for none.
        labels: `(chunk number, task ids)`, for chunks that have items with one; an empty text for none.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a slice
    chunks: list[bytes]
    runs: list[tuple[int, int, int]]
    delayed: list[tuple[int, int, float]]
    ids: list[str] | None
    big: list[tuple[int, bytes]]
    digests: list[tuple[int, bytes]] = []  # noqa: RUF012 - a default that nobody changes
    labels: list[tuple[int, list[str]]] = []  # noqa: RUF012 - a default that nobody changes


class Ticket(NamedTuple):
    """A message that the caller of a script must publish: it carries a slot of a batch to a worker."""

    batch: str
    slot: int
    generation: int
    queue: str
    partition: int


class Opened(NamedTuple):
    """Reply of `open_batch`."""

    existed: bool
    total: int
    sealed: bool
    over: bool
    workflow: str
    stage: str
    tickets: list[Ticket]


class Appended(NamedTuple):
    """Reply of `append_items`."""

    total: int
    tickets: list[Ticket]


class Sealed(NamedTuple):
    """Reply of `seal_batch`."""

    over: bool
    tickets: list[Ticket]


class WaitingCall(NamedTuple):
    """A plain call that waited for a result and is released: its caller publishes its message, as it was encoded."""

    id: str
    message: bytes


class Reaped(NamedTuple):
    """Reply of `reap_lane`.

    Attributes:
        reaped: False when there was nothing to settle.
        lost: positions of the items that were given up.
        revoked: positions of the items that had been revoked.
        calls: plain calls that were released.
    """

    reaped: bool
    tickets: list[Ticket]
    lost: list[int]
    revoked: list[int]
    calls: list[WaitingCall]


class Revoked(NamedTuple):
    """Reply of `cancel_items`: flat ranges of positions that this call changed.

    Attributes:
        settled: waited, and have their outcome now.
        running: are held by lanes, and are marked now.
        over: the batch is over.
    """

    settled: list[int]
    running: list[int]
    over: bool
    tickets: list[Ticket]
