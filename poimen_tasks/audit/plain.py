"""Values as the log takes them: what `json` would change silently, or a strict parser would not read, is refused.

Numbers are written as they are if they are finite and, whole ones, of 64 bits; lone surrogates, which no strict parser
takes, become six characters as in `codec.jsonable`. Moments, durations, decimals, UUIDs and paths become text or
numbers as there. Bytes are refused: what they mean is for whoever records them to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from poimen_tasks._checks import expected
from poimen_tasks._json import compact_writer
from poimen_tasks._refusals import MAX_DEPTH, step
from poimen_tasks.codec import jsonable
from poimen_tasks.errors import SerializationError

__all__ = ["plain", "plain_json", "plain_text"]

_ALLOWED = (
    "allowed are None, bool, int, float, str, list, tuple, dict with str keys, datetime, date, timedelta, Decimal, "
    "UUID and paths"
)
_LEAVES = (date, timedelta, Decimal, UUID, PurePath)
_SAFE = frozenset({str, bool, float, type(None)})
_TEXTS = frozenset({str})
_SHALLOW = 16
_write = compact_writer()
_LOW, _HIGH = -(1 << 63), (1 << 64) - 1


def plain(value: Any, what: str) -> Any:
    """The value in terms of strict JSON.

    Args:
        value: the value.
        what: names it in an error.

    Raises:
        SerializationError: a part of it is nothing that the log takes; the path to it is named.
    """
    return _plain(value, what, 0)


def plain_json(value: Any, what: str) -> str:
    """The value as strict JSON in ASCII.

    Raises:
        SerializationError: a part of it is nothing that the log takes; the path to it is named.
    """
    if _is_plain(value, 0):
        try:
            text = _write(value)
        except ValueError:  # NaN: where it is, the other way says
            text = "\\ud"
        # An escaped character beyond the first 65,536 looks like this too, and goes the long way.
        if "\\ud" not in text:
            return text
    return _write(_plain(value, what, 0))


def _is_plain(value: Any, depth: int) -> bool:
    """True for what `json` writes as it is, found out quickly; False says nothing."""
    kind = type(value)
    if kind is dict:
        if not _TEXTS.issuperset(map(type, value)):
            return False
        parts: Iterable[Any] = value.values()
    elif kind is list or kind is tuple:
        parts = value
    else:
        return kind in _SAFE or (kind is int and _LOW <= value <= _HIGH)
    # One look at all parts, if none of them is another container or a whole number.
    return _SAFE.issuperset(map(type, parts)) or (depth < _SHALLOW and _are_plain(parts, depth + 1))


def _are_plain(values: Iterable[Any], depth: int) -> bool:
    for value in values:
        kind = type(value)
        if kind is int:
            if not _LOW <= value <= _HIGH:
                return False
        elif kind not in _SAFE and not _is_plain(value, depth):
            return False
    return True


def plain_text(value: object, what: str) -> str:
    """A text, with its line breaks; lone surrogates become six characters.

    Raises:
        InvalidArgument: it is no text.
    """
    if not isinstance(value, str):
        raise expected(what, "a text", value)
    return str.__str__(value) if value.isascii() else _text(value)


def _plain(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or (kind is str and value.isascii()):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, path, depth + 1)
    if isinstance(value, (Mapping, list, tuple)):
        return _container(value, path, depth)
    return _leaf(value, path, depth)


def _container(value: Any, path: str, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise SerializationError(f"{path[:200]}: nested deeper than {MAX_DEPTH}, the most allowed")
    if isinstance(value, Mapping):
        return {
            _key(key, path): _plain(part, path + step(key), depth + 1) if _nests(part) else _plain(part, path, depth)
            for key, part in value.items()
        }
    return [_plain(part, f"{path}[{at}]", depth + 1) for at, part in enumerate(value)]


def _nests(value: object) -> bool:
    """False for what cannot be refused: the path to it need not be made."""
    return value is not None and type(value) is not str and type(value) is not bool


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise SerializationError(f"{path}: dict key of type {type(key).__name__}; allowed are str keys")
    text = key.value if isinstance(key, Enum) else key
    return str.__str__(text) if text.isascii() else _text(text)


def _leaf(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return _whole(int(value), path)
    if isinstance(value, float):
        return _finite(float(value), path)
    if isinstance(value, _LEAVES):
        return jsonable(value, what=path)
    if hasattr(value, "to_dict"):
        if depth >= MAX_DEPTH:
            raise SerializationError(f"{path[:200]}: nested deeper than {MAX_DEPTH}, the most allowed")
        return _plain(value.to_dict(), path, depth + 1)
    hint = "; use base64.b64encode(value).decode()" if isinstance(value, (bytes, bytearray, memoryview)) else ""
    raise SerializationError(f"{path}: {type(value).__name__} has no place in the audit log{hint}; {_ALLOWED}")


def _whole(value: int, path: str) -> int:
    if _LOW <= value <= _HIGH:
        return value
    raise SerializationError(
        f"{path}: int of {value.bit_length()} bits; allowed are -2**63 to 2**64-1, which every reader takes; use a str"
    )


def _finite(value: float, path: str) -> float:
    if math.isfinite(value):
        return value
    raise SerializationError(f"{path}: {value} is no number in JSON; use None or a str")


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode("utf-8")
