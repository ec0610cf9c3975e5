"""Encodes the calls of a plan into slices, the unit in which a batch is written.

The first slice is small, so that the first tickets leave at once; each one after it is twice as long, up to a bound in
items and in bytes that keeps every write short.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from poimen_tasks import codec
from poimen_tasks.dispatch.canvas import Plan
from poimen_tasks.dispatch.chunks import Chunk, source_of
from poimen_tasks.dispatch.digests import Digester
from poimen_tasks.dispatch.routing import Router
from poimen_tasks.errors import DuplicateItem, InvalidArgument, PayloadTooLarge, SerializationError
from poimen_tasks.store.chunk_blob import BIG_CALL, CHUNK, KIND_ARGS, KIND_FULL, KIND_SINGLE, encode_chunk
from poimen_tasks.store.values import Part, Slice

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.settings import Settings

__all__ = ["EMPTY", "iter_slices"]

EMPTY = Slice(count=0, chunks=[], runs=[], delayed=[], ids=None, big=[])
"""The slice of a batch without items."""

_FIRST, _MOST, _MOST_HEAVY = 1, 64, 2
"""Chunks in the first slice, in the longest, and in one whose items need work one by one in the store."""
_SLICE_BYTES = 1 << 20
_PATIENCE = 0.5
"""Seconds that a chunk waits for others to fill a slice with it: a slow source hands over one at a time."""
_MANY_RUNS = 8


def iter_slices(
    app: Celery,
    plan: Plan,
    settings: Settings,
    *,
    now: float,
    offset: int = 0,
    parts: Sequence[Part] = (),
) -> Iterator[tuple[Slice, list[Part]]]:
    """Encode a plan, slice by slice, consuming its work only as far as needed.

    Args:
        app: the Celery app that routes and whose tasks are called.
        plan: the work.
        settings: bounds the size of arguments.
        now: the store's time, seconds since 1970; the time that passes while slices are made is added to it.
        offset: items of a batch that is continued which are written already; they are skipped, not encoded.
        parts: the partitions that such a batch has already, in their order.

    Yields:
        A slice, and the partitions that are new since the one before. Work without items yields nothing.

    Raises:
        DuplicateItem: two items of one slice share an id (the store finds those further apart).
        SerializationError: an argument cannot travel; item and path are named, and its slice was not yielded.
        InvalidArgument: ids and values differ in number, or a batch that is continued has no room for the work.
        PoimenError: others of `members` and `CallReader.read`.
    """
    began = since = time.monotonic()
    router = Router(app, queue=plan.queue, priority=plan.priority, known=parts)
    source = source_of(app, plan, router)
    source.skip(offset)
    draft = _Draft(offset, settings.max_argument_bytes, source.first_custom, Digester(app, router))
    length, told = _FIRST, len(parts)
    while True:
        time_now = now + time.monotonic() - began
        chunk = source.read(draft.position, time_now)
        if chunk is None:
            break
        if offset % CHUNK:
            raise InvalidArgument(
                f"the batch ended at {offset} items, and this work has more; give it another batch id"
            )
        ready = draft.close() if draft.is_full_before(chunk) else None
        draft.add(chunk, time_now)
        if ready is None and (draft.is_full(length) or time.monotonic() - since > _PATIENCE):
            ready = draft.close()
        if ready is not None:
            yield ready, router.parts[told:]
            told, length, since = len(router.parts), min(length * 2, _MOST), time.monotonic()
    if draft.count:
        yield draft.close(), router.parts[told:]


class _Draft:
    """The slice being made; it lives on from slice to slice, because ids of all of them must differ."""

    def __init__(self, position: int, limit: int, first_custom: int | None, digester: Digester) -> None:
        self.position = position
        self._limit = limit
        self._first_custom = first_custom
        self._digester = digester
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._chunks: list[bytes] = []
        self._runs: list[tuple[int, int, int]] = []
        self._delayed: list[tuple[int, int, float]] = []
        self._ids: list[str] | None = None
        self._big: list[tuple[int, bytes]] = []
        self._digests: list[tuple[int, bytes]] = []
        self._labels: list[tuple[int, list[str]]] = []
        self._bytes = 0

    def _is_heavy(self, chunk: Chunk | None = None) -> bool:
        """True when the store has work to do for single items."""
        if chunk is not None and (chunk.ids or chunk.dues or chunk.extras):
            return True
        many_runs = len(self._runs) > _MANY_RUNS * max(1, len(self._chunks))
        return self._first_custom is not None or bool(self._delayed or self._big) or many_runs

    def is_full_before(self, chunk: Chunk) -> bool:
        """True when the slice must end because the next chunk is of the heavy kind."""
        return len(self._chunks) >= _MOST_HEAVY and self._is_heavy(chunk)

    def is_full(self, length: int) -> bool:
        """True when the slice has reached its length, in chunks, or its bound in bytes."""
        most = min(length, _MOST_HEAVY) if self._is_heavy() else length
        return len(self._chunks) >= most or self._bytes >= _SLICE_BYTES

    def add(self, chunk: Chunk, now: float) -> None:
        """Encode a chunk and append it."""
        lo, count = self.position, len(chunk.calls)
        ids = self._name_items(chunk, lo, count)
        calls, moved = _encode_calls(chunk, lo, self._limit)
        digests = self._digester.digests(chunk, lo)
        if digests is not None:
            self._digests.append((lo // CHUNK, digests))
        extras = chunk.extras
        if extras and any("t" in extra for extra in extras):
            self._labels.append((lo // CHUNK, [extra.get("t", "") for extra in extras]))
        if moved:
            extras = [dict(extra) for extra in extras] if extras else [{} for _ in range(count)]
            for i, _ in moved:
                extras[i]["big"] = True
        said = [(i, extra) for i, extra in enumerate(extras) if extra] if extras else None
        blob = encode_chunk(enqueued=now, parts=chunk.parts, kind=chunk.kind, calls=calls, ids=ids, extras=said)
        self._chunks.append(blob)
        self._big += [(lo + i, data) for i, data in moved]
        self._bytes += len(blob) + sum(len(data) for _, data in moved)
        self._schedule(chunk, lo, count)
        self.position += count
        self.count += count

    def _name_items(self, chunk: Chunk, lo: int, count: int) -> list[str] | None:
        """The ids of a chunk, or None when all are positions; from the first other one on the store is told all."""
        given: Sequence[str | None] = chunk.ids or [None] * count
        custom = [i for i, item_id in enumerate(given) if item_id is not None] if chunk.ids else []
        if custom and self._first_custom is None:
            self._first_custom = lo + custom[0]
        if self._first_custom is None:
            return None
        ids = [str(lo + i) if item_id is None else item_id for i, item_id in enumerate(given)]
        for i in custom if self._first_custom else ():
            self._refuse_position(ids[i], self._first_custom)
        if self._ids is None:
            self._ids = [str(place) for place in range(lo - self.count, lo)]
        self._ids += ids
        return ids if custom else None

    def _refuse_position(self, item_id: str, first_custom: int) -> None:
        """Refuse an id that an earlier item has because it is its position: the store was not told of those."""
        if item_id.isascii() and item_id.isdecimal() and int(item_id) < first_custom and str(int(item_id)) == item_id:
            raise DuplicateItem(f'item id "{item_id}" is the position of an earlier item; give one of them another id')

    def _schedule(self, chunk: Chunk, lo: int, count: int) -> None:
        if isinstance(chunk.parts, int) and chunk.dues is None:
            self._run(chunk.parts, lo, lo + count)
            return
        parts = [chunk.parts] * count if isinstance(chunk.parts, int) else chunk.parts
        for position, part, due in zip(range(lo, lo + count), parts, chunk.dues or [None] * count, strict=True):
            if due is None:
                self._run(part, position, position + 1)
            else:
                self._delayed.append((position, part, due))

    def _run(self, part: int, lo: int, hi: int) -> None:
        if self._runs and self._runs[-1][0] == part and self._runs[-1][2] == lo:
            self._runs[-1] = (part, self._runs[-1][1], hi)
        else:
            self._runs.append((part, lo, hi))

    def close(self) -> Slice:
        """The finished slice; the draft begins the next one.

        Raises:
            DuplicateItem: two of its items share an id.
        """
        ids = self._ids
        if ids is not None and len(set(ids)) < len(ids):
            twice = next(item_id for item_id, times in Counter(ids).items() if times > 1)
            places = [self.position - self.count + i for i, item_id in enumerate(ids) if item_id == twice]
            raise DuplicateItem(f'item id "{twice}" is used {len(places)} times, at positions {places[:4]}')
        made = Slice(self.count, self._chunks, self._runs, self._delayed, ids, self._big, self._digests, self._labels)
        self._clear()
        return made


def _encode_calls(chunk: Chunk, lo: int, limit: int) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The encoded list of calls, and those that are moved out of line."""

    def name(i: int) -> str:
        own = chunk.ids[i] if chunk.ids else None
        return f'item "{lo + i if own is None else own}": ' + _PATHS[chunk.kind]

    try:
        data = codec.encode_many(chunk.calls, name=name, limit=limit)
    except PayloadTooLarge:
        raise
    except SerializationError:
        if chunk.kind == KIND_FULL:
            _explain(chunk.calls, name)
        raise
    big = [] if len(data) <= BIG_CALL or _all_small(chunk) else codec.oversized(chunk.calls, BIG_CALL)
    if not big:
        return data, []
    kept: list[Any] = list(chunk.calls)
    moved = [(i, codec.encode(kept[i], what=name(i))) for i in big]
    for i in big:
        kept[i] = None
    return codec.encode_many(kept, name=name), moved


def _all_small(chunk: Chunk) -> bool:
    """True when no call can be over the bound, by the number and kinds of its arguments; False says nothing."""
    if chunk.kind == KIND_SINGLE:
        return False
    rows: list[Sequence[Any]] = list(chunk.calls)
    if chunk.kind == KIND_FULL:
        rows = [(*args, *kwargs, *kwargs.values()) for args, kwargs in rows]
    values = list(chain.from_iterable(rows))
    if not set(map(type, values)) <= _SHALLOW:
        return False
    longest = max((len(value) for value in values if type(value) is str), default=1)
    return max(map(len, rows)) * (4 * longest + 5) + 8 <= BIG_CALL


_SHALLOW = frozenset({type(None), bool, int, float, str})
_PATHS = {KIND_SINGLE: "args[0]", KIND_ARGS: "args", KIND_FULL: "call"}


def _explain(calls: Sequence[Any], name: Callable[[int], str]) -> None:
    """Raise for the first call that does not encode, with the path a reader expects."""
    for i, (args, kwargs) in enumerate(calls):
        what = name(i).removesuffix(_PATHS[KIND_FULL])
        codec.encode(args, what=f"{what}args")
        codec.encode(kwargs, what=f"{what}kwargs")
