"""What a lane has to report: plain lists, one append a column and item, encoded once."""

from __future__ import annotations

from typing import Any

from poimen_tasks.store.columns import Encoded
from poimen_tasks.store.outcome_blob import encode_outcomes
from poimen_tasks.store.ranges import ranges_of
from poimen_tasks.worker.caching import Kept

__all__ = ["CANCELLED", "FAILED", "SKIPPED", "SUCCEEDED", "LaneReport"]

SUCCEEDED, FAILED, CANCELLED, SKIPPED = range(4)
_NAMES = ((SUCCEEDED, "ok"), (FAILED, "failed"), (CANCELLED, "cancelled"), (SKIPPED, "skipped"))


class LaneReport:
    """Outcomes and retries since the last flush.

    Attributes:
        kept: results for the cache, of items that lead their computation.
        runs: of each retry, when its run began, how long it took, and its error as (type, message, traceback) or None.
        stopped: positions of items that stopped because they are paused.
        size: encoded bytes of the results that are not plain scalars; a large report is sent early.
        oldest: when its first outcome came in, seconds on the lane's clock; None while it is empty.
    """

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.started: list[float] = []
        self.durations: list[float] = []
        self.statuses: list[int] = []
        self.results: list[Any] = []
        self.errors: list[tuple[int, str, str, str]] = []
        self.attempts: list[int] = []
        self.enqueued: list[float] = []
        self.claims: list[list[int]] = []
        self.ids: list[str] | None = None
        self.retries: list[list[Any]] = []
        self.runs: list[tuple[float, float, tuple[str, str, str] | None]] = []
        self.stopped: list[int] = []
        self.kept: list[Kept] = []
        self.size = 0
        self.oldest: float | None = None

    def __bool__(self) -> bool:
        return bool(self.positions or self.retries or self.stopped)

    def add(  # noqa: PLR0917 - one argument a column, called once an item
        self,
        position: int,
        started: float,
        duration: float,
        status: int,
        result: Any,
        error: tuple[str, str, str] | None,
        attempt: int,
        enqueued: float,
        claim: int,
        item_id: str | None,
    ) -> None:
        """One outcome."""
        if error is not None:
            self.errors.append((len(self.positions), *error))
            self.size += len(error[1]) + len(error[2])
        self.positions.append(position)
        self.started.append(started)
        self.durations.append(duration)
        self.statuses.append(status)
        self.results.append(result)
        self.attempts.append(attempt)
        self.enqueued.append(enqueued)
        if claim:
            self.claims.append([position, claim])
        if item_id is not None:
            if self.ids is None:
                self.ids = []
            self.ids.append(item_id)
        if type(result) is Encoded:
            self.size += len(result)

    def absorb(self, later: LaneReport) -> None:
        """Put what came in later behind this report, which could not be sent."""
        shift = len(self.positions)
        for name in (
            "positions",
            "started",
            "durations",
            "statuses",
            "results",
            "attempts",
            "enqueued",
            "claims",
            "retries",
            "stopped",
            "runs",
            "kept",
        ):
            getattr(self, name).extend(getattr(later, name))
        self.errors.extend((shift + error[0], *error[1:]) for error in later.errors)
        if later.ids is not None:
            self.ids = [*(self.ids or ()), *later.ids]
        self.size += later.size

    def only(self, keep: set[int]) -> LaneReport:
        """The part of the report about these positions, without retries, and without results for the cache.

        Whose report comes late does not lead any computation any more.
        """
        part = LaneReport()
        errors = {error[0]: error[1:] for error in self.errors}
        claims = {pair[0]: pair[1] for pair in self.claims}
        for at, position in enumerate(self.positions):
            if position in keep:
                part.add(
                    position,
                    self.started[at],
                    self.durations[at],
                    self.statuses[at],
                    self.results[at],
                    errors.get(at),
                    self.attempts[at],
                    self.enqueued[at],
                    claims.get(position, 0),
                    None if self.ids is None else self.ids[at],
                )
        return part

    def pack(self, worker: str, activity: str) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """The report as a script takes it: request; and outcome blob, audit payload, and values for the cache.

        The audit payload is the outcome blob without results and tracebacks: what happened, not what came out.
        """
        same = self.enqueued.count(self.enqueued[0]) == len(self.enqueued) if self.enqueued else True
        columns: dict[str, Any] = {
            "positions": self.positions,
            "started": self.started,
            "durations": self.durations,
            "statuses": self.statuses,
            "attempts": self.attempts,
            "worker": worker,
            "enqueued": (self.enqueued[0] if self.enqueued else 0.0) if same else self.enqueued,
            "ids": self.ids,
        }
        outcome = encode_outcomes(**columns, results=self.results, errors=self.errors)
        entry = encode_outcomes(
            **columns, errors=[(at, kind, message[:500], "") for at, kind, message, _ in self.errors]
        )
        request: dict[str, Any] = {
            "r": ranges_of(self.positions),
            "n": self.claims,
            "y": self.retries,
            "m": {"worker": worker, "activity": activity},
        }
        for status, name in _NAMES:
            count = self.statuses.count(status)
            if count:
                request[name] = count
        if self.stopped:
            request["z"] = ranges_of(sorted(self.stopped))
        if self.kept:
            request["c"] = [one.pack() for one in self.kept]
        return request, (outcome, entry, *(one.value for one in self.kept))
