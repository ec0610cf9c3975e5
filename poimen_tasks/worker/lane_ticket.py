"""What the message of a lane carries. Whoever may write to the broker can send anything under the lane's name."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["LaneTicket", "read_ticket"]

#: As a name; `@` leads to a callback's hidden batch.
_BATCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,255}").fullmatch
_MOST = 1 << 53


class LaneTicket(NamedTuple):
    """A batch, one of its slots, the ticket's generation there, and the queue that it was sent to."""

    batch: str
    slot: int
    generation: int
    queue: str


def read_ticket(args: object, kwargs: object) -> LaneTicket | None:
    """The ticket that a message carries; None for one that carries none."""
    if kwargs or not isinstance(args, (list, tuple)) or len(args) != len(LaneTicket._fields):
        return None
    batch, slot, generation, queue = args
    if not (isinstance(batch, str) and _BATCH(batch) and isinstance(queue, str)):
        return None
    if not all(type(number) is int and 0 <= number < _MOST for number in (slot, generation)):
        return None
    return LaneTicket(batch, slot, generation, queue)
