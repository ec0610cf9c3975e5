"""Least, most and percentiles of a column of floats, exact, without sorting it.

Sorting a million floats takes 32 MB and most of a second. Bit patterns of non-negative floats are in the order of their
values, so counting the upper and then the lower 16 bits finds any rank: two passes of a radix sort, in a few megabytes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter
from collections.abc import Iterable
from itertools import compress

__all__ = ["RANKS", "spread"]

RANKS = ("min", "max", "p50", "p95", "p99")
"""What `spread` gives; percentiles by nearest rank."""


def spread(column: array[float], chosen: bytes | bytearray) -> dict[str, float]:
    """The ranks of some values of a column.

    Args:
        column: an array of type "f" whose values are 0 or more.
        chosen: a byte for each value; 0 leaves it out.

    Returns:
        A value for each of `RANKS`; 0.0 when there are none.
    """
    count = len(chosen) - chosen.count(0)
    if not count:
        return dict.fromkeys(RANKS, 0.0)
    places = {"min": 0, "max": count - 1, **{f"p{percent}": -(-percent * count // 100) - 1 for percent in (50, 95, 99)}}
    high, low = _halves(column if count == len(chosen) else array("f", compress(column, chosen)))
    uppers = _ascending(high)
    found = {place: _at(uppers, place) for place in set(places.values())}
    wanted = {upper for upper, _ in found.values()}
    lowers = {upper: _ascending(compress(low, map(upper.__eq__, high))) for upper in wanted}
    values = {place: _float(upper, _at(lowers[upper], rest)[0]) for place, (upper, rest) in found.items()}
    return {name: values[place] for name, place in places.items()}


def _halves(column: array[float]) -> tuple[array[int], array[int]]:
    """The upper and the lower 16 bits of each value."""
    halves = array("H", column.tobytes())
    return (halves[1::2], halves[0::2]) if sys.byteorder == "little" else (halves[0::2], halves[1::2])


def _ascending(values: Iterable[int]) -> list[tuple[int, int]]:
    """Distinct values and how often each occurs, in ascending order."""
    return sorted(Counter(values).items())


def _at(counted: list[tuple[int, int]], place: int) -> tuple[int, int]:
    """The value at a place of the ascending order, and the place among its equals."""
    for value, times in counted:
        if place < times:
            return value, place
        place -= times
    raise IndexError(place)


def _float(upper: int, lower: int) -> float:
    value: float = struct.unpack(">f", struct.pack(">HH", upper, lower))[0]
    return value
