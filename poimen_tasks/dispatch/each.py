"""`poimen.each`: a batch as one step of a native Celery canvas.

The step is a plain task. It dispatches the values of the step before it as a batch, and gives its place in the canvas
(message id, rest of the chain, chord, group, links) to a signature of `poimen.each.collect`, as `Task.replace` builds
it. The end of the batch publishes that signature, so while the batch runs no message and no worker slot waits for it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task, states
from celery.exceptions import Ignore, Reject

from poimen_tasks.dispatch.batch import Batch
from poimen_tasks.dispatch.canvas import Map, StarMap, is_series
from poimen_tasks.dispatch.dispatcher import dispatch
from poimen_tasks.dispatch.handover import digest, hand_over, inherited, name_of
from poimen_tasks.dispatch.options import concurrency_limit
from poimen_tasks.dispatch.registry import task_of
from poimen_tasks.dispatch.routing import PRIORITIES
from poimen_tasks.dispatch.signatures import COLLECT_TASK, EACH_TASK
from poimen_tasks.errors import (
    BatchExists,
    BatchFailed,
    BatchNotFound,
    BatchTimeout,
    InvalidArgument,
    PayloadTooLarge,
    PoimenError,
    StoreUnavailable,
    UnsupportedWork,
)
from poimen_tasks.ids import check_name

if TYPE_CHECKING:
    from celery.canvas import Signature

    from poimen_tasks.dispatch.runtime import Runtime

__all__ = ["NOT_GIVEN", "each_signature", "register_each"]

#: Values that come from the step before; None would be a value.
NOT_GIVEN: Any = object()

_MOST_BYTES = 512 << 20
"""What Redis takes as one value: the list of results is the next step's argument, and this step's stored result."""
_MOST_RETRIES = 20
_LONGEST_DELAY = 30.0


# --- the producer's side -----------------------------------------------------------------------------------------


def each_signature(
    runtime: Runtime,
    task: Any,
    values: Any,
    *,
    star: bool,
    concurrency: Any,
    queue: str | None,
    priority: str,
    workflow: str | None,
    stage: str,
    actor: str | None,
) -> Signature[Any]:
    """See `Poimen.each`."""
    if isinstance(task, dict):
        raise UnsupportedWork(f"each: arguments bound to {task.get('task')!r:.60} would be lost; give the task itself")
    options = {"task": task_of(runtime.app, task, what="each").name, "concurrency": concurrency}
    concurrency_limit(concurrency, default=1)
    if priority not in PRIORITIES:
        raise InvalidArgument(f"priority {priority!r:.60} is not allowed; use one of {', '.join(PRIORITIES)}")
    for name, value in (("queue", queue), ("workflow", workflow), ("stage", stage), ("actor", actor)):
        if value is not None:
            options[name] = check_name(value, name)
    options |= {"priority": priority, "star": bool(star)}
    defaults = {"concurrency": 0, "priority": "normal", "stage": "default", "star": False}
    said = {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}
    step: Signature[Any] = runtime.app.tasks[EACH_TASK].s(**said)
    if values is NOT_GIVEN:
        return step
    return step.clone(args=([*_checked(values, options["task"])],)).set(immutable=True)


def _checked(values: Any, task: str) -> Any:
    """The values, if they are any.

    Raises:
        UnsupportedWork: not a list, nor anything else that can be iterated.
    """
    if is_series(values):
        return values
    raise UnsupportedWork(
        f"each of {task}: expected a list of values, got {type(values).__name__} {values!r:.60}; "
        "the step before returns a list, or something else that can be iterated and is no text"
    )


# --- the worker's side -------------------------------------------------------------------------------------------


class _Step(Task):  # type: ignore[type-arg]  # the stubs' parameters do not exist at run time
    """A task whose replacement is kept instead of published."""

    abstract = True

    def on_replace(self, sig: Any) -> Any:
        """What `replace` has built: the signature that takes this task's place."""
        return sig


class _Collect(Task):  # type: ignore[type-arg]
    """A task that leaves a mark when it has gone on: a copy of its message is told by it.

    Its own state would not do: Celery keeps a message id when a canvas is applied again.
    """

    abstract = True

    def after_return(self, status: str, *_: Any) -> None:
        """The outcome is stored, and what follows is published."""
        if status in states.READY_STATES:
            # A backend that only answers the caller of a task keeps no mark; then nobody knows of copies.
            with suppress(NotImplementedError, RuntimeError):
                self.backend.store_result(_mark((self.request.args or ())[0]), None, states.SUCCESS)


