"""Rows in portions that a script, or a section of a file, takes well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["PIECE", "portions"]

PIECE = 1 << 20
"""Bytes that a portion holds at most, unless a single row is larger."""


def portions(rows: Sequence[Any], size: Callable[[Any], int], *, most: int) -> Iterator[list[Any]]:
    """Cut rows by bytes and by count.

    Args:
        rows: what is cut, in their order.
        size: tells the bytes of a row.
        most: rows in a portion.
    """
    some: list[Any] = []
    held = 0
    for row in rows:
        if some and (len(some) >= most or held + size(row) > PIECE):
            yield some
            some, held = [], 0
        some.append(row)
        held += size(row)
    if some:
        yield some
