"""Values on the wire: one strict msgpack codec, its canonical form, and strict JSON for people.

Carried: None, bool, int (-2**63 to 2**64-1), float, str, bytes, list, tuple (comes back a list), dict with str keys,
datetime (aware; comes back with its UTC offset, in whole seconds), date, timedelta, Decimal and UUID, nested up to
`MAX_DEPTH`. Types are matched exactly: a subclass would come back as something else, so it is refused like any other
foreign type. The bytes are [msgpack](https://github.com/msgpack/msgpack/blob/master/spec.md) with five application
extension types, and a sixth around a value that was compressed (`compress`); it reads as that value.

Decoding builds these types only: nothing is unpickled, and no class is looked up by name.
"""

from __future__ import annotations

import hashlib
import math
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgpack  # type: ignore[import-untyped, unused-ignore]

from poimen_tasks._compress import COMPRESSED, compress, unwrap
from poimen_tasks._json import jsonable
from poimen_tasks._refusals import (
    ALLOWED,
    CARRIED,
    FIXED,
    LEAVES,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    SEQUENCES,
    bad_offset,
    explain,
    foreign,
    step,
    too_large,
)
from poimen_tasks.errors import SerializationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_VALUES",
    "canonical",
    "compress",
    "decode",
    "encode",
    "encode_many",
    "frame",
    "input_hash",
    "jsonable",
    "oversized",
]

_FIXED_BYTES = 9
_TEXT_ONLY = frozenset({str})
_ARE_LEAVES = LEAVES.issuperset
_ARE_CARRIED = CARRIED.issuperset
_ARE_TEXT = _TEXT_ONLY.issuperset
_PACKING_FAILED = (SerializationError, ValueError, OverflowError, TypeError, RuntimeError)


def encode(value: Any, *, what: str = "value", limit: int | None = None) -> bytes:
    """Encode one value.

    Args:
        value: anything the module's docstring lists.
        what: names the value in an error; the path to the culprit follows it directly, as in `item "7": args[0].rows`.
        limit: most bytes the result may take; None is `MAX_BYTES`.

    Raises:
        SerializationError: something in the value is not carried.
        PayloadTooLarge: the result is over the limit, or over `MAX_VALUES`.
    """
    try:
        if type(value) not in LEAVES:
            _check((value,))
        blob: bytes = msgpack.packb(value, default=_to_extension)
    except _PACKING_FAILED as error:
        explain(value, lambda: what)
        raise SerializationError(f"{what}: {error}; {ALLOWED}") from error
    if len(blob) > (MAX_BYTES if limit is None else limit):
        raise too_large(what, len(blob), limit)
    return blob


def encode_many(values: Sequence[Any], *, name: Callable[[int], str], limit: int | None = None) -> bytes:
    """Encode a list of values in one call, as `encode(list(values))` would, but checked at C speed.

    Args:
        values: the values.
        name: gives the `what` of the value at an index; called only for an error.
        limit: most bytes that each of the values may take; None is `MAX_BYTES`.

    Raises:
        SerializationError: something in a value is not carried.
        PayloadTooLarge: a value is over the limit.
    """
    try:
        _check(values)
        blob: bytes = msgpack.packb(values, default=_to_extension)
    except _PACKING_FAILED as error:
        for index, value in enumerate(values):
            explain(value, lambda index=index: name(index))  # type: ignore[misc]
        raise SerializationError(f"{name(0)} and {len(values) - 1} more: {error}; {ALLOWED}") from error
    if len(blob) > (MAX_BYTES if limit is None else limit):
        for index in oversized(values, MAX_BYTES if limit is None else limit):
            raise too_large(name(index), len(_packer()(values[index])), limit)
    return blob


def _check(values: Sequence[Any]) -> None:
    """Refuse, without saying where, values that hold a foreign type or key, or too many or too deep containers.

    `issuperset(map(type, ...))` looks at a whole container in C and stops at the first type that is not a leaf; only
    containers that hold containers are looked at part by part.
    """
    left = MAX_VALUES
    todo: list[tuple[Collection[Any], int]] = [] if _ARE_LEAVES(map(type, values)) else [(values, 0)]
    while todo:
        parts, depth = todo.pop()
        left -= len(parts)
        if left < 0 or depth >= MAX_DEPTH or not _ARE_CARRIED(map(type, parts)):
            raise SerializationError("not carried")
        for part in parts:
            if type(part) is dict:
                if not _ARE_TEXT(map(type, part)):
                    raise SerializationError("a dict key is not a str")
                if not _ARE_LEAVES(map(type, part.values())):
                    todo.append((part.values(), depth + 1))
            elif type(part) in SEQUENCES and not _ARE_LEAVES(map(type, part)):
                todo.append((part, depth + 1))


def _packer() -> Callable[[Any], bytes]:
    pack: Callable[[Any], bytes] = msgpack.Packer(default=_to_extension).pack
    return pack


