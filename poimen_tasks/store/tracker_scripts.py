"""The verbs of trackers in the store, one method a script; see `lua/` for what each does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.callers import Callers
from poimen_tasks.store.client import Client

__all__ = ["Given", "TrackedTask", "TrackerCounts", "TrackerScripts", "Updated", "Who"]

#: About the most bytes of one call, and the most tasks: so many take the server some 5 ms.
_MOST_BYTES, _MOST_TASKS = 1 << 20, 100


class TrackedTask(NamedTuple):
    """A task's state as it is stored; times are the server's, in seconds since 1970."""

    version: int
    status: str
    scope: str
    branch: str
    verification: str
    actor: str
    reason: str
    created: float
    updated: float

    @classmethod
    def of(cls, row: Mapping[bytes, Any]) -> TrackedTask:
        """From a script's reply, or what is stored."""
        return cls(
            version=int(row[b"v"]),
            status=row[b"s"].decode(),
            scope=row[b"scope"].decode(),
            branch=row[b"branch"].decode(),
            verification=row[b"verification"].decode(),
            actor=row[b"a"].decode(),
            reason=row[b"w"].decode(),
            created=float(row[b"c"]),
            updated=float(row[b"u"]),
        )


class Given(NamedTuple):
    """What an update says of one task; None leaves a value as it is. `rank` is the status's place among all."""

    id: str
    status: str | None = None
    rank: int | None = None
    scope: str | None = None
    branch: str | None = None
    verification: str | None = None

    def pack(self) -> dict[str, Any]:
        """As the script takes it."""
        values = {name: getattr(self, name) for name in ("scope", "branch", "verification")}
        given = {name: value for name, value in values.items() if value is not None}
        packed: dict[str, Any] = {"i": self.id}
        if self.status is not None:
            packed |= {"s": self.status, "k": self.rank}
        return packed | ({"f": given} if given else {})

    @property
    def bytes(self) -> int:
        """About how many it takes."""
        return 4 * sum(len(text) for text in (self.id, self.scope, self.branch, self.verification) if text) + 64


class Who(NamedTuple):
    """Who changes something and why, and the workflow that it belongs to, if any; for the audit log."""

    actor: str
    reason: str = ""
    workflow: str | None = None

    def pack(self) -> dict[str, str]:
        """As a script takes it."""
        of = {} if self.workflow is None else {"workflow": self.workflow}
        return {"actor": self.actor, "reason": self.reason, **of}


class Updated(NamedTuple):
    """Reply of `tracker_update`.

    Attributes:
        task: the state afterwards, where one task was given; None where it is not there.
        changed: how many changed.
        conflict: nothing was done, because the task has another version than was expected.
    """

    task: TrackedTask | None
    changed: int
    conflict: bool


class TrackerCounts(NamedTuple):
    """Reply of `tracker_stats`.

    Attributes:
        ranks: how many tasks there are of each rank of a status.
        changes: how many changes there were.
        created: when the first was, in seconds since 1970; None: never.
        updated: when the last was.
    """

    ranks: list[int]
    changes: int
    created: float | None
    updated: float | None


class TrackerScripts:
    """The verbs of trackers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._unsealed = {"unsealed": client.settings.audit_unsealed_limit}
        self._callers = Callers(str)

    def _call(self, name: str, request: dict[str, Any]) -> Any:
        caller = self._callers.take()
        try:
            return self.client.call(name, request | self._unsealed, owner=caller.made, sequence=caller.next())
        finally:
            self._callers.give_back(caller)

    def tracker_update(
        self,
        tracker: str,
        tasks: Sequence[Given],
        *,
        begin: tuple[str, int],
        who: Who,
        expected: int | None = None,
        request_id: str = "",
    ) -> Updated:
        """Tasks get a status and other values; up to 100 of them, or about a megabyte, are one step.

        Args:
            tracker: the tracker's name.
            tasks: what is said of each.
            begin: status and rank of a task that is not there yet and is given none.
            who: who does it, and why.
            expected: the version of the one task that is given; 0: it is not there.
            request_id: a request that the task has seen already changes nothing.
        """
        done = Updated(None, 0, conflict=False)
        request: dict[str, Any] = {
            "tracker": tracker, "id": request_id, "pending": {"s": begin[0], "k": begin[1]}, **who.pack(),
        }  # fmt: skip
        if expected is not None:
            request["expected"] = expected
        for some in _portions(tasks):
            reply = self._call("tracker_update", {**request, "tasks": [given.pack() for given in some]})
            task = TrackedTask.of(reply[b"task"]) if reply.get(b"task") else None
            done = Updated(task, done.changed + reply[b"changed"], bool(reply.get(b"conflict")))
        return done

    def tracker_remove(
        self, tracker: str, task: str, *, who: Who, expected: int | None = None
    ) -> tuple[bool, bool, int]:
        """Forget a task. Says whether it was there, whether it had another version than expected, and its version."""
        request: dict[str, Any] = {"tracker": tracker, "task": task, **who.pack()}
        if expected is not None:
            request["expected"] = expected
        reply = self._call("tracker_remove", request)
        return bool(reply[b"removed"]), bool(reply.get(b"conflict")), int(reply[b"version"])

    def tracker_clear(self, tracker: str, *, who: Who) -> int:
        """Forget a tracker with all its tasks; returns how many there were."""
        reply = self._call("tracker_clear", {"tracker": tracker, **who.pack()})
        return int(reply[b"removed"])

    def tracker_stats(self, tracker: str, *, ranks: int) -> TrackerCounts:
        """How many tasks there are of each rank, and what is known of the tracker; all of one moment."""
        reply = self._call("tracker_stats", {"tracker": tracker, "ranks": ranks})
        times = [None if reply.get(name) is None else float(reply[name]) for name in (b"created", b"updated")]
        return TrackerCounts(list(reply[b"counts"]), int(reply[b"changes"]), *times)

    def repair_tracker(self, tracker: str, ids: Sequence[str], *, repair: bool, actor: str) -> dict[str, int]:
        """What is not as it should be with some tasks; see the script for the words. At most 500 of them."""
        request = {"tracker": tracker, "ids": list(ids), "repair": repair, "actor": actor}
        return {word.decode(): int(count) for word, count in self._call("repair_tracker", request).items() if count}


def _portions(tasks: Sequence[Given]) -> list[list[Given]]:
    """What goes into one call each."""
    portions, size = list[list[Given]](), 0
    for given in tasks:
        size += given.bytes
        if not portions or len(portions[-1]) >= _MOST_TASKS or size > _MOST_BYTES:
            portions.append([])
            size = given.bytes
        portions[-1].append(given)
    return portions
