"""What a measurement is made of: alternating samples, medians, ratios, and a target that is met or not."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

__all__ = ["Row", "Target", "alternating", "middle", "peak_rss", "seconds", "until"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit for `ratio` (ours ÷ reference) or for `ours`.

    Attributes:
        at_least: the lower bound; None where there is an upper one.
        at_most: the upper bound.
    """

    of: Literal["ours", "ratio"]
    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {limit:,g}{' x' if self.of == 'ratio' else ''}"

    def met(self, value: float) -> bool:
        """True when the value is within the limit."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        ours: the median of our samples, in `unit`.
        reference: the median of what it is compared with, `against`; None where it stands alone.
        samples: every raw sample, and what else explains the figure.
    """

    name: str
    unit: str
    ours: float
    reference: float | None = None
    against: str = ""
    target: Target | None = None
    samples: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours ÷ reference."""
        return self.ours / self.reference if self.reference else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        value = self.ratio if self.target and self.target.of == "ratio" else self.ours
        return None if self.target is None or value is None else self.target.met(value)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met, "target": str(self.target or "") or None}


def middle(samples: list[float]) -> float:
    """The median."""
    return median(samples)


def alternating(rounds: int, /, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Samples of each side, taken in turn (A B A B …), so that a busy moment of the machine meets all of them."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            gc.collect()
            taken[name].append(measure())
    return taken


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def until(ready: Callable[[], Any], *, timeout: float = 300.0, every: float = 0.01) -> None:
    """Poll until `ready` returns something true.

    Raises:
        TimeoutError: it did not within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still waiting after {timeout:g} s")
        time.sleep(every)


def peak_rss() -> float:
    """Peak resident memory of this process in MB.

    From /proc where there is one: `getrusage` also counts the parent's memory at the moment of the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
