"""Brings lanes and keeper into a Celery worker: the lane task, the signals, the request class.

Installed by constructing `Poimen`; a plain `celery worker` is complete.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.worker import state as worker_state
from celery.worker.request import Request
from kombu.exceptions import KombuError

from poimen_tasks.dispatch.messages import returned_key
from poimen_tasks.dispatch.publish import LANE_TASK, publish_calls, publish_tickets
from poimen_tasks.dispatch.routing import speaks_amqp
from poimen_tasks.errors import PoimenError, SettingsError
from poimen_tasks.store import Store
from poimen_tasks.store.cache_scripts import Landed
from poimen_tasks.store.loader import load_all
from poimen_tasks.store.scripts import unpack_parts
from poimen_tasks.store.values import Part, Ticket, WaitingCall
from poimen_tasks.worker import inspecting  # noqa: F401 - registers its command
from poimen_tasks.worker.broker import QueueDepths
from poimen_tasks.worker.cached_calls import install_cache
from poimen_tasks.worker.call_keeping import CallKeeper
from poimen_tasks.worker.celery_compat import check_tracer, hasten_exit, quicken_requests
from poimen_tasks.worker.departure import SETTLING, Departure, heed_signals, restore_all
from poimen_tasks.worker.deployments import KNOWN, known_elsewhere, mark_of
from poimen_tasks.worker.events import EventStream, are_enabled
from poimen_tasks.worker.host import LaneHost
from poimen_tasks.worker.keeper import Keeper
from poimen_tasks.worker.known_lanes import KnownLane
from poimen_tasks.worker.lane import Lane
from poimen_tasks.worker.origin import install_origin
from poimen_tasks.worker.pace import Paces
from poimen_tasks.worker.pause_snapshots import PauseSnapshots
from poimen_tasks.worker.plain_calls import PlainCalls
from poimen_tasks.worker.pools import Pool, pool_of
from poimen_tasks.worker.retrying import install_retry
from poimen_tasks.worker.shared import SharedState
from poimen_tasks.worker.unsafe_server import refuse_unsafe_server
from poimen_tasks.worker.wake import install_wake

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.pause.snapshots import Snapshots

__all__ = ["WorkerRoom"]

log = logging.getLogger(__name__)


class LaneRequest(Request):
    """The parent's view of a lane: it tells the keeper when a child begins one, and when one is lost."""

    def _lane_key(self) -> tuple[str, int, int]:
        batch, slot, generation, _queue = self.args
        return batch, slot, generation

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """A child took it."""
        super().on_accepted(pid, time_accepted)
        keeper: Keeper | None = getattr(self.task, "keeper", None)
        if keeper is not None:
            # Without processes Celery tells the number of a thread's process, or of a greenlet: nothing to be killed.
            pool: Pool = getattr(self.task, "pool", Pool())
            child = pid if pool.processes else 0
            lane = KnownLane(
                self._lane_key(),
                child,
                lambda: _kill(child),
                is_over=self._is_over,
                acknowledge=self.acknowledge if self.task.acks_late else None,
                message_id=self.id,
            )
            keeper.lane_began(lane)

    def _is_over(self) -> bool:
        return self not in worker_state.active_requests

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Celery's own limit struck: the body ignored ours."""
        super().on_timeout(soft, timeout)
        if not soft:
            self._tell("timeout", f"hard limit, enforced by the worker after {timeout} s")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """The child died, or the lane itself failed."""
        try:
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:
            self._tell("lost", str(exc_info.exception)[:300])

    def _tell(self, why: str, detail: str) -> None:
        keeper: Keeper | None = getattr(self.task, "keeper", None)
        if keeper is not None:
            keeper.lane_lost(self._lane_key(), why, detail)


