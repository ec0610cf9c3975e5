"""Reads a plan 256 items at a time.

Everything that can be done for a chunk at once is: a `Map` costs nothing per item in Python, and signatures of one task
without options are read column by column. Only what is out of the ordinary (an `Item`, an option, a dict, a router that
looks at arguments) is read one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery.canvas import Signature

from poimen_tasks.dispatch.calls import CallReader, check_call
from poimen_tasks.dispatch.canvas import Map, Plan, StarMap, members
from poimen_tasks.dispatch.registry import task_of
from poimen_tasks.errors import InvalidArgument, UnsupportedWork
from poimen_tasks.ids import check_labels
from poimen_tasks.model import Item
from poimen_tasks.store.chunk_blob import CHUNK, KIND_ARGS, KIND_FULL, KIND_SINGLE

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.dispatch.routing import Router

__all__ = ["Chunk", "Source", "source_of"]


class Chunk(NamedTuple):
    """Up to 256 calls, normalised and not yet encoded.

    Attributes:
        kind: how a call is written; see `encode_chunk`.
        calls: the calls in that form.
        parts: the partition of all, or of each.
        ids: the own id of each, None for its position; None when none has one.
        dues: when each may run, None for at once; None when all may.
        extras: what each carries besides; None when none carries anything.
    """

    kind: int
    calls: Sequence[Any]
    parts: int | list[int]
    ids: Sequence[str | None] | None = None
    dues: list[float | None] | None = None
    extras: list[dict[str, Any]] | None = None


class Source(Protocol):
    """Where chunks come from."""

    first_custom: int | None
    """The position of the first skipped item with an id of its own, if there was one."""

    def skip(self, count: int) -> None:
        """Pass over items that are written already."""

    def read(self, position: int, now: float) -> Chunk | None:
        """The next chunk, which begins at a position; None at the end."""


def source_of(app: Celery, plan: Plan, router: Router) -> Source:
    """Make the source of a plan's calls."""
    reader = CallReader(app, router, plan.options)
    calls = plan.calls
    return _Rows(app, calls, reader) if isinstance(calls, Map) else _Members(app, calls, reader)


def _shape(calls: Sequence[tuple[Sequence[Any], Any]]) -> tuple[int, Sequence[Any]]:
    """The smallest way to write calls given as (args, kwargs)."""
    if any(kwargs for _, kwargs in calls):
        return KIND_FULL, calls
    return _shape_args([args for args, _ in calls])


def _shape_args(rows: Sequence[Sequence[Any]]) -> tuple[int, Sequence[Any]]:
    if set(map(len, rows)) == {1}:
        return KIND_SINGLE, [row[0] for row in rows]
    return KIND_ARGS, rows


def _check_lengths(task: Any, rows: Sequence[Sequence[Any]], position: int) -> None:
    """Positional arguments fit or not by their number alone, so one check for each number is enough."""
    lengths = list(map(len, rows))
    for length in set(lengths):
        check_call(task, (None,) * length, {}, f'item "{position + lengths.index(length)}"')


def _check_shapes(task: Any, args: Sequence[Sequence[Any]], kwargs: Sequence[dict[str, Any]], position: int) -> None:
    """The same with keyword arguments, by their names alone."""
    shapes = list(zip(map(len, args), map(tuple, kwargs), strict=True))
    for shape in set(shapes):
        check_call(task, (None,) * shape[0], dict.fromkeys(shape[1]), f'item "{position + shapes.index(shape)}"')


def _one_by_one(reader: CallReader, rows: Sequence[Any], position: int, now: float) -> Chunk:
    calls = [reader.read(row, place, now) for place, row in enumerate(rows, position)]
    kind, written = _shape([(call.args, call.kwargs) for call in calls])
    ids, dues, extras = [call.id for call in calls], [call.due for call in calls], [call.extra for call in calls]
    parts = [call.part for call in calls]
    return Chunk(
        kind,
        written,
        parts[0] if len(set(parts)) == 1 else parts,
        None if ids.count(None) == len(ids) else ids,
        None if dues.count(None) == len(dues) else dues,
        extras if any(extras) else None,
    )


# --- signatures and items ----------------------------------------------------------------------------------------

_ONLY_SIGNATURES = frozenset({Signature})
_POSITIONAL = frozenset({list, tuple})
_NAMED = frozenset({dict})
_args, _kwargs, _options = itemgetter("args"), itemgetter("kwargs"), itemgetter("options")
_made_by = (itemgetter("task"), attrgetter("_type"), attrgetter("_app"))


