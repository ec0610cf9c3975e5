"""Brings lanes and keeper into a Celery worker: the lane task, and what is done at each of Celery's signals.

Installed by constructing `Poimen`; a plain `celery worker` is complete.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.worker import state as worker_state

from poimen_tasks.dispatch.messages import returned_key
from poimen_tasks.dispatch.publish import LANE_TASK
from poimen_tasks.dispatch.routing import speaks_amqp
from poimen_tasks.errors import PoimenError, SettingsError
from poimen_tasks.store import Store
from poimen_tasks.store.loader import load_all
from poimen_tasks.worker import inspecting  # noqa: F401 - registers its command
from poimen_tasks.worker.broker import QueueDepths
from poimen_tasks.worker.cached_calls import install_cache
from poimen_tasks.worker.call_keeping import CallKeeper
from poimen_tasks.worker.celery_compat.plain_tracer import check_tracer
from poimen_tasks.worker.celery_compat.pool_exit import hasten_exit
from poimen_tasks.worker.celery_compat.stacks import quicken_requests
from poimen_tasks.worker.deployments import KNOWN, mark_of
from poimen_tasks.worker.events import are_enabled
from poimen_tasks.worker.fork_gate import GATE
from poimen_tasks.worker.keeper import Keeper
from poimen_tasks.worker.lane_request import LaneRequest
from poimen_tasks.worker.lane_ticket import read_ticket
from poimen_tasks.worker.origin import install_origin
from poimen_tasks.worker.pause_snapshots import PauseSnapshots
from poimen_tasks.worker.plain_calls import PlainCalls
from poimen_tasks.worker.pools import pool_of
from poimen_tasks.worker.process import LaneProcess
from poimen_tasks.worker.publisher import Publisher
from poimen_tasks.worker.restore_on_start import begin_restore
from poimen_tasks.worker.retrying import install_retry
from poimen_tasks.worker.shared import SharedState
from poimen_tasks.worker.shutdown import Shutdown
from poimen_tasks.worker.unsafe_server import refuse_unsafe_server
from poimen_tasks.worker.wake import install_wake

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.pause.snapshots import Snapshots

__all__ = ["WorkerRoom"]

log = logging.getLogger(__name__)

#: The apps that have one: two would answer each signal twice, and only the later one's lanes would run.
_served: weakref.WeakSet[Celery] = weakref.WeakSet()


class WorkerRoom:
    """What one `Poimen` keeps in a worker process.

    Raises:
        SettingsError: the app has one already.
    """

    def __init__(self, app: Celery, make_store: Callable[[], Store]) -> None:
        if app in _served:
            raise SettingsError(
                f"app {app.main!r} has a Poimen already; make one for each app, in one module, and import it from there"
            )
        _served.add(app)
        self.app = app
        self._make_store = make_store
        self._shared = SharedState()
        self._shutdown = Shutdown(app, self._shared)
        self._process = LaneProcess(app, make_store, shared=self._shared, leaving=self._shutdown.is_asked)
        #: Publishes for this process.
        self.publisher = self._process.publisher
        self._plain = PlainCalls(app, lambda: self._process.store, lambda: self._process.hostname)
        self._keeper: Keeper | None = None
        self._serves = False
        self._pause_snapshots: PauseSnapshots | None = None
        #: Given by the app, once it has them.
        self.snapshots: Snapshots | None = None
        self._lane_task = self._register_lane()
        install_origin()
        install_wake(app)
        app.on_after_finalize.connect(self._finalized, weak=False)
        if app.finalized:  # type: ignore[attr-defined]  # missing in the stubs
            self._finalized()
        for signal, receiver in (
            (signals.worker_init, self._worker_init),
            (signals.worker_process_init, self._process_init),
            (signals.worker_process_shutdown, self._process_shutdown),
            (signals.worker_ready, self._worker_ready),
            (signals.task_received, self._task_received),
            (signals.task_revoked, self._task_revoked),
            (signals.worker_shutting_down, self._shutting_down),
            (signals.worker_shutdown, self._worker_shutdown),
        ):
            signal.connect(receiver, weak=False)

    def _register_lane(self) -> Any:
        process = self._process

        @self.app.task(
            name=LANE_TASK,
            bind=True,
            ignore_result=True,
            acks_late=False,
            reject_on_worker_lost=False,
            track_started=False,
            max_retries=0,
            send_events=False,  # a publish before each start; what an observer wants to see are the items
            typing=False,
            shared=False,
        )
        def lane(task: Any, *args: Any, **kwargs: Any) -> str:
            ticket = read_ticket(args, kwargs)
            if ticket is None:
                log.warning(
                    "message %.60r of %s carries no ticket and is dropped: %.200r", task.request.id, LANE_TASK, args
                )
                return "no ticket"
            return process.run_lane(*ticket, eager=bool(task.request.is_eager), message_id=task.request.id)

        task: Any = lane
        task.Request = LaneRequest
        task.keeper = None
        task.pool = process.pool
        return task

    def dress(self, task: Any) -> None:
        """Give a task's plain calls what its policy says, and the check that stands before them."""
        install_cache(task, lambda: self._process.store, self.publisher.landed)
        install_retry(task)
        if task.name != LANE_TASK:
            check_tracer(task, self._plain.wrap)

    def close(self) -> None:
        """Close this process's connections and forget what was learnt with the settings so far."""
        self._process.close()
        self._plain.reset()

    # -- a worker begins ---------------------------------------------------------------------------------------------

    def _finalized(self, **_: Any) -> None:
        for task in self.app.tasks.values():
            self.dress(task)

    def _is_mine(self, sender_app: Any) -> bool:
        return sender_app is self.app

    def _worker_init(self, sender: Any = None, **_: Any) -> None:
        if not self._is_mine(sender.app):
            return
        self._refuse_unsafe_server()
        self._serves = True
        self._finalized()  # tasks may have been registered since, by a class or late in a module
        self._process.hostname = sender.hostname
        self._shared.leaving = self._shared.stopping = False  # a process may run one worker after another
        quicken_requests(self.app)
        # An AMQP broker pushes as many messages as are unacknowledged at most: with early acknowledgement a busy worker
        # would be sent more, and hold them while another idles. Redis hands out what is asked for.
        self._lane_task.acks_late = speaks_amqp(self.app)
        try:
            pool = pool_of(sender.pool_cls, most_memory=sender.max_memory_per_child)
        except SettingsError as error:
            # A receiver's exceptions are only logged; this one ends the worker, with the text on stderr.
            raise SystemExit(str(error)) from None
        self._process.pool = self._lane_task.pool = pool
        if pool.processes:
            GATE.stand()

    def _refuse_unsafe_server(self) -> None:
        try:
            store = self._process.store
        except SettingsError:
            return  # said when the worker is ready
        refuse_unsafe_server(store)
        load_all()
        store.client.close()  # pool processes are forked from here

    def _process_init(self, **_: Any) -> None:
        self._process.forked()
        self._plain.reset()
        if not self._serves:
            return  # another app's worker
        hasten_exit()
        try:
            self._process.store.client.warm_up()  # opened here, a connection costs no item time
        except SettingsError:
            log.debug("no Redis is known; the worker's main process says so")
        except PoimenError as error:
            log.warning("no connection to the store yet: %s", error)

    def _worker_ready(self, sender: Any = None, **_: Any) -> None:
        worker = getattr(sender, "controller", None)
        if worker is None or not self._is_mine(worker.app):
            return
        try:
            store = self._make_store()
        except SettingsError as error:
            log.error("this worker serves no batches: %s", error)  # noqa: TRY400 - a setting, not a crash
            return
        self._keeper = self._lane_task.keeper = self._make_keeper(store, worker, consumer=sender)
        self._keep_workflows(self._keeper)
        self._keeper.start()

    def _make_keeper(self, store: Store, worker: Any, *, consumer: Any) -> Keeper:
        queues = [queue.name for queue in self.app.amqp.queues.consume_from.values()]
        slots = max(worker.concurrency or 1, worker.max_concurrency or 0)
        publisher, depths = Publisher(self.app, lambda: store), QueueDepths(self.app)
        return Keeper(
            store,
            name=f"{worker.hostname}/{os.getpid()}",
            offers=lambda: [(queue, slots) for queue in queues],
            details={
                "hostname": worker.hostname,
                "pool": str(worker.pool_cls.__module__),
                "slots": slots,
                "tasks": len(self.app.tasks),
                KNOWN: mark_of(self.app.tasks),
            },
            publisher=publisher,
            make_calls=lambda broker: CallKeeper(
                self.app,
                store,
                broker,
                hostname=worker.hostname,
                processes=self._process.pool.processes,
                publish=publisher.calls,
                depths=depths,
            ),
            depths=depths,
            shared=self._shared,
            reserved=lambda: len(worker_state.reserved_requests) - len(worker_state.active_requests),
            events=self._process.events,
            events_enabled=lambda: are_enabled(consumer),
            drain=self._shutdown.drain,
            look_after=self._look_after,
        )

    def _keep_workflows(self, keeper: Keeper) -> None:
        """On disk: when they are paused, and when the worker leaves; and bring back those that are there."""
        if self.snapshots is None:
            return
        settings = keeper.store.settings
        if settings.snapshot_on_pause:
            self._pause_snapshots = PauseSnapshots(keeper.store, self.snapshots)
        if settings.restore_on_start:
            begin_restore(keeper.store, self.snapshots)
        self._shutdown.prepare(keeper, grace=settings.shutdown_grace, snapshots=self.snapshots)

    def _look_after(self) -> None:
        """The elected keeper's, each tick."""
        if self._pause_snapshots is not None:
            self._pause_snapshots.look()

    # -- it has messages in its hands --------------------------------------------------------------------------------

    def _task_received(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        """A worker's parent has a message in its hands; the process that runs it is not told how it was serialised."""
        if not self._serves or getattr(sender, "app", None) is not self.app:
            return
        kind = request.content_type
        if kind not in (None, "application/json"):
            told = request.request_dict
            told["properties"] = {**(told.get("properties") or {}), "content_type": kind}

    def _task_revoked(self, sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
        """A message was discarded before it began: if it had been parked, it does not come back."""
        keeper = self._keeper
        key = returned_key(request.__dict__) if keeper is not None and request is not None else None
        if keeper is not None and key is not None and getattr(sender, "app", None) is self.app:
            keeper.calls.drop(key, "expired" if expired else "revoked")

    # -- it leaves ---------------------------------------------------------------------------------------------------

    def _shutting_down(self, sender: Any = None, how: str = "", **_: Any) -> None:
        if sender in (None, self._process.hostname):
            self._shutdown.begin(within=0.0 if how == "Cold" else None)

    def _worker_shutdown(self, **_: Any) -> None:
        self._shutdown.join()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._lane_task.keeper = None
            keeper.stop()
        self._process_shutdown()

    def _process_shutdown(self, **_: Any) -> None:
        self._process.end_events()
