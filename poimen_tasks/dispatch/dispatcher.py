"""Dispatch: work is written in slices, the first tickets go out after the first one, the last slice seals the batch."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from poimen_tasks import codec, context
from poimen_tasks._checks import expected
from poimen_tasks.dispatch.batch import Batch
from poimen_tasks.dispatch.canvas import Plan, plan
from poimen_tasks.dispatch.hidden import KINDS, encode_callback
from poimen_tasks.dispatch.options import concurrency_limit
from poimen_tasks.dispatch.routing import PRIORITIES
from poimen_tasks.dispatch.slices import EMPTY, iter_slices
from poimen_tasks.dispatch.tracing import current_trace, pack_trace
from poimen_tasks.errors import BatchExists, BatchNotFound, Cancelled, DispatchAborted, InvalidArgument, PoimenError
from poimen_tasks.ids import check_name
from poimen_tasks.model import BatchState
from poimen_tasks.store import Refusal
from poimen_tasks.store.values import Part, Slice, Ticket

if TYPE_CHECKING:
    from poimen_tasks.dispatch.runtime import Runtime
    from poimen_tasks.store import Store

__all__ = ["dispatch"]

_EXISTING = ("continue", "raise")
_MOST_PARTS = 500


def dispatch(
    runtime: Runtime,
    work: Any,
    *,
    workflow: str | None,
    stage: str,
    batch_id: str | None,
    concurrency: Any,
    queue: str | None,
    priority: str,
    on_success: Any,
    on_failure: Any,
    on_complete: Any,
    actor: str | None,
    metadata: dict[str, Any] | None,
    on_existing: str,
) -> Batch:
    """See `Poimen.dispatch`."""
    if priority not in PRIORITIES:
        raise InvalidArgument(f"priority {priority!r:.60} is not allowed; use one of {', '.join(PRIORITIES)}")
    if on_existing not in _EXISTING:
        raise InvalidArgument(f"on_existing {on_existing!r:.60} is not allowed; use one of {', '.join(_EXISTING)}")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise expected("metadata", "a dict", metadata)
    running = context.current_item()
    if running is not None and running.is_cancelled():
        raise Cancelled(f"batch {running.batch!r} was cancelled: its items dispatch nothing more")
    named = batch_id is not None or running is not None
    batch = check_name(batch_id, "batch id") if batch_id is not None else _derived_id(running)
    record = {
        "workflow": check_name(
            workflow if workflow is not None else (running.workflow if running else batch), "workflow"
        ),
        "stage": check_name(stage, "stage"),
        "actor": check_name(actor if actor is not None else (running.actor if running else "unknown"), "actor"),
        "limit": concurrency_limit(concurrency, runtime.settings.batch_concurrency),
        "metadata": codec.encode(metadata or {}, what="metadata"),
        "retention": runtime.settings.retention,
        "trace": pack_trace(current_trace()),
    }
    read = plan(
        runtime.app,
        work,
        queue=queue,
        priority=priority,
        on_success=on_success,
        on_failure=on_failure,
        on_complete=on_complete,
    )
    return _Dispatch(runtime, batch, record, read, on_existing).run(may_exist=named)


def _derived_id(running: context.RunningItem | None) -> str:
    """A random id; inside an item the n-th dispatch always gets the same one, so a retry does not dispatch twice."""
    if running is None:
        return secrets.token_hex(8)
    running.dispatches += 1
    origin = f"{running.origin or running.batch}\0{running.position}\0{running.dispatches}"
    digest = hashlib.sha256(origin.encode()).hexdigest()[:12]
    return f"{running.batch[:64]}.{running.position}.{running.dispatches}-{digest}"


class _Dispatch:
    """One dispatch under way."""

    def __init__(self, runtime: Runtime, batch: str, record: dict[str, Any], read: Plan, on_existing: str) -> None:
        self._runtime = runtime
        self._batch = batch
        self._record = record
        self._plan = read
        self._on_existing = on_existing
        self._parts: list[Part] = []
        self._written = 0

    @property
    def _store(self) -> Store:
        return self._runtime.store()

    def run(self, *, may_exist: bool) -> Batch:
        """Write everything. Returns the batch's handle."""
        if may_exist and (known := self._look()) is not None:
            return known
        now = self._store.reads.now()
        slices = self._slices(now)
        first = next(slices, EMPTY)
        whole = first.count == self._plan.size_hint or first is EMPTY
        callbacks = [
            (KINDS[name], encode_callback(self._runtime.app, one, now)) for name, one in self._plan.callbacks.items()
        ]
        opened, _, _ = self._store.scripts.open_batch(
            self._batch, record=self._record, parts=self._parts, piece=first, seal=whole, callbacks=callbacks
        )
        if opened.existed:
            raise BatchExists(
                f"batch {self._batch!r} was opened by another producer at this moment; dispatch again to join it"
            )
        self._written = first.count
        self._publish(opened.tickets)
        if not whole:
            self._rest(slices)
        return self._done()

    def _look(self) -> Batch | None:
        """An existing batch: the same handle when it is sealed, else go on where it stopped."""
        try:
            status = self._store.reads.status(self._batch)
        except BatchNotFound:
            return None
        if self._on_existing == "raise":
            raise BatchExists(
                f"batch {self._batch!r} exists ({status.state}); choose another id, or on_existing='continue'"
            )
        (sealed,) = self._store.reads.field(self._batch, "sealed")
        if sealed != b"1":
            self._parts, self._written = self._store.reads.parts(self._batch), status.total
            self._rest(self._slices(self._store.reads.now(), offset=status.total))
        return self._done()

    def _done(self) -> Batch:
        batch = Batch(self._runtime, self._batch)
        if self._runtime.app.conf.task_always_eager:
            _finish_eagerly(self._runtime, batch)
        return batch

    def _slices(self, now: float, offset: int = 0) -> Iterator[Slice]:
        for piece, new in iter_slices(
            self._runtime.app, self._plan, self._runtime.settings, now=now, offset=offset, parts=self._parts
        ):
            self._parts = [*self._parts, *new]
            if len(self._parts) > _MOST_PARTS:
                raise InvalidArgument(
                    f"batch {self._batch!r} has more than {_MOST_PARTS} combinations of task, route and limits; "
                    "use fewer, or several batches"
                )
            yield piece

    def _rest(self, slices: Iterator[Slice]) -> None:
        """The slices behind the first one. A bad item in them cancels what was written."""
        try:
            with _SignOfLife(lambda: self._store.scripts.touch_producer(self._batch)):
                sealed = self._append_all(slices)
            if not sealed:
                self._publish(self._store.scripts.seal_batch(self._batch).tickets)
        except Refusal as refusal:
            if refusal.code in ("OFFSET", "SEALED"):
                raise BatchExists(
                    f"batch {self._batch!r}: another producer is writing it ({refusal.code.lower()} {refusal.detail})"
                ) from refusal
            raise
        except Exception as error:
            self._abort(error)
            raise
        except BaseException as error:
            error.add_note(
                f"batch {self._batch!r}: {self._written} items are written, and run; dispatch the same work again with "
                f"batch_id={self._batch!r} to go on where it stopped, or cancel it"
            )
            raise

    def _append_all(self, slices: Iterator[Slice]) -> bool:
        for piece in slices:
            last = self._written + piece.count == self._plan.size_hint
            appended, cancelled = self._store.scripts.append_items(
                self._batch, offset=self._written, piece=piece, parts=self._parts, seal=last
            )
            if cancelled:
                return True
            self._written += piece.count
            self._publish(appended.tickets)
            if last:
                return True
        return False

    def _abort(self, error: Exception) -> None:
        """Cancel what was written; the error says what became of it, and carries the batch's id."""
        became = "are cancelled"
        try:
            Batch(self._runtime, self._batch).cancel(
                f"dispatch aborted: {type(error).__name__}: {str(error)[:300]}", "dispatch"
            )
        except PoimenError as failed:
            error.add_note(f"batch {self._batch!r} could not be cancelled: {failed}")
            became = "are in it, and may run"
        if isinstance(error, PoimenError):
            error.batch_id = self._batch
            error.add_note(f"batch {self._batch!r}: the {self._written} items before it {became}")
            return
        raise DispatchAborted(
            f"the work of batch {self._batch!r} raised {type(error).__name__} after {self._written} items: {error}; "
            f"they {became}",
            batch_id=self._batch,
        ) from error

    def _publish(self, tickets: list[Ticket]) -> None:
        if tickets:
            self._runtime.publish(tickets, {self._batch: self._parts} if self._parts else {})


class _SignOfLife:
    """Says now and then that the producer lives, while the work itself may be slow to come."""

    _EVERY = 5.0

    def __init__(self, touch: Callable[[], None]) -> None:
        self._touch = touch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poimen-producer", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._EVERY):
            try:
                self._touch()
            except PoimenError:
                continue  # the next append tells


def _finish_eagerly(runtime: Runtime, batch: Batch) -> None:
    """Under `task_always_eager` lanes ran inside the dispatch; wait out retries and delays here.

    What is paused is left to the resume: the caller may be the one who resumes.
    """
    store = runtime.store()
    while not ((found := batch.status()).is_over or found.state is BatchState.PAUSED):
        runtime.publish(store.scripts.promote_batch(batch.id), {})
        if not batch.status().is_over:
            time.sleep(0.02)
