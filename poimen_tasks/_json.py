"""Values as strict JSON, for people and their tools; the wire has its own form, see `codec.py`."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring_ascii
from pathlib import PurePath
from typing import Any
from uuid import UUID

from poimen_tasks._refusals import MAX_DEPTH, foreign, step
from poimen_tasks.errors import SerializationError

__all__ = ["compact_writer", "jsonable"]


def jsonable(value: Any, *, what: str = "value") -> Any:
    r"""The value in terms of strict JSON, so that `json.dumps(..., allow_nan=False)` takes it and any parser reads it.

    Datetimes and dates become ISO 8601 text, a timedelta its seconds, bytes base64, Decimal, UUID and paths their text,
    NaN and the infinities `"NaN"`, `"Infinity"` and `"-Infinity"`, an enum member its value, an object with a
    `to_dict()` that dict. Lone surrogates (in a file name, say) become `\udc80` as six characters.

    Raises:
        SerializationError: a part has no JSON form, or the value is deeper than `MAX_DEPTH`.
    """
    return _jsonable(value, what, 0)


def compact_writer() -> Callable[[Any], str]:
    """Writes plain values as strict JSON in ASCII without spaces, as `json.dumps` would.

    The encoder is made once, where `json` makes one for every value; so a small value takes half the time.
    """
    plain = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # a Python without it
        return plain.encode
    chunks = make(None, plain.default, encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda value: encode_basestring_ascii(value) if isinstance(value, str) else "".join(chunks(value, 0))


def _jsonable(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise SerializationError(f"{path[:200]}: nested deeper than {MAX_DEPTH}, the most allowed")
    if isinstance(value, Enum):
        return _jsonable(value.value, path, depth + 1)
    if isinstance(value, Mapping):
        return {_json_key(key, path): _jsonable(part, path + step(str(key)), depth + 1) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "to_dict"):
        return [_jsonable(part, f"{path}[{index}]", depth + 1) for index, part in enumerate(value)]
    if hasattr(value, "to_dict"):
        return _jsonable(value.to_dict(), path, depth + 1)
    return _json_leaf(value, path)


def _json_key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise SerializationError(f"{path}: dict key of type {type(key).__name__}; allowed are str keys")
    return _json_text(str(key.value) if isinstance(key, Enum) else key)


def _json_leaf(value: Any, path: str) -> Any:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _json_infinite(value)
    for kinds, write in _JSON_WRITERS:
        if isinstance(value, kinds):
            return write(value)
    raise SerializationError(f"{path}: {foreign(value)}")


def _json_infinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _json_text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


_JSON_WRITERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (str, _json_text),
    (date, lambda value: value.isoformat()),
    (timedelta, lambda value: value.total_seconds()),
    ((bytes, bytearray, memoryview), lambda value: base64.b64encode(value).decode("ascii")),
    ((Decimal, UUID), str),
    (PurePath, lambda value: _json_text(str(value))),
)
