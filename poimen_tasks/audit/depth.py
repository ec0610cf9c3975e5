"""How deep a value is nested: readers have fewer frames left than whoever wrote it."""

from __future__ import annotations

from typing import Any

from poimen_tasks._refusals import MAX_DEPTH

__all__ = ["too_deep"]


def too_deep(value: Any, most: int = MAX_DEPTH) -> bool:
    """Whether a value is nested deeper than so many levels, by default those that anybody may record."""
    level, depth = [value], 0
    while level:
        if depth > most:
            return True
        inner = [one for one in level if isinstance(one, (dict, list))]
        level, depth = [part for one in inner for part in (one.values() if isinstance(one, dict) else one)], depth + 1
    return False
