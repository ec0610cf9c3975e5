"""The columns of a blob. A value that is encoded already goes in as it is, and is never encoded again.

Blobs hold columns, not records, because their cost is counted in bytes per item. They are plain codec values, so
`codec.decode` alone reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poimen_tasks import codec

__all__ = ["Encoded", "pack_column", "pack_columns", "pack_result"]

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_SHORT = 1024


class Encoded(bytes):
    """A value in its codec form: put into a column as it is, never encoded again."""

    __slots__ = ()


def pack_columns(names: Sequence[str], columns: list[Any]) -> bytes:
    """Encode up to 15 columns in one call, without the head of the list around them.

    Args:
        names: what the columns are called in an error.
        columns: their values.
    """
    return codec.encode_many(columns, name=names.__getitem__)[1:]


def _is_plain(value: Any) -> bool:
    """True for a value that any column carries without a look inside."""
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return True
    if kind is int:
        return bool(_INT_MIN <= value <= _INT_MAX)
    # A text that is not ASCII could hold a lone surrogate; a long one is cheaper to keep encoded.
    return kind is str and len(value) <= _SHORT and value.isascii()


def pack_result(value: Any, *, what: str = "result", limit: int | None = None) -> Any:
    """Make a task's return value ready for a buffer of results.

    Short scalars are returned as they are. Anything else is encoded at once and returned as `Encoded`, so a value that
    cannot travel is found while its own item can still be failed, and never spoils the items beside it.

    Args:
        value: what the task returned.
        what: names it in an error, e.g. `item "7": result`.
        limit: how many encoded bytes it may take.

    Raises:
        SerializationError: the codec does not carry it; the path to the offending value is named.
        PayloadTooLarge: it is over the limit.
    """
    return value if _is_plain(value) else Encoded(codec.encode(value, what=what, limit=limit))


def pack_column(values: list[Any]) -> bytes:
    """Encode a column of values some of which are encoded already."""
    return codec.frame([value if type(value) is Encoded else codec.encode(value) for value in values])
