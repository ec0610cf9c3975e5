"""Which item runs in this thread: what a body, or a dispatch from inside it, may ask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poimen_tasks.cache_key import CacheKey
    from poimen_tasks.store.cache_scripts import Labels

__all__ = [
    "UNSET",
    "RunningCall",
    "RunningItem",
    "current_call",
    "current_item",
    "enter",
    "enter_call",
    "leading",
    "may_wait_for",
    "origin_here",
]

UNSET: Any = type("Unset", (), {"__repr__": lambda _self: "UNSET"})()
"""No state was given: None is one."""


def _no_task() -> None:
    return None


@dataclass(slots=True)
class RunningItem:
    """The item that a lane runs now. One object a lane, refilled for each item.

    Attributes:
        batch: the batch's id.
        workflow, stage, actor: inherited by a dispatch from inside the body.
        position: the item's place in the batch.
        attempt: which run of the item this is, from 1.
        is_cancelled: asks, at most a few times a second, whether the batch or this item was cancelled.
        checkpoint: what `poimen.checkpoint` does inside of this item.
        origin: what runs, for derived ids: the batch, or a callback's hidden batch, which has the round in its id.
        revoked: whether it was this item alone that was cancelled; set by `is_cancelled`.
        filed: the cache key and the labels of an item whose own run asks the cache, because its lane did not.
        task: asks for the item's task id, by default its id; None for the item of a callback.
        dispatches: how many dispatches the body made so far; makes their derived ids stable over a retry.
    """

    batch: str
    workflow: str
    stage: str
    actor: str
    is_cancelled: Callable[[], bool]
    checkpoint: Callable[[Any], Any]
    position: int = 0
    attempt: int = 1
    origin: str = ""
    revoked: bool = False
    dispatches: int = field(default=0)
    filed: tuple[CacheKey, Labels] | None = None
    task: Callable[[], str | None] = _no_task


@dataclass(slots=True, frozen=True)
class RunningCall:
    """The plain Celery call that runs now.

    Attributes:
        id: its message id.
        workflow, batch: what it belongs to, as its message says; empty for none.
        begun: whether the store was asked, and let it begin.
    """

    id: str
    workflow: str
    batch: str
    begun: bool


_local = threading.local()


def current_item() -> RunningItem | None:
    """The item that runs in this thread, or None outside of one."""
    return getattr(_local, "item", None)


def enter(item: RunningItem | None) -> RunningItem | None:
    """A lane begins or ends in this thread. Returns what was there, to be put back: eager lanes nest."""
    before = current_item()
    _local.item = item
    return before


def current_call() -> RunningCall | None:
    """The plain call that runs in this thread, or None outside of one."""
    return getattr(_local, "call", None)


def enter_call(call: RunningCall | None) -> RunningCall | None:
    """A plain call begins or ends in this thread. Returns what was there, to be put back."""
    before = current_call()
    _local.call = call
    return before


def origin_here() -> tuple[str, str]:
    """Workflow and batch of what runs in this thread, be it an item or a plain call; empty for none."""
    running: RunningItem | RunningCall | None = current_item() or current_call()
    return ("", "") if running is None else (running.workflow, running.batch)


@contextmanager
def leading(key: bytes) -> Iterator[None]:
    """Within this, the thread computes the result of a cache key that others may be waiting for."""
    held: list[bytes] = _local.__dict__.setdefault("keys", [])
    held.append(key)
    try:
        yield
    finally:
        held.remove(key)


def may_wait_for(key: bytes) -> bool:
    """Whether this thread may wait for the result of a key: only for one greater than every key it computes itself.

    Whoever waits, waits for a greater key than he holds, so no circle of waiting threads can close.
    """
    held = getattr(_local, "keys", None)
    return not held or key > max(held)
