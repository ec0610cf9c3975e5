"""`StateTracker`: the states of a board's tasks in Redis, for many processes at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from poimen_tasks import context
from poimen_tasks._checks import check_count, check_list, expected, words
from poimen_tasks.board.state import TaskState, TrackerStats
from poimen_tasks.board.task import BoardTask, TaskStatus, check_cell, check_status, check_task_id
from poimen_tasks.errors import TrackerConflict
from poimen_tasks.ids import check_actor, check_label, check_name
from poimen_tasks.store.tracker_scripts import Given, Who

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = ["StateTracker"]

_BEGIN = (str(TaskStatus.PENDING), TaskStatus.PENDING.rank)


class _HasStore(Protocol):
    @property
    def store(self) -> Store:
        """Where the states are."""


class StateTracker:
    """The states of tasks under a name, shared by all processes that use it.

    Each update is one atomic step of the store, with its audit entry: of any number of writers none overwrites what it
    does not name, and nothing is lost. Making one makes no round trip; the tracker begins with its first update, and
    lasts until it is cleared.

    Args:
        poimen: whose store keeps it; `poimen.tracker(name)` is the same.
        name: 1-128 of letters, digits and `_ . : -`.

    Raises:
        InvalidId: the name breaks its rule.
    """

    def __init__(self, poimen: _HasStore, name: str) -> None:
        self._poimen = poimen
        self.name = check_name(name, "tracker")

    def __repr__(self) -> str:
        return f"StateTracker({self.name!r})"

    def update(
        self,
        task_id: str,
        status: TaskStatus | str | None = None,
        *,
        scope: str | None = None,
        branch: str | None = None,
        verification: str | None = None,
        expected: int | None = None,
        actor: str | None = None,
        reason: str = "",
        request_id: str | None = None,
    ) -> TaskState:
        """Set what is given; the rest stays as it is. A task that is not there begins, as `pending` without a status.

        An update that says nothing new changes nothing: it has no new version and no audit entry.

        Args:
            task_id: the task.
            status: one of `TaskStatus`, or a text that spells one.
            scope: what is to be done.
            branch: where the work is.
            verification: how it is shown to be done.
            expected: only if the task still has this version; 0: only if it is not there.
            actor: who, for the state and the audit log; inside a task by default the actor of its batch.
            reason: why, for both.
            request_id: an update that is sent again under its id changes nothing, whatever happened meanwhile; a task
                remembers its last 8.

        Returns:
            The state afterwards.

        Raises:
            TrackerConflict: the task has another version than `expected`; nothing was changed.
            InvalidId: an id breaks its rule.
            InvalidArgument: a value has no place on a board, or an option is out of its range.
        """
        if expected is not None:
            check_count("expected", expected, least=0)
        given = _given(task_id, status, scope, branch, verification)
        done = self._store().trackers.tracker_update(
            self.name,
            [given],
            begin=_BEGIN,
            who=_who(actor, reason),
            expected=expected,
            request_id="" if request_id is None else check_label(request_id, "request id"),
        )
        if done.conflict:
            raise self._conflict(given.id, expected, done.task.version if done.task else 0)
        assert done.task is not None  # noqa: S101 - it was updated
        return TaskState.of(given.id, done.task)

    def update_many(self, tasks: Iterable[BoardTask | TaskState], *, actor: str | None = None, reason: str = "") -> int:
        """Set the states of many tasks, as of a board, 100 a round trip; empty texts stay as they are.

        All are checked before the first is written. Every 100 are one step; a call that broke off is made again.

        Returns:
            How many changed.

        Raises:
            InvalidArgument: one is no task.
        """
        given = []
        for task in check_list("tasks", "tasks of a board", tasks):
            if not isinstance(task, (BoardTask, TaskState)):
                raise expected("tasks", "values of BoardTask or TaskState", task)
            texts = (task.scope or None, task.branch or None, task.verification or None)
            given.append(_given(task.id, task.status, *texts))
        scripts = self._store().trackers
        return scripts.tracker_update(self.name, given, begin=_BEGIN, who=_who(actor, reason)).changed

    def get(self, task_id: str) -> TaskState | None:
        """The state of a task; None for one that is not tracked."""
        task_id = check_task_id(task_id)
        stored = self._store().tracker_reads.task(self.name, task_id)
        return None if stored is None else TaskState.of(task_id, stored)

    def all(self, status: TaskStatus | str | None = None) -> Iterator[TaskState]:
        """All tasks, in the order in which they were first tracked; read page by page as far as you go.

        A task that is there all the time comes once, whatever is changed meanwhile, in its state of the moment at which
        its page was read.

        Args:
            status: only those in this status.
        """
        wanted = None if status is None else check_status(status)
        rows = self._store().tracker_reads.tasks(self.name, rank=None if wanted is None else wanted.rank)
        states = (TaskState.of(task_id, stored) for task_id, stored in rows)
        return states if wanted is None else (state for state in states if state.status is wanted)

    def completed(self) -> Iterator[TaskState]:
        """All tasks that are completed, as `all` has them."""
        return self.all(TaskStatus.COMPLETED)

    def stats(self) -> TrackerStats:
        """How many tasks there are in each status; one round trip, however many there are."""
        return TrackerStats.of(self._store().trackers.tracker_stats(self.name, ranks=len(TaskStatus)))

    def remove(self, task_id: str, *, expected: int | None = None, actor: str | None = None, reason: str = "") -> bool:
        """Track a task no more. Returns whether it was tracked.

        Args:
            task_id: the task.
            expected: only if it still has this version.
            actor: who, for the audit log.
            reason: why, for the audit log.

        Raises:
            TrackerConflict: it has another version; nothing was changed.
        """
        if expected is not None:
            check_count("expected", expected, least=0)
        task_id = check_task_id(task_id)
        removed, conflict, version = self._store().trackers.tracker_remove(
            self.name, task_id, who=_who(actor, reason), expected=expected
        )
        if conflict:
            raise self._conflict(task_id, expected, version)
        return removed

    def clear(self, *, actor: str | None = None, reason: str = "") -> int:
        """Forget the tracker with all its tasks, in one step. Returns how many there were."""
        return self._store().trackers.tracker_clear(self.name, who=_who(actor, reason))

    def _store(self) -> Store:
        return self._poimen.store

    def _conflict(self, task_id: str, wanted: int | None, version: int) -> TrackerConflict:
        found = f"it has version {version}" if version else "it is not there"
        before = f"version {wanted}" if wanted else "no such task"
        return TrackerConflict(
            f"task {task_id[:60]!a} of tracker {self.name!r}: expected {before}, {found}: somebody else changed it; "
            "get it again, and decide anew",
            version=version,
        )


def _who(actor: str | None, reason: str) -> Who:
    """Who it is; inside a task the batch's actor and workflow."""
    running = context.current_item()
    if running is None:
        return Who(check_actor(actor), words(reason))
    return Who(running.actor if actor is None else check_actor(actor), words(reason), running.workflow)


def _given(
    task_id: str, status: TaskStatus | str | None, scope: str | None, branch: str | None, verification: str | None
) -> Given:
    """What an update says of a task, checked."""
    wanted = None if status is None else check_status(status)
    texts = {"scope": scope, "branch": branch, "verification": verification}
    return Given(
        check_task_id(task_id),
        None if wanted is None else str(wanted),
        None if wanted is None else wanted.rank,
        **{name: None if text is None else check_cell(name, text) for name, text in texts.items()},
    )
