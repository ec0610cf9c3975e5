"""Groups and chords in the result backend, kept while one of their members is parked by a pause.

The backend forgets what it knows of a group `result_expires` seconds after the last that was heard of it. A chord whose
member is parked for longer would never run its body.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["refresh_groups", "refresh_period"]

log = logging.getLogger(__name__)

_SHORTEST, _LONGEST = 0.5, 3600.0
#: What backends keep of a group: its members; of a chord its results so far, its size, and whether it is done.
_PARTS = ("", ".j", ".t", ".s", ".d")


def _lifetimes(app: Celery) -> list[float]:
    """How long the backend remembers results, and chords; those that it has an end for."""
    told: list[Any] = [app.conf.get("result_expires"), app.conf.get("result_chord_expires")]
    times = [one.total_seconds() if isinstance(one, timedelta) else float(one or 0) for one in told]
    return [time for time in times if time > 0]


def refresh_period(app: Celery) -> float:
    """Seconds between two refreshes; 0 when results never expire."""
    times = _lifetimes(app)
    return min(_LONGEST, max(_SHORTEST, min(times) / 4)) if times else 0.0


def refresh_groups(app: Celery, calls: Iterable[tuple[str, list[str]]]) -> None:
    """Let the backend keep the groups of these calls (message id, groups), and their states, for another full time."""
    backend: Any = app.backend
    times = _lifetimes(app)
    if not times or not hasattr(backend, "get_key_for_group"):
        return  # it forgets nothing, or not by the clock
    keys: dict[Any, None] = {}
    for message_id, groups in calls:
        keys[backend.get_key_for_task(message_id)] = None
        keys.update((backend.get_key_for_group(group, part), None) for group in groups for part in _PARTS)
    for key in keys:
        _refresh(backend, key, int(max(times)))


def _refresh(backend: Any, key: Any, seconds: int) -> None:
    """What has no end, or a later one, keeps it."""
    ttl = getattr(backend.client, "ttl", None)
    if ttl is None or 0 <= ttl(key) < seconds:
        backend.expire(key, seconds)
