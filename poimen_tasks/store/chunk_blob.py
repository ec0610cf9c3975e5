"""A chunk blob: the calls of 256 consecutive items, as producers write it and workers read it."""

from __future__ import annotations

from typing import Any

from poimen_tasks import codec
from poimen_tasks.errors import SerializationError
from poimen_tasks.store.columns import pack_columns

__all__ = ["BIG_CALL", "CHUNK", "KIND_ARGS", "KIND_FULL", "KIND_SINGLE", "ChunkView", "encode_chunk"]

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
    head = pack_columns(("enqueued", "parts", "kind"), [float(enqueued), parts, kind])
    return b"".join((b"\x96", head, calls, pack_columns(("ids", "item options"), [ids, extras or None])))


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
