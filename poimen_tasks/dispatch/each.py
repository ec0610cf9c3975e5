"""`poimen.each`: a batch as one step of a native Celery canvas.

The step is a plain task. It dispatches the values of the step before it as a batch, and gives its place in the canvas
(message id, rest of the chain, chord, group, links) to a signature of `poimen.each.collect`, as `Task.replace` builds
it. The end of the batch publishes that signature, so while the batch runs no message and no worker slot waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task, states
from celery.exceptions import Ignore

from poimen_tasks import codec
from poimen_tasks.dispatch.batch import Batch
from poimen_tasks.dispatch.canvas import Map, StarMap, is_series
from poimen_tasks.dispatch.collecting import refuse_collected, settle_collected
from poimen_tasks.dispatch.copies import claim_going_on, has_gone_on, put_off, settle_going_on
from poimen_tasks.dispatch.dispatcher import dispatch
from poimen_tasks.dispatch.handover import digest, hand_over, inherited, name_of
from poimen_tasks.dispatch.options import concurrency_limit
from poimen_tasks.dispatch.registry import task_of
from poimen_tasks.dispatch.routing import PRIORITIES
from poimen_tasks.dispatch.signatures import COLLECT_TASK, EACH_TASK
from poimen_tasks.errors import (
    BatchExists,
    BatchFailed,
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
    """A task that leaves a mark when the canvas has gone on: in the result backend, and with the batch."""

    abstract = True
    runtime: Runtime

    def after_return(self, status: str, *_: Any) -> None:
        """The outcome is stored, and what follows is published."""
        if status in states.READY_STATES:
            (batch,) = self.request.args or ()
            settle_going_on(self, batch)
            settle_collected(self.runtime, batch)


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

    @runtime.app.task(name=COLLECT_TASK, base=_Collect, runtime=runtime, typing=False, **options)
    def collect(step: Any, batch: str) -> list[Any]:
        """The results of the batch, in item order."""
        try:
            refuse_collected(runtime, step, batch)
            results = _results(Batch(runtime, batch), timeout=0)
        except BatchTimeout:
            raise Ignore("failed items run again: the end of that round goes on") from None
        except StoreUnavailable as error:
            put_off(step, error)
        except PoimenError:
            _go_on(runtime, step, batch)
            raise
        _go_on(runtime, step, batch)
        return results


def _go_on(runtime: Runtime, step: Any, batch: str) -> None:
    """One copy of the message does."""
    try:
        claim_going_on(step, batch, lambda patience: runtime.store().calls.claim_collect(batch, patience=patience))
    except StoreUnavailable as error:
        put_off(step, error)


def _begin(runtime: Runtime, step: Any, work: Map, asked: dict[str, Any]) -> None:
    """Dispatch the step's batch; a message that comes twice finds it, and goes on where the first one stopped."""
    run = {"step": step.request.id, "root": step.request.root_id or step.request.id}
    try:
        batch, existing = _batch_of(runtime, run)
        if existing == "raise" and has_gone_on(step, batch):
            return  # a copy so late that the batch is not kept any more
        asked = {**inherited(runtime, run["root"]), **asked}
        _dispatch(runtime, work, asked, batch, on_complete=hand_over(step, batch), metadata=run, on_existing=existing)
    except PoimenError as error:
        if error.batch_id is None and not isinstance(error, StoreUnavailable | BatchExists):
            raise
        # Once the batch was opened its end goes on with the canvas, and only that: a step has one outcome. A later run
        # of this message finds the batch sealed, or goes on writing it.
        put_off(step, error)


def _batch_of(runtime: Runtime, run: dict[str, str]) -> tuple[str, str]:
    """The batch's id, and what to do when it exists: the step's message id, unless that is taken by something else.

    Celery keeps the message id of a canvas's last task when the canvas is applied again; the root id is another then.
    """
    name = name_of(run["step"])
    for batch in (name, other := f"{name[:64]}-{digest(run['root'])}"):
        (data,) = runtime.store().reads.field(batch, "metadata")
        if data is None:
            return batch, "raise"
        if codec.decode(data) == run:
            return batch, "continue"
    return other, "raise"


def _dispatch(
    runtime: Runtime,
    work: Map,
    asked: dict[str, Any],
    batch: str | None = None,
    *,
    on_complete: Any = None,
    metadata: dict[str, Any] | None = None,
    on_existing: str = "continue",
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
        on_existing=on_existing,
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
