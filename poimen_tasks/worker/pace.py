"""How many items a lane may claim at once: one until an activity has shown that its runs are short."""

from __future__ import annotations

from collections import deque

__all__ = ["MOST", "Pace", "Paces"]

#: The largest claim.
MOST = 512
_SEEN = 20


class Pace:
    """The durations of an activity in this process, remembered between lanes."""

    __slots__ = ("_cost", "_recent", "_runs")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_SEEN)
        self._runs = 0
        self._cost = 0.0

    def note(self, durations: list[float], elapsed: float) -> None:
        """Items that just ran, and the seconds they took together with what surrounds them."""
        if not durations:
            return
        self._runs += len(durations)
        # A slow one among many fast ones is what p95 must see: the slowest of each report stays in the window.
        self._recent.extend(durations[-(_SEEN - 1) :])
        self._recent.append(max(durations))
        cost = elapsed / len(durations)
        self._cost = cost if not self._cost else 0.7 * self._cost + 0.3 * cost

    def p95(self) -> float:
        """The 95th percentile of the last runs, seconds."""
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] if ordered else float("inf")

    def size(self, left: float, quantum: float, prefetch: int | None) -> int:
        """Items for the next claim, with `left` seconds of the quantum to go."""
        if prefetch == 1 or self._runs < _SEEN or self.p95() > quantum / 10:
            return 1
        fits = int(max(left, quantum / 10) / max(self._cost, 1e-6))
        return max(1, min(fits, prefetch or MOST, MOST))


class Paces(dict[str, Pace]):
    """Activity to pace, made when first asked for."""

    def __missing__(self, activity: str) -> Pace:
        pace = self[activity] = Pace()
        return pace
