"""Numbers and times as people read them on a page."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["age", "count", "seconds", "share", "size", "when"]

_UNITS = ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min"), (0, 1, "s"))


def when(moment: datetime | None) -> str:
    """A moment in UTC, to the second."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def age(moment: datetime | None, now: float) -> str:
    """How long ago that was by the server's clock, in one unit."""
    if moment is None:
        return "-"
    passed = max(0, round(now - moment.timestamp()))
    return next(f"{passed // unit} {name}" for least, unit, name in _UNITS if passed >= least)


def seconds(value: float | None) -> str:
    """A duration."""
    if value is None:
        return "-"
    if 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def count(value: int | None) -> str:
    """A number; None is no limit."""
    return "all" if value is None else f"{value:,}"


def size(value: int) -> str:
    """Bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value} B"


def share(done: int, total: int) -> str:
    """Progress as numbers and percent; 100 % only when nothing is missing."""
    percent = 100 if done >= total else min(99, done * 100 // total)
    return f"{done:,} of {total:,} ({percent} %)"
