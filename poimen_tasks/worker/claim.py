"""A claim as the lane walks through it: positions with their calls, from chunks that the lane keeps at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from poimen_tasks import codec
from poimen_tasks.store.chunk_blob import CHUNK, ChunkView
from poimen_tasks.store.ranges import expand_ranges, ranges_of

if TYPE_CHECKING:
    from poimen_tasks.store import Reads

__all__ = ["Call", "Claim", "OpenItem"]

_KEEP = 4


#: Positional and keyword arguments.
Call = tuple[list[Any], dict[str, Any]]


class OpenItem(NamedTuple):
    """One claimed item, ready to run.

    `call` is a function where it still has to be read; `claim` is the claim number of an item that came back, else 0.
    """

    position: int
    item_id: str | None
    call: Call | Callable[[], Call]
    attempt: int
    enqueued: float
    claim: int
    expires: float | None
    immutable: bool
    more: dict[str, Any] | None


class Claim:
    """What a step's reply gave to this lane."""

    def __init__(  # noqa: PLR0917 - made in two places, both here
        self,
        batch: str,
        reads: Reads | None,
        part: int,
        positions: list[int],
        entries: dict[int, list[Any]],
        chunks: dict[int, ChunkView],
        digests: bytes | None = None,
    ) -> None:
        self.batch = batch
        self._digests = digests
        self.part = part
        self.chunks = chunks
        self._reads = reads
        self._positions = positions
        self._entries = entries

    @classmethod
    def none(cls) -> Claim:
        """Before the first."""
        return cls("", None, 0, [], {}, {})

    @classmethod
    def read(cls, reply: dict[bytes, Any], before: Claim, batch: str, reads: Reads) -> Claim:
        """Read a reply; chunks that the lane had are taken from the claim before."""
        claim = reply[b"claim"]
        fresh = {number: ChunkView(blob) for number, blob in reply.get(b"chunks") or ()}
        positions = list(expand_ranges(claim[b"r"]))
        needed = (
            {position // CHUNK for position in (positions[0], positions[-1])}
            if len(positions) > 1
            else {positions[0] // CHUNK}
        )
        kept = dict(list(before.chunks.items())[-_KEEP:])
        chunks = {**kept, **fresh}
        missing = [n for n in {p // CHUNK for p in positions} | needed if n not in chunks]
        if missing:
            chunks |= reads.chunks(batch, missing)
        entries = {row[0]: row for row in claim.get(b"e") or ()}
        return cls(batch, reads, claim[b"p"], positions, entries, chunks, claim.get(b"d"))

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def positions(self) -> list[int]:
        """The items in the order in which they run."""
        return self._positions

    def item_at(self, place: int) -> tuple[int, int]:
        """Position and attempt of the item at a place."""
        position = self._positions[place]
        entry = self._entries.get(position)
        return position, 1 if entry is None else entry[1] + 1

    def call_of(self, position: int) -> Call | None:
        """What an item is called with; None where that would have to be read from the store."""
        view, entry = self.chunks.get(position // CHUNK), self._entries.get(position)
        if entry is not None and entry[4]:
            args, kwargs = codec.decode(entry[4])
            return args, kwargs
        return None if view is None or view.is_big(position % CHUNK) else view.call(position % CHUNK)

    @property
    def is_cached(self) -> bool:
        """True when results of these items may be cached."""
        return self._digests is not None

    def digest(self, place: int) -> bytes:
        """The cache key whose computation the item at a place leads; zeros for none."""
        return (self._digests or b"")[place * 32 : place * 32 + 32]

    def labels(self, place: int) -> tuple[str, dict[str, Any]]:
        """Id and labels of the item at a place; the labels are those of `encode_chunk`."""
        position = self._positions[place]
        view = self.chunks[position // CHUNK]
        return view.item_id(position % CHUNK, position), view.extras(position % CHUNK)

    def ranges(self, start: int, stop: int) -> list[int]:
        """The items between two places as flat ranges."""
        return ranges_of(self._positions[start:stop])

    def items(self) -> Iterator[OpenItem]:
        """Each item in turn, its call built when its turn comes."""
        number, view = -1, None
        for position in self._positions:
            if position // CHUNK != number or view is None:
                number = position // CHUNK
                view = self.chunks[number]
                plain = not view.has_extras and view.custom_ids(0, 1) is None and not self._entries
            i = position % CHUNK
            if plain:
                yield OpenItem(position, None, view.call(i), 1, view.enqueued, 0, None, False, None)
            else:
                yield self._open(position, view, i)

    def _open(self, position: int, view: ChunkView, i: int) -> OpenItem:
        entry, extras = self._entries.get(position), view.extras(i)
        attempt, claim, enqueued, changed = 1, 0, view.enqueued, None
        if entry is not None:
            attempt, claim = entry[1] + 1, entry[2]
            enqueued = float(entry[3]) if entry[3] else enqueued
            changed = entry[4] or None
        call = partial(self._read_call, position, view, i, changed)
        more = {}
        if extras.get("cb"):
            more["callbacks"] = extras["cb"]
        if extras.get("eb"):
            more["errbacks"] = extras["eb"]
        item_id = None if view.custom_ids(i, i + 1) is None else view.item_id(i, position)
        return OpenItem(
            position, item_id, call, attempt, enqueued, claim, extras.get("x"), bool(extras.get("im")), more or None
        )

    def _read_call(self, position: int, view: ChunkView, i: int, changed: bytes | None) -> Call:
        """The call as its last retry changed it, or from out of line, or from the chunk."""
        if changed is not None:
            args, kwargs = codec.decode(changed)
            return args, kwargs
        if view.is_big(i) and self._reads is not None:
            return view.open_big(self._reads.big_call(self.batch, position))
        return view.call(i)