class _Members:
    """An iterable of signatures and items."""

    def __init__(self, app: Celery, calls: Iterable[Any], reader: CallReader) -> None:
        self._members = members(app, calls)
        self._reader = reader
        self.first_custom: int | None = None

    def skip(self, count: int) -> None:
        for place, member in enumerate(islice(self._members, count)):
            if self.first_custom is None and _own_id(member) is not None:
                self.first_custom = place

    def read(self, position: int, now: float) -> Chunk | None:
        rows = list(islice(self._members, CHUNK))
        if not rows:
            return None
        try:
            chunk = self._columns(rows, position)
        except KeyError:  # a signature made by hand may lack what Celery's own always have
            chunk = None
        return chunk or _one_by_one(self._reader, rows, position, now)

    def _columns(self, rows: list[Any], position: int) -> Chunk | None:
        """The chunk, when its rows are signatures of one task without options; None when they are not."""
        if set(map(type, rows)) != _ONLY_SIGNATURES:
            return None
        if any(map(_options, rows)) or any(len(set(map(column, rows))) > 1 for column in _made_by):
            return None
        task = self._reader.task(rows[0], f'item "{position}"')
        args = list(map(_args, rows))
        if not self._reader.is_plain(task) or not set(map(type, args)) <= _POSITIONAL:
            return None
        part = self._reader.part(task)
        if not any(map(_kwargs, rows)):
            _check_lengths(task, args, position)
            return Chunk(*_shape_args(args), part)
        kwargs = list(map(_kwargs, rows))
        _check_shapes(task, args, kwargs, position)
        return Chunk(KIND_FULL, list(zip(args, kwargs, strict=True)), part)


def _own_id(member: Any) -> Any:
    if isinstance(member, Item) and member.id is not None:
        return member.id
    signature = member.signature if isinstance(member, Item) else member
    return (signature.get("options") or {}).get("task_id")


# --- maps --------------------------------------------------------------------------------------------------------


class _Rows:
    """The values of a `Map` or the rows of a `StarMap`."""

    first_custom: int | None = None

    def __init__(self, app: Celery, work: Map, reader: CallReader) -> None:
        self._task = task_of(app, work.task)
        self._rows = iter(work.iterable)
        self._ids: Iterator[Any] | None = None if work.ids is None else iter(work.ids)
        self._star = isinstance(work, StarMap)
        self._reader = reader
        if not self._star:
            check_call(self._task, (None,), {}, "map")

    def skip(self, count: int) -> None:
        _consume(self._rows, count)
        if self._ids is not None and count:
            self.first_custom = 0
            _consume(self._ids, count)

    def read(self, position: int, now: float) -> Chunk | None:
        rows = list(islice(self._rows, CHUNK))
        ids = self._read_ids(len(rows), position)
        if not rows:
            return None
        chunk = self._columns(rows, position) if self._reader.is_plain(self._task) else None
        if chunk is None:
            calls = [self._signature(row, place) for place, row in enumerate(rows, position)]
            chunk = _one_by_one(self._reader, calls, position, now)
        return chunk if ids is None else chunk._replace(ids=ids)

    def _read_ids(self, count: int, position: int) -> list[str] | None:
        if self._ids is None:
            return None
        ids = list(islice(self._ids, count if count == CHUNK else count + 1))
        if len(ids) != count:
            more = "fewer" if len(ids) < count else "more"
            raise InvalidArgument(f"map: there are {more} ids than values ({position + count} so far); give one each")
        return check_labels(ids, "item id")

    def _columns(self, rows: list[Any], position: int) -> Chunk | None:
        if not self._star:
            return Chunk(KIND_SINGLE, rows, self._reader.part(self._task))
        kinds = set(map(type, rows))
        if kinds <= _POSITIONAL:
            _check_lengths(self._task, rows, position)
            return Chunk(KIND_ARGS, rows, self._reader.part(self._task))
        if kinds != _NAMED:
            return None
        _check_shapes(self._task, [()] * len(rows), rows, position)
        return Chunk(KIND_FULL, [((), row) for row in rows], self._reader.part(self._task))

    def _signature(self, row: Any, place: int) -> dict[str, Any]:
        if not self._star:
            return {"task": self._task.name, "args": (row,)}
        if isinstance(row, dict):
            return {"task": self._task.name, "kwargs": row}
        if isinstance(row, list | tuple):
            return {"task": self._task.name, "args": row}
        raise UnsupportedWork(
            f'item "{place}": {type(row).__name__} {row!r:.60} is not a row of starmap; use a list, a tuple or a dict'
        )


def _consume(iterator: Iterator[Any], count: int) -> None:
    next(islice(iterator, count, count), None)
