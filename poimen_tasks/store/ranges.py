"""Positions of items as ranges, which is how they travel and are stored."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["expand_ranges", "ranges_of"]


def ranges_of(positions: Sequence[int]) -> list[int]:
    """Write positions as flat half-open ranges `[lo, hi, lo, hi, ...]` in the same order."""
    if not positions:
        return []
    first, count = positions[0], len(positions)
    if positions[-1] - first == count - 1 and list(positions) == list(range(first, first + count)):
        return [first, first + count]
    flat = [first, first + 1]
    for position in positions[1:]:
        if position == flat[-1]:
            flat[-1] += 1
        else:
            flat += (position, position + 1)
    return flat


def expand_ranges(flat: Sequence[int]) -> Sequence[int]:
    """The positions that flat ranges stand for, in order."""
    if len(flat) == 2:
        return range(flat[0], flat[1])
    return [position for lo, hi in zip(flat[::2], flat[1::2], strict=True) for position in range(lo, hi)]
