"""Many lines at once, written and taken apart: in one call of msgspec instead of one of ours for every line.

Nothing is taken on trust: lines count as sound when they are strict JSON (RFC 8259) of the right types and, written
again, give the same bytes. So keys, their order, numbers and spaces are those of a line; whatever is not is looked at
one by one, for words. An event keeps its bytes, which msgspec only checks.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from poimen_tasks.audit.lines import LEVELS, PRINTABLE, Columns, Lines, places_of, read_event
from poimen_tasks.errors import AuditUnavailable

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Block", "encode", "msgspec_module", "take_apart"]

_FIELDS = ("seq", "epoch", "id", "n", "last", "crc", "event")
_COLUMNS = tuple(map(attrgetter, _FIELDS))
_begins = methodcaller("startswith", b"{")
#: Half of a character (a lone surrogate), which no strict parser takes, can only stand there as an escape.
_HALF = re.compile(rb"\\u[dD]").search
#: What `json` may refuse, by a limit that Python can be given, and msgspec takes; a shorter event has no room for it.
_SHORT, _DIGITS = 640, b"0" * 641
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
#: One more than the numbers that a line may hold.
_BEYOND = 10**20


class Block(NamedTuple):
    """Lines taken apart, whose form and CRCs are right; whether they may follow each other is another matter.

    Attributes:
        seqs: the number of each.
        places: where each stands.
        events: the bytes of each event.
    """

    seqs: list[int]
    places: Columns
    events: list[bytes]


def encode(seq: int, lines: Lines) -> bytes:
    """The lines' bytes, each with its newline, numbered from `seq`.

    Raises:
        AuditUnavailable: the package msgspec is not there.
    """
    epochs, ids, numbers, lasts, events = lines
    codec = _codec()
    count = range(seq, seq + len(events))
    return codec.encode(
        list(map(codec.line, count, epochs, ids, numbers, lasts, _crcs(events), map(codec.raw, events)))
    )


def take_apart(data: bytes) -> Block | None:
    """Lines, each with its newline, taken apart; None: there are none, or not all are as they should be.

    Raises:
        AuditUnavailable: the package msgspec is not there.
    """
    codec = _codec()
    try:
        lines = codec.decode(data)
    except (codec.error, ValueError, RecursionError):
        return None
    if not lines or codec.encode(lines) != data or data.translate(None, PRINTABLE) != b"\n" * len(lines):
        return None
    seqs, epochs, ids, numbers, lasts, crcs, raw = (list(map(column, lines)) for column in _COLUMNS)
    events = list(map(bytes, raw))
    if _crcs(events) != crcs or not all(map(_begins, events)):
        return None
    if max(seqs) >= _BEYOND or max(numbers) >= _BEYOND:
        return None
    try:
        for event in (*filter(_HALF, events if b"\\" in data else ()), *filter(_is_odd, events)):
            read_event(event)
        return Block(seqs, places_of(Lines(epochs, ids, numbers, lasts, events)), events)
    except ValueError:
        return None


def _is_odd(event: bytes) -> bool:
    """Whether an event may be nested deeper, or hold a longer number, than readers take."""
    return len(event) > _SHORT and (
        event.count(b"[") + event.count(b"{") > LEVELS or _DIGITS in event.translate(_ALIKE)
    )


def _crcs(events: Iterable[Any]) -> list[str]:
    made = list(map(zlib.crc32, events))
    return struct.pack(f">{len(made)}I", *made).hex(" ", 4).split()


class _Codec(NamedTuple):
    line: Callable[..., Any]
    raw: Callable[[bytes], Any]
    decode: Callable[[bytes], list[Any]]
    encode: Callable[[list[Any]], bytes]
    error: type[Exception]


@cache
def _codec() -> _Codec:
    msgspec = msgspec_module()
    whole = Annotated[int, msgspec.Meta(ge=0)]
    kinds = (whole, str, str, whole, (bool, False), (str, ""), (msgspec.Raw, msgspec.Raw()))
    fields = [
        (name, *kind) if isinstance(kind, tuple) else (name, kind) for name, kind in zip(_FIELDS, kinds, strict=True)
    ]
    line = msgspec.defstruct("Line", fields, omit_defaults=True, forbid_unknown_fields=True, gc=False)
    return _Codec(
        line,
        msgspec.Raw,
        msgspec.json.Decoder(line).decode_lines,
        msgspec.json.Encoder().encode_lines,
        msgspec.DecodeError,
    )


def msgspec_module() -> ModuleType:
    """The package, which only those need who write or verify a log.

    Raises:
        AuditUnavailable: it is not there.
    """
    try:
        import msgspec
    except ImportError as error:
        raise AuditUnavailable(
            "the audit log on disk needs the package msgspec: pip install 'poimen-tasks[audit]'"
        ) from error
    return msgspec
