"""How often Python's garbage collector looks for cycles while lines are worked on in bulk."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["rare_collections"]

#: Containers that are made, and still there, before the collector looks.
_ALLOCATIONS = 500_000


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Bulk work makes tuples by the thousand and no cycles: looking for those takes up to a quarter of the time.

    It changes how the whole process collects, so it is for processes of our own.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
