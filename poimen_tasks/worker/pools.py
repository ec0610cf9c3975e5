"""What Celery's pools can and cannot do for a lane: be killed, be interrupted by a clock, let others run meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from billiard.compat import mem_rss
from celery.concurrency import get_implementation

from poimen_tasks.errors import SettingsError
from poimen_tasks.store.values import Part
from poimen_tasks.worker.limits import GreenTimer, ItemTimer, Timer, can_enforce

__all__ = ["Pool", "pool_of"]

log = logging.getLogger(__name__)

_GREEN = ("gevent", "eventlet")


def _signal_timer() -> Timer | None:
    return ItemTimer() if can_enforce() else None


@dataclass(slots=True, kw_only=True)
class Pool:
    """The pool of one worker.

    Attributes:
        name: as `-P` takes it, or the module of a pool that is not Celery's.
        processes: True where each lane runs in a process of its own, which can be killed.
        blocks: True where a lane blocks the worker's own loop: it leaves after each quantum.
        make_timer: makes what keeps an item's time limits, None where nothing can interrupt a body.
        most_memory: `--max-memory-per-child`, KiB; None without one.
    """

    name: str = "eager"
    processes: bool = False
    blocks: bool = False
    make_timer: Callable[[], Timer | None] = _signal_timer
    most_memory: int | None = None
    _told: set[str] = field(default_factory=set)

    def timer_for(self, parts: Sequence[Part]) -> Timer | None:
        """What keeps the limits of these partitions' items; where nothing can, each task is named once in the log."""
        timer = self.make_timer()
        for activity in {part.activity for part in parts if part.time_limit or part.soft_time_limit} - self._told:
            self._told.add(activity)
            if timer is None:
                log.warning(
                    "task %s has a time limit, but nothing can interrupt a body on the %s pool: its items run as long "
                    "as they like; serve it with -P prefork, or give what it waits for a timeout of its own",
                    activity,
                    self.name,
                )
        return timer

    def wants_fresh_process(self) -> bool:
        """True when this process holds more than it may: Celery replaces it, but only between two lanes."""
        return self.most_memory is not None and 0 < self.most_memory < mem_rss()


def pool_of(pool_cls: Any, *, most_memory: int | None = None) -> Pool:
    """The pool that a worker was started with.

    Args:
        pool_cls: a worker's `pool_cls`: a class, or a name that Celery resolves.
        most_memory: a worker's `max_memory_per_child`, KiB.

    Raises:
        SettingsError: gevent or eventlet, but nothing was patched for it.
    """
    kind = get_implementation(pool_cls or "prefork") if pool_cls is None or isinstance(pool_cls, str) else pool_cls
    modules = {base.__module__.removeprefix("celery.concurrency.") for base in kind.__mro__}
    if "prefork" in modules:
        return Pool(name="prefork", processes=True, most_memory=most_memory)
    if "solo" in modules:
        return Pool(name="solo", blocks=True)
    for name in _GREEN:
        if name in modules:
            return Pool(name=name, make_timer=_green_timer(name))
    if "thread" in modules:
        return Pool(name="threads", make_timer=_no_timer)
    return Pool(name=kind.__module__, make_timer=_no_timer)


def _no_timer() -> None:
    return None


def _green_timer(name: str) -> Callable[[], Timer]:
    """The timer of gevent or eventlet, after a look whether what blocks was patched in time."""
    timeout: Any
    if name == "gevent":
        from gevent import Timeout
        from gevent.monkey import is_module_patched

        timeout, patched = Timeout, is_module_patched("threading") and is_module_patched("socket")
    else:
        from eventlet import Timeout as EventletTimeout
        from eventlet.patcher import is_monkey_patched

        timeout, patched = EventletTimeout, is_monkey_patched("thread") and is_monkey_patched("socket")
    if not patched:
        raise SettingsError(
            f"worker_pool: {name!r} set in the configuration comes too late to patch what blocks, so one item would "
            f"block all others; start the worker with `-P {name}` (prefork, threads and solo work either way)"
        )
    return lambda: GreenTimer(timeout)