def oversized(values: Sequence[Any], limit: int) -> list[int]:
    """The indexes of those (encodable) values that take more than `limit` bytes each."""
    kinds = set(map(type, values))
    if kinds <= FIXED and limit >= _FIXED_BYTES:
        return []
    if kinds == _TEXT_ONLY and 4 * max(map(len, values)) + 5 <= limit:
        return []
    pack = _packer()
    return [index for index, value in enumerate(values) if len(pack(value)) > limit]


def frame(parts: Sequence[bytes]) -> bytes:
    """Join values that are encoded already into one encoded list, without decoding or copying them twice."""
    header: bytes = msgpack.Packer().pack_array_header(len(parts))
    return header + b"".join(parts)


def decode(data: bytes, *, limit: int = MAX_BYTES) -> Any:
    """Decode what `encode`, `encode_many` or `frame` made.

    A standard msgpack timestamp, which this codec never writes, is read as a UTC datetime.

    Args:
        data: the bytes.
        limit: most bytes to accept.

    Raises:
        SerializationError: the bytes are not a value of this codec.
        PayloadTooLarge: there are more bytes than the limit.
    """
    try:
        if len(data) > limit:
            raise too_large("encoded value", len(data), limit)
        return msgpack.unpackb(data, raw=False, strict_map_key=True, timestamp=3, ext_hook=_from_extension)
    except SerializationError:
        raise
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        text = str(error) or type(error).__name__
        raise SerializationError(f"encoded value: expected bytes of the poimen codec, got {text}") from error


def canonical(value: Any, *, what: str = "value") -> bytes:
    """The one byte string of a value: equal for what decodes to the same, different for everything else.

    It is the value's encoding with dict keys sorted. Each part carries its type and length, so `1`, `1.0`, `True`,
    `"1"` and `Decimal("1")` all differ, as do `0.0` and `-0.0`, and no two values run into one another.

    Raises:
        SerializationError: something in the value is not carried, or is NaN, which equals nothing, itself included.
    """
    encode(value, what=what)
    blob: bytes = msgpack.packb(_sorted(value, what), default=_to_extension)
    return blob


def input_hash(value: Any, *, what: str = "value") -> str:
    """The sha256 of `canonical(value)`, in hex.

    Raises:
        SerializationError: the value has no canonical form.
    """
    return hashlib.sha256(canonical(value, what=what)).hexdigest()


def _sorted(value: Any, path: str) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _sorted(value[key], path + step(key)) for key in sorted(value)}
    if kind in SEQUENCES:
        return [_sorted(part, f"{path}[{index}]") for index, part in enumerate(value)]
    if (kind is float and math.isnan(value)) or (kind is Decimal and value.is_nan()):
        raise SerializationError(f"{path}: {kind.__name__} NaN equals nothing, so it has no canonical form; use None")
    return value


# Extension types: one text or byte string per value, so that encoding is one-to-one.


def _write_datetime(value: datetime) -> bytes:
    offset = value.utcoffset()
    if offset is None or offset.microseconds:
        raise SerializationError(bad_offset(value))
    return value.isoformat().encode("ascii")


def _read_datetime(data: bytes) -> datetime:
    return datetime.fromisoformat(data.decode("ascii"))


def _write_timedelta(value: timedelta) -> bytes:
    return struct.pack(">iii", value.days, value.seconds, value.microseconds)


def _read_timedelta(data: bytes) -> timedelta:
    return timedelta(*struct.unpack(">iii", data))


_WRITERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    datetime: (1, _write_datetime),
    date: (2, lambda value: value.isoformat().encode("ascii")),
    timedelta: (3, _write_timedelta),
    Decimal: (4, lambda value: str(value).encode("ascii")),
    UUID: (5, lambda value: value.bytes),
}
_READERS: dict[int, Callable[[bytes], Any]] = {
    1: _read_datetime,
    2: lambda data: date.fromisoformat(data.decode("ascii")),
    3: _read_timedelta,
    4: lambda data: Decimal(data.decode("ascii")),
    5: lambda data: UUID(bytes=data),
}


def _to_extension(value: Any) -> msgpack.ExtType:
    if type(value) not in _WRITERS:
        raise SerializationError(foreign(value))
    code, write = _WRITERS[type(value)]
    return msgpack.ExtType(code, write(value))


def _from_extension(code: int, data: bytes) -> Any:
    if code == COMPRESSED:
        return msgpack.unpackb(unwrap(data), raw=False, strict_map_key=True, timestamp=3, ext_hook=_from_simple)
    return _from_simple(code, data)


def _from_simple(code: int, data: bytes) -> Any:
    """What may stand inside a compressed value: no other one."""
    if code not in _READERS:
        raise SerializationError(f"encoded value: expected extension type 1 to {len(_READERS)}, got {code}")
    try:
        value = _READERS[code](data)
        exact = _WRITERS[type(value)][1](value) == data
    except (ValueError, ArithmeticError, struct.error, SerializationError):
        exact = False
    if not exact:
        raise SerializationError(f"encoded value: extension type {code} holds {data[:40]!r}, which encode never writes")
    return value