def _kill(pid: int) -> bool:
    """Kill a child. False where lanes have no process of their own: the running item ends by itself."""
    if not pid:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        log.info("process %d is gone already", pid)
    return True


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
        self._store: Store | None = None
        self._paces = Paces()
        self._tracers: dict[str, Any] = {}
        self._shared = SharedState()
        self._keeper: Keeper | None = None
        self._streams: dict[int, EventStream] = {}
        self._left: set[str] = set()
        self._pool = Pool()
        self._hostname = ""
        self._lane_task = self._register_lane()
        self._serves = False
        self._departure: Departure | None = None
        self._pause_snapshots: PauseSnapshots | None = None
        #: Given by the app, once it has them.
        self.snapshots: Snapshots | None = None
        self._plain = PlainCalls(app, lambda: self.store, lambda: self._hostname)
        install_origin()
        install_wake(app)
        app.on_after_finalize.connect(self._finalized, weak=False)
        if app.finalized:  # type: ignore[attr-defined]  # missing in the stubs
            self._finalized()
        for signal_, receiver in (
            (signals.worker_init, self._worker_init),
            (signals.worker_process_init, self._process_init),
            (signals.worker_process_shutdown, self._process_shutdown),
            (signals.worker_ready, self._worker_ready),
            (signals.task_received, self._task_received),
            (signals.task_revoked, self._task_revoked),
            (signals.worker_shutting_down, self._shutting_down),
            (signals.worker_shutdown, self._worker_shutdown),
        ):
            signal_.connect(receiver, weak=False)

    def _register_lane(self) -> Any:
        room = self

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
        def lane(task: Any, batch: str, slot: int, generation: int, queue: str) -> str:
            return room.run_lane(
                batch, slot, generation, queue, eager=bool(task.request.is_eager), message_id=task.request.id
            )

        task: Any = lane
        task.Request = LaneRequest
        task.keeper = None
        task.pool = self._pool
        return task

    # -- in the process that runs lanes ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """This process's store."""
        if self._store is None:
            self._store = self._make_store()
        return self._store

    @property
    def events(self) -> EventStream:
        """This process's stream of task events."""
        pid = os.getpid()
        stream = self._streams.get(pid)
        if stream is None:
            rate = self.store.settings.item_events_rate
            stream = self._streams.setdefault(
                pid,
                EventStream(self.app, hostname=self._hostname, rate=rate, wanted=lambda: self._shared.events_wanted),
            )
        return stream

    def run_lane(self, batch: str, slot: int, generation: int, queue: str, *, eager: bool, message_id: str = "") -> str:
        """The body of the lane task."""
        host = LaneHost(
            app=self.app,
            store=self.store,
            hostname=self._hostname or "eager",
            paces=self._paces,
            tracers=self._tracers,
            publish=self.publish,
            publish_calls=self.publish_calls,
            leaving=self._is_leaving,
            others_wait=lambda: self._shared.others_wait,
            stopping=lambda: self._shared.stopping,
            known_elsewhere=self._known_elsewhere,
            pool=self._pool,
            eager=eager,
            events=None if eager else self.events,
        )
        return Lane(host, batch, slot, generation, queue, message_id=message_id).run()

    def _known_elsewhere(self, activity: str, queue: str) -> bool:
        """Asked about a task that is not registered here."""
        if not known_elsewhere(self.store, activity, queue):
            return False
        if activity not in self._left:
            self._left.add(activity)
            log.warning(
                "task %s is not registered with this worker, but with another of queue %r: its items are left to that "
                "one; deploy the same code here",
                activity,
                queue,
            )
        return True

    def publish(self, tickets: Sequence[Ticket], parts_of: Mapping[str, Sequence[Part]]) -> None:
        """Publish; what cannot be published is overdue soon, and the keeper issues it again."""
        known = dict(parts_of)
        try:
            for batch in {ticket.batch for ticket in tickets} - known.keys():
                (blob,) = self.store.reads.field(batch, "parts")
                known[batch] = unpack_parts(blob) if blob else []
            publish_tickets(self.app, [ticket for ticket in tickets if known[ticket.batch]], known)
        except (KombuError, OSError, PoimenError) as error:
            log.warning("%d tickets could not be published, they are issued again soon: %s", len(tickets), error)
        except Exception:
            # A transport's own errors, as of a broker that is out of memory. The caller has recorded its work already.
            log.exception("%d tickets could not be published, they are issued again soon", len(tickets))

    def dress(self, task: Any) -> None:
        """Give a task's plain calls what its policy says, and the check that stands before them."""
        install_cache(task, lambda: self.store, self.publish_landed)
        install_retry(task)
        if task.name != LANE_TASK:
            check_tracer(task, self._plain.wrap)

    def publish_landed(self, landed: Landed) -> None:
        """Publish what follows of the end of a computation."""
        if landed.tickets:
            self.publish(landed.tickets, {})
        if landed.calls:
            self.publish_calls(landed.calls)

    def publish_calls(self, calls: Sequence[WaitingCall]) -> None:
        """Publish plain calls that waited; one that cannot be published is overdue soon, and published again."""
        try:
            publish_calls(self.app, calls)
        except Exception as error:  # noqa: BLE001 - every transport has errors of its own
            log.warning("%d calls could not be published, they are published again soon: %s", len(calls), error)

    def _is_leaving(self) -> bool:
        asked: tuple[Any, Any] = (worker_state.should_stop, worker_state.should_terminate)
        return self._shared.leaving or any(flag is not None and flag is not False for flag in asked)

    def close(self) -> None:
        """Close this process's connections and forget what was learnt with the settings so far."""
        store, self._store = self._store, None
        if store is not None:
            store.calls.close()
            store.client.close()
        self._plain.reset()
        self._paces = Paces()
        self._tracers.clear()

    # -- signals -----------------------------------------------------------------------------------------------------

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
        self._hostname = sender.hostname
        self._shared.leaving = self._shared.stopping = False  # a process may run one worker after another
        quicken_requests(self.app)
        # An AMQP broker pushes as many messages as are unacknowledged at most: with early acknowledgement a busy worker
        # would be sent more, and hold them while another idles. Redis hands out what is asked for.
        self._lane_task.acks_late = speaks_amqp(self.app)
        try:
            self._pool = self._lane_task.pool = pool_of(sender.pool_cls, most_memory=sender.max_memory_per_child)
        except SettingsError as error:
            # A receiver's exceptions are only logged; this one ends the worker, with the text on stderr.
            raise SystemExit(str(error)) from None

    def _refuse_unsafe_server(self) -> None:
        try:
            store = self.store
        except SettingsError:
            return  # said when the worker is ready
        refuse_unsafe_server(store)
        load_all()
        store.client.close()  # pool processes are forked from here

    def _process_init(self, **_: Any) -> None:
        # A child has connections of its own; those of the parent stay untouched. Opened here, none costs an item time.
        self._store = None
        self._plain.reset()
        if not self._serves:
            return  # another app's worker
        hasten_exit()
        try:
            self.store.client.warm_up()
        except SettingsError:
            log.debug("no Redis is known; the worker's main process says so")
        except PoimenError as error:
            log.warning("no connection to the store yet: %s", error)

    def _worker_ready(self, sender: Any = None, **_: Any) -> None:
        worker = getattr(sender, "controller", None)
        if worker is None or not self._is_mine(worker.app):
            return
        queues = [queue.name for queue in self.app.amqp.queues.consume_from.values()]
        slots = max(worker.concurrency or 1, worker.max_concurrency or 0)
        try:
            keeper_store = self._make_store()
        except SettingsError as error:
            log.error("this worker serves no batches: %s", error)  # noqa: TRY400 - a setting, not a crash
            return
        depths = QueueDepths(self.app)
        self._keeper = Keeper(
            keeper_store,
            name=f"{worker.hostname}/{os.getpid()}",
            offers=lambda: [(queue, slots) for queue in queues],
            details={
                "hostname": worker.hostname,
                "pool": str(worker.pool_cls.__module__),
                "slots": slots,
                "tasks": len(self.app.tasks),
                KNOWN: mark_of(self.app.tasks),
            },
            publish=self.publish,
            publish_calls=self.publish_calls,
            make_calls=lambda store, broker: CallKeeper(
                self.app,
                store,
                broker,
                hostname=worker.hostname,
                processes=self._pool.processes,
                publish=self.publish_calls,
                depths=depths,
            ),
            depths=depths,
            shared=self._shared,
            reserved=lambda: len(worker_state.reserved_requests) - len(worker_state.active_requests),
            events=self.events,
            events_enabled=lambda: are_enabled(sender),
            drain=self._drained,
            look_after=self._look_after,
        )
        self._lane_task.keeper = self._keeper
        self._prepare_departure(self._keeper)
        self._keeper.start()

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

    def _process_shutdown(self, **_: Any) -> None:
        stream = self._streams.get(os.getpid())
        if stream is not None:
            stream.close()

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _prepare_departure(self, keeper: Keeper) -> None:
        if self.snapshots is None:
            return
        settings = self.store.settings
        self._departure = Departure(keeper, self._shared, grace=settings.shutdown_grace, snapshots=self.snapshots)
        if settings.snapshot_on_pause:
            self._pause_snapshots = PauseSnapshots(keeper.store, self.snapshots)
        if settings.restore_on_start:
            arguments = (keeper.store, self.snapshots)
            threading.Thread(target=restore_all, args=arguments, name="poimen-restore", daemon=True).start()
        heed_signals(self._asked_to_leave)

    def _asked_to_leave(self, *, cold: bool) -> None:
        """A signal came. Of a cold shutdown Celery tells only when its soft part is over, and ends the pool then."""
        soft = float(self.app.conf.worker_soft_shutdown_timeout or 0.0)
        self._leave(within=max(0.0, soft - SETTLING) if cold else None)

    def _leave(self, *, within: float | None) -> None:
        self._shared.leaving = True
        if self._departure is not None:
            self._departure.begin(within=within)

    def _drained(self) -> None:
        """`poimen drain` asks for this worker: the same as SIGTERM."""
        if not self._shared.leaving:
            log.warning("asked to drain: this worker leaves")
            self._leave(within=None)
            state: Any = worker_state
            state.should_stop = 0  # Celery's loop looks at it and ends as after SIGTERM

    def _look_after(self) -> None:
        """The elected keeper's, each tick."""
        if self._pause_snapshots is not None:
            self._pause_snapshots.look()

    def _shutting_down(self, sender: Any = None, how: str = "", **_: Any) -> None:
        if sender in (None, self._hostname):
            self._leave(within=0.0 if how == "Cold" else None)

    def _worker_shutdown(self, **_: Any) -> None:
        departure, self._departure = self._departure, None
        if departure is not None:
            departure.join()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._lane_task.keeper = None
            keeper.stop()
        self._process_shutdown()
