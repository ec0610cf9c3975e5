"""`Poimen`: wires the rooms and holds no logic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from celery import Celery

from poimen_tasks import context
from poimen_tasks._checks import check_flag
from poimen_tasks.audit import Audit
from poimen_tasks.board import StateTracker
from poimen_tasks.cache import Cache
from poimen_tasks.defaults import new_app
from poimen_tasks.dispatch import (
    NOT_GIVEN,
    Batch,
    Map,
    Runtime,
    StarMap,
    Workflow,
    dispatch,
    each_signature,
    register_each,
)
from poimen_tasks.dispatch.hidden import register_callback_task
from poimen_tasks.errors import InvalidArgument, SettingsError
from poimen_tasks.health import Finding, Repairs, examine, glance
from poimen_tasks.ids import check_name
from poimen_tasks.model import BatchState, Item, OnExisting, Priority
from poimen_tasks.pause import PauseReceipt, Pauses, PauseState, Snapshots
from poimen_tasks.policy import CachePolicy, RetryPolicy, policy
from poimen_tasks.settings import Settings, load_settings, resolve_redis_url
from poimen_tasks.store import Store
from poimen_tasks.worker import WorkerRoom

if TYPE_CHECKING:
    from celery import Signature, Task

    from poimen_tasks.dispatch.typed import DispatchOptions, OneArgument, Rows
    from poimen_tasks.pause.typed import PauseOptions, ResumeOptions

__all__ = ["Poimen"]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

#: "Not given", where None has a meaning; 0 and below mean the default for a caller, too.
_DEFAULT = 0


class Poimen:
    """Batches for a Celery app.

    Args:
        app: a name, for a new Celery app with Poimen's defaults; or an existing app, of which nothing is changed but
            that its own tasks (`poimen.lane`, `poimen.callback`, `poimen.each`, `poimen.each.collect`) are added.
        settings: checked settings; else they come from keywords, `POIMEN_*` variables and the app's `poimen_*` keys.
        **overrides: single settings, e.g. `namespace="shop"`.

    Raises:
        SettingsError: a setting is missing, malformed or unknown, or the app has a Poimen already. No connection is
            opened.
    """

    def __init__(self, app: str | Celery, *, settings: Settings | None = None, **overrides: Any) -> None:
        if settings is not None and overrides:
            raise SettingsError(
                f"settings: expected either settings= or single keywords, got both ({', '.join(overrides)})"
            )
        self._settings = settings
        self._overrides = overrides
        if isinstance(app, Celery):
            # Its configuration may come later than this line; it is read when a setting is first needed.
            self.celery = app
        else:
            self._settings = settings or load_settings(None, **overrides)
            self.celery = new_app(check_name(app, "app name"), self._settings)
        self._stores: dict[int, Store] = {}
        self._room = WorkerRoom(self.celery, self._make_store)
        publisher = self._room.publisher
        #: The result cache.
        self.cache = Cache(self._load_settings, self._store, publisher.landed)
        #: Snapshots of workflows: taken, kept, brought back.
        self.snapshots = Snapshots(self._load_settings, self._store, publisher.tickets, publisher.calls)
        self._room.snapshots = self.snapshots
        #: What is paused, and waiting for that.
        self.pauses = Pauses(self._store, publisher.tickets, publisher.calls, forget=self.snapshots.delete)
        self._runtime = Runtime(
            self.celery, self._load_settings, self._store, publisher.tickets, self.pauses.pause, self.pauses.resume
        )
        #: The audit log.
        self.audit = Audit(self._load_settings, self._store)
        register_callback_task(self._runtime)
        register_each(self._runtime)

    @property
    def settings(self) -> Settings:
        """The checked settings; of an existing app they are read at the first use.

        Raises:
            SettingsError: one is malformed or unknown.
        """
        if self._settings is None:
            self._settings = load_settings(dict(self.celery.conf.items()), **self._overrides)
        return self._settings

    def _load_settings(self) -> Settings:
        return self.settings

    # --- tasks and work ------------------------------------------------------------------------------------------

    @overload
    def task(self, body: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        bind: Literal[True],
        cache: CachePolicy | bool | None = None,
        retry: RetryPolicy | None = None,
        prefetch: int | None = None,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[Task[Any, Any], P], R]], Task[P, R]]: ...
    @overload
    def task(
        self,
        *,
        cache: CachePolicy | bool | None = None,
        retry: RetryPolicy | None = None,
        prefetch: int | None = None,
        **options: Any,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        *args: Any,
        cache: CachePolicy | bool | None = None,
        retry: RetryPolicy | None = None,
        prefetch: int | None = None,
        **options: Any,
    ) -> Any:
        """`app.task(...)` plus `policy(...)`: declares a task. Options are Celery's."""
        say = policy(cache=cache, retry=retry, prefetch=prefetch)

        def declare(task: Any) -> Any:
            said = say(task)
            # A lazy task is dressed once it is made, behind the policy's own mark.
            then = getattr(type(said), "__then__", None)
            if then is None:
                self._room.dress(said)
            else:
                then(said, self._room.dress, said)
            return said

        if args and callable(args[0]):
            return declare(self.celery.task(args[0], **options))
        # On the task, not on its function: the same function may be another task elsewhere.
        return lambda body: declare(self.celery.task(*args, **options)(body))

    @overload
    @staticmethod
    def map(task: OneArgument[A, R], iterable: Iterable[A], ids: Iterable[str] | None = None) -> Map[R]: ...
    @overload
    @staticmethod
    def map(task: str, iterable: Iterable[Any], ids: Iterable[str] | None = None) -> Map[Any]: ...
    @staticmethod
    def map(task: Any, iterable: Iterable[Any], ids: Iterable[str] | None = None) -> Map[Any]:
        """Work that calls `task(value)` for each value; lazy, and the fastest way to dispatch."""
        return Map(task, iterable, ids=ids)

    @overload
    @staticmethod
    def starmap(
        task: Rows[R], iterable: Iterable[Sequence[Any] | Mapping[str, Any]], ids: Iterable[str] | None = None
    ) -> StarMap[R]: ...
    @overload
    @staticmethod
    def starmap(task: str, iterable: Iterable[Any], ids: Iterable[str] | None = None) -> StarMap[Any]: ...
    @staticmethod
    def starmap(task: Any, iterable: Iterable[Any], ids: Iterable[str] | None = None) -> StarMap[Any]:
        """Work that calls `task(*row)`, or `task(**row)` when the row is a dict; lazy."""
        return StarMap(task, iterable, ids=ids)

    def each(
        self,
        task: Any,
        values: Iterable[Any] = NOT_GIVEN,
        *,
        star: bool = False,
        concurrency: int | None = _DEFAULT,
        queue: str | None = None,
        priority: str = "normal",
        workflow: str | None = None,
        stage: str = "default",
        actor: str | None = None,
    ) -> Signature[Any]:
        """A batch as a step of a Celery canvas: `chain(plan.s(repo), poimen.each(implement), judge.s())`.

        The step calls `task` with each value of the list that the step before returned, and gives the list of results,
        in the same order, to the step behind it. While the batch runs no worker slot is held. If not every item
        succeeds the step fails with `BatchFailed`. Its message id, if it may be one, is the batch's id.

        Args:
            task: a task of this app, or its name.
            values: the values, when no step before gives them; they travel in the message.
            star: call `task(*row)`, or `task(**row)` when the row is a dict.
            concurrency: how many items run at a time, as in `dispatch`.
            queue: the queue for items whose task is not routed; `.set(queue=...)` says where the step itself goes.
            priority: `high`, `normal` or `low`, for the items.
            workflow: default: that of the batch which started the canvas, else the canvas's root id.
            stage: the batch's name in the workflow.
            actor: who dispatches, for the audit log; inherited as the workflow is.

        Raises:
            UnknownTask: the task is not one of this app.
            UnsupportedWork: the values cannot be iterated, or the task has arguments bound to it.
            InvalidArgument: an option is out of its range.
            InvalidId: a name breaks its rule.
        """
        return each_signature(
            self._runtime,
            task,
            values,
            star=star,
            concurrency=concurrency,
            queue=queue,
            priority=priority,
            workflow=workflow,
            stage=stage,
            actor=actor,
        )

    @overload
    def dispatch(self, work: Map[R], **options: Unpack[DispatchOptions]) -> Batch[R]: ...
    @overload
    def dispatch(self, work: Signature[Any], **options: Unpack[DispatchOptions]) -> Batch[Any]: ...
    @overload
    def dispatch(self, work: Iterable[Signature[R] | Item[R]], **options: Unpack[DispatchOptions]) -> Batch[R]: ...
    @overload
    def dispatch(self, work: Iterable[Any], **options: Unpack[DispatchOptions]) -> Batch[Any]: ...
    def dispatch(
        self,
        work: Any,
        *,
        workflow: str | None = None,
        stage: str = "default",
        batch_id: str | None = None,
        concurrency: int | None = _DEFAULT,
        queue: str | None = None,
        priority: Priority = "normal",
        on_success: Any = None,
        on_failure: Any = None,
        on_complete: Any = None,
        actor: str | None = None,
        metadata: dict[str, Any] | None = None,
        on_existing: OnExisting = "continue",
    ) -> Batch[Any]:
        """Hand over work; returns as soon as it is written, while workers run it.

        Args:
            work: a `group`, a `chord`, a `map` or `starmap` of a task, or an iterable of signatures and `Item`. It is
                read 256 items at a time: the batch is there, and runs, when the first 256 have been read.
            workflow: the run it belongs to; default: the batch's own id, or inside a task the workflow of its batch.
            stage: its name in the workflow.
            batch_id: an id of your own. One that exists is continued where it stopped or, when sealed, just returned.
            concurrency: how many items run at a time, over all workers; default: the setting `batch_concurrency`;
                0 and below mean the default, None as many as the fleet has.
            queue: the queue for items that name none and whose task is not routed.
            priority: `high`, `normal` or `low`.
            on_success: a signature to run with the list of results when all items succeeded (a chord's body is one).
            on_failure: a signature to run with the batch's id when it is over and not all succeeded.
            on_complete: a signature to run with the batch's id when it is over.
            actor: who dispatches, for the audit log.
            metadata: plain values to keep with the batch.
            on_existing: `continue`, or `raise` for `BatchExists`.

        Raises:
            PoimenError: bad input, before anything is written; in a later slice of the work the batch is cancelled
                and the error carries `batch_id`.
            StoreUnavailable: Redis does not answer within the connect timeout.
        """
        return dispatch(
            self._runtime,
            work,
            workflow=workflow,
            stage=stage,
            batch_id=batch_id,
            concurrency=concurrency,
            queue=queue,
            priority=priority,
            on_success=on_success,
            on_failure=on_failure,
            on_complete=on_complete,
            actor=actor,
            metadata=metadata,
            on_existing=on_existing,
        )

    # --- handles -------------------------------------------------------------------------------------------------

    def batch(self, batch_id: str) -> Batch:
        """The handle of a batch, in any process. Makes no round trip; an unknown id shows at the first read."""
        return Batch(self._runtime, check_name(batch_id, "batch id"))

    def batches(self, *, workflow: str | None = None, state: BatchState | str | None = None) -> list[Batch]:
        """Batches within their retention, newest first.

        Args:
            workflow: only those of this workflow.
            state: only those in this state.
        """
        if workflow is not None:
            check_name(workflow, "workflow")
        if state is not None and state not in set(BatchState):
            raise InvalidArgument(f"state {state!r:.60} is not known; use one of {', '.join(BatchState)}")
        names = self._store().reads.batches(workflow=workflow)
        if state is not None:
            statuses = self._store().reads.statuses(names)
            names = [status.batch_id for status in statuses if status is not None and status.state == state]
        return [Batch(self._runtime, name) for name in names]

    def workflow(self, workflow: str) -> Workflow:
        """The handle of a workflow: its batches as one. Makes no round trip; an unknown id shows at the first read."""
        return Workflow(self._runtime, check_name(workflow, "workflow"))

    def tracker(self, name: str) -> StateTracker:
        """The tracked states of a board's tasks, in any process. Makes no round trip; begins with its first update."""
        return StateTracker(self, name)

    def trackers(self) -> list[str]:
        """The names of all trackers, the oldest first."""
        return self._store().tracker_reads.names()

    # --- pausing -------------------------------------------------------------------------------------------------

    def pause(self, *, snapshot: bool = False, **options: Unpack[PauseOptions]) -> PauseReceipt:
        """From now on nothing of a scope starts, on any machine, until it is resumed.

        The scope is exactly one of `workflow=`, `batch=`, `queue=`, `activity=` (a task or its name) and
        `everything=True`; it need not exist yet. What is paused already gets the new reason, grace, terminate and
        expiry, under a new epoch. The other options:

        - `reason`, `actor`: for the state and the audit log.
        - `grace`: seconds after which running items are asked to stop, at their next `checkpoint()`; None: they may
          finish.
        - `terminate`: after the grace (none is 0) also end the processes of those that do not stop; they start anew.
        - `expires`: seconds after which it is resumed by itself; None: never.
        - `request_id`: a repeated request with the same id changes nothing, and gets the same receipt.
        - `snapshot`: also keep the workflow on disk before returning; without it a worker does that once nothing of it
          runs (see the setting `snapshot_on_pause`).

        Raises:
            InvalidArgument: none or several scopes, or an option is out of its range.
            InvalidId: an id breaks its rule.
            SnapshotFailed: the pause holds, but the workflow was not kept on disk.
        """
        check_flag("snapshot", snapshot)
        if snapshot and options.get("workflow") is None:
            raise InvalidArgument("snapshot=True is for a workflow: pause it with workflow=")
        receipt = self.pauses.pause(**options)
        if snapshot:
            self.snapshots.keep_paused(
                str(options.get("workflow")), actor=options.get("actor"), reason=options.get("reason", "")
            )
        return receipt

    def resume(self, **options: Unpack[ResumeOptions]) -> PauseState:
        """A scope, given as to `pause`, is paused no more; what other paused scopes cover stays held.

        The other options:

        - `reason`, `actor`: for the state and the audit log.
        - `rate`: items a second that may start in the scope at first; it doubles every 5 s, and ends after 60 s.
        - `epoch`: resume only the pause with this number.
        - `request_id`: a repeated request with the same id changes nothing.

        Raises:
            NotPaused: it is not paused.
            StaleEpoch: it was paused anew since that epoch.
            InvalidArgument: none or several scopes, or an option is out of its range.
            InvalidId: an id breaks its rule.
        """
        return self.pauses.resume(**options)

    @staticmethod
    def checkpoint(state: Any = context.UNSET) -> Any:
        """Called now and then by a long body: saves where it is, and stops it when it is to stop.

        Outside of an item it does nothing.

        Args:
            state: what the body needs to go on from here, of the values that travel; saved until the item has its
                outcome. Not given: only asks.

        Returns:
            What was saved last for this item, by this run or an earlier one; None for nothing.

        Raises:
            Paused: the item is paused and its grace is over; let it pass, and it runs again after the resume.
            Cancelled: the batch was cancelled, or the item revoked; let it pass.
            SerializationError: the state does not travel, or is larger than a result may be.
        """
        running = context.current_item()
        return None if running is None else running.checkpoint(state)

    def health(self) -> list[Finding]:
        """Look at what costs next to nothing: the server, the workers, how far the audit log is behind.

        Made for a probe that asks every few seconds; `doctor` looks at everything. A server that does not answer is a
        finding of level error.
        """
        return list(glance(self._store()))

    def doctor(self, *, repair: bool = False, actor: str = "doctor") -> list[Finding]:
        """Check a live system: the server, the invariants, the fleet, settings that conflict.

        Args:
            repair: also put right what can be, each with its audit entry.
            actor: who repairs, for the audit log.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        publish = self._runtime.publish
        repairs = (
            Repairs(actor=check_name(actor, "actor"), publish=lambda tickets: publish(tickets, {})) if repair else None
        )
        return list(examine(self._store(), self.celery.conf, repairs=repairs))

    # --- wiring --------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """This process's store; opens a connection at its first use."""
        return self._store()

    @property
    def redis_url(self) -> str:
        """The Redis that holds the state.

        Raises:
            SettingsError: there is none; the message says which variable to set.
        """
        conf = self.celery.conf
        return resolve_redis_url(self.settings, broker_url=conf.broker_url, result_backend=conf.result_backend)

    def close(self) -> None:
        """Close this process's connections to Redis; the next use opens new ones."""
        store = self._stores.pop(os.getpid(), None)
        if store is not None:
            store.client.close()
        self._room.close()

    @contextmanager
    def using(self, settings: Settings) -> Iterator[None]:
        """Work with other settings for a while, as a test does; connections are closed before and after.

        The Celery app's own settings, as its broker, stay as they are: see `poimen_tasks.testing.redirected`.

        Args:
            settings: instead of those that it has.
        """
        before = self._settings
        self.close()
        self._settings = settings
        try:
            yield
        finally:
            self.close()
            self._settings = before

    def _make_store(self) -> Store:
        return Store(self.settings, self.redis_url)

    def _store(self) -> Store:
        # A forked child must not share sockets with its parent, so each process has its own.
        pid = os.getpid()
        store = self._stores.get(pid)
        if store is None:
            store = self._make_store()
            self._stores = {pid: store}
        return store