def register_each(runtime: Runtime) -> None:
    """Register the step and the task that takes its place when its batch is over."""
    # Both may run again without harm, so that they do whatever the app says of late acknowledgement.
    options: dict[str, Any] = {"bind": True, "acks_late": True, "reject_on_worker_lost": True, "shared": False}

    @runtime.app.task(name=EACH_TASK, base=_Step, typing=False, **options)
    def each(step: Any, values: Any, *, task: str, **asked: Any) -> list[Any]:
        """Dispatch the values; the batch's end goes on with the canvas."""
        work = (StarMap if asked.pop("star", False) else Map)(task, _checked(values, task))
        if step.request.called_directly or step.request.is_eager:
            return _results(_dispatch(runtime, work, asked), timeout=None)
        _begin(runtime, step, work, asked)
        raise Ignore("its batch goes on with the canvas")

    @runtime.app.task(name=COLLECT_TASK, base=_Collect, typing=False, **options)
    def collect(step: Any, batch: str) -> list[Any]:
        """The results of the batch, in item order."""
        if _has_gone_on(step, batch):
            raise Ignore("it has gone on already")
        try:
            return _results(Batch(runtime, batch), timeout=0)
        except BatchTimeout:
            raise Ignore("failed items run again: the end of that round goes on") from None
        except StoreUnavailable as error:
            _again(step, error)


def _begin(runtime: Runtime, step: Any, work: Map, asked: dict[str, Any]) -> None:
    """Dispatch the step's batch; a message that comes twice finds it, and goes on where the first one stopped."""
    try:
        run = {"step": step.request.id, "root": step.request.root_id or step.request.id}
        batch = _batch_of(runtime, run)
        if not _has_gone_on(step, batch):
            asked = {**inherited(runtime, run["root"]), **asked}
            _dispatch(runtime, work, asked, batch, on_complete=hand_over(step, batch), metadata=run)
    except (StoreUnavailable, BatchExists) as error:
        _again(step, error)
    except PoimenError as error:
        # Once the batch was opened its end goes on with the canvas, and only that: a step has one outcome.
        if error.batch_id is None or not Batch(runtime, error.batch_id).status().is_over:
            raise


def _batch_of(runtime: Runtime, run: dict[str, str]) -> str:
    """The batch's id: the step's message id, unless that is taken by something else.

    Celery keeps the message id of a canvas's last task when the canvas is applied again; the root id is another then.
    """
    name = name_of(run["step"])
    try:
        own = Batch(runtime, name).metadata == run
    except BatchNotFound:
        own = True
    return name if own else f"{name[:64]}-{digest(run['root'])}"


def _dispatch(
    runtime: Runtime,
    work: Map,
    asked: dict[str, Any],
    batch: str | None = None,
    *,
    on_complete: Any = None,
    metadata: dict[str, Any] | None = None,
) -> Batch:
    return dispatch(
        runtime,
        work,
        workflow=asked.get("workflow"),
        stage=asked.get("stage", "default"),
        batch_id=batch,
        concurrency=asked.get("concurrency", 0),
        queue=asked.get("queue"),
        priority=asked.get("priority", "normal"),
        on_success=None,
        on_failure=None,
        on_complete=on_complete,
        actor=asked.get("actor"),
        metadata=metadata,
        on_existing="continue",
    )


def _results(batch: Batch, timeout: float | None) -> list[Any]:
    """The results in item order.

    Raises:
        BatchFailed: not every item succeeded.
        BatchTimeout: the batch is not over in time.
        PayloadTooLarge: they are too long for one message.
    """
    try:
        report = batch.wait(timeout, raise_on_error=True)
    except BatchFailed as failed:
        if failed.errors:
            raise
        other = next(outcome for outcome in batch.outcomes() if not outcome.ok)
        raise BatchFailed(f"{failed}; {other.item_id}: {other.error}", batch_id=batch.id) from None
    if report.size > _MOST_BYTES:
        raise PayloadTooLarge(
            f"each: the results of batch {batch.id!r} take {report.size:,} bytes, a message at most {_MOST_BYTES:,}; "
            f"return references, or let a later step read poimen.batch({batch.id!r})"
        )
    return list(report.results.values())


# --- copies of a message ------------------------------------------------------------------------------------------


def _mark(batch: str) -> str:
    """The id under which the result backend keeps that the canvas has gone on behind a batch."""
    return f"{batch}@collected"


def _has_gone_on(step: Any, batch: str) -> bool:
    """True when this message is a late copy. Without a result backend nobody knows."""
    try:
        return bool(step.backend.get_state(_mark(batch)) == states.SUCCESS)
    except NotImplementedError:
        return False


def _again(step: Any, error: Exception) -> NoReturn:
    """Try the same message again; what was done is found then."""
    delay = min(_LONGEST_DELAY, 2.0**step.request.retries)
    try:
        raise step.retry(exc=error, countdown=delay, max_retries=_MOST_RETRIES)
    except Reject:
        # The broker is away too. Celery would drop the message; the queue has it still.
        raise Reject(error, requeue=True) from error
