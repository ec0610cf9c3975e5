"""One line of strict JSON: UTF-8, no NaN, no infinities, no key twice."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["parse_object"]


def parse_object(line: bytes) -> dict[str, Any]:
    """The object that a line holds.

    Raises:
        ValueError: it holds no object, or not in strict JSON; the text says what is wrong and where.
    """
    try:
        value = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deep") from None
    if type(value) is not dict:
        raise ValueError(f"expected an object like {{...}}, got {line.decode().strip()[:40]!r}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"not strict JSON: key {twice!r:.60} stands there twice")
    return made


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"not strict JSON: the number {text:.40} is too large")
    return value


def _constant(text: str) -> Any:
    raise ValueError(f"not strict JSON: {text} is not allowed; use null, or a text")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_constant)
