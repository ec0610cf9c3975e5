"""Runs one item after another of an activity with Celery's tracer, and says how each ended."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Ignore, NotRegistered, Reject, SoftTimeLimitExceeded, TimeLimitExceeded
from celery.utils.time import maybe_make_aware

from poimen_tasks import codec
from poimen_tasks.errors import Paused, SerializationError
from poimen_tasks.store.values import Part
from poimen_tasks.worker.celery_compat.capture import Capture
from poimen_tasks.worker.celery_compat.item_tracer import build_item_tracer
from poimen_tasks.worker.failures import described
from poimen_tasks.worker.limits import Timer
from poimen_tasks.worker.report import CANCELLED, FAILED, SKIPPED, SUCCEEDED

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Activity", "Ended", "Retry", "Stopped", "Struck"]

_REJECT_RETRIES = 3
_LONGEST_DELAY = 10 * 365 * 86400.0


class Retry:
    """The item asks for another attempt after `delay` seconds; `call` is its encoded new call, or None for the same."""

    __slots__ = ("call", "delay")

    def __init__(self, delay: float, call: bytes | None = None) -> None:
        self.delay = delay
        self.call = call


class Stopped:
    """The item stopped because it is paused: it goes back, and this attempt does not count."""

    __slots__ = ()
    fatal: BaseException | None = None


class Struck(Stopped):
    """The same of one whose process was told to end while its worker leaves; its lane ends with it."""

    __slots__ = ("fatal",)

    def __init__(self, fatal: BaseException) -> None:
        self.fatal = fatal


class Ended:
    """How an item ended: status number, result as the wire takes it, error; and whether its lane must end too."""

    __slots__ = ("error", "fatal", "result", "status")

    def __init__(
        self,
        status: int,
        result: Any = None,
        error: tuple[str, str, str] | None = None,
        fatal: BaseException | None = None,
    ) -> None:
        self.status = status
        self.result = result
        self.error = error
        self.fatal = fatal


class Activity:
    """One partition's task in this process: its tracer, its limits, its request.

    `trace` is what the dispatch said about the trace it is part of: as headers of a message, where OpenTelemetry looks
    among the request's attributes and Sentry among its headers.
    """

    def __init__(
        self,
        app: Celery,
        part: Part,
        *,
        hostname: str,
        capture: Capture,
        timer: Timer | None,
        tracers: dict[str, Any],
        trace: Mapping[str, str] | None = None,
    ) -> None:
        self.name = part.activity
        self._app = app
        self._trace = trace or {}
        self.part = part
        self._capture = capture
        self._timer = timer if part.time_limit or part.soft_time_limit else None
        self.task = app.tasks.get(part.activity)
        self._tracer = tracers.get(part.activity)
        if self._tracer is None and self.task is not None:
            self._tracer = tracers[part.activity] = build_item_tracer(app, self.task, hostname)
        self.request: dict[str, Any] = {
            **self._trace,
            "is_eager": False,
            "hostname": hostname,
            "task": part.activity,
            "delivery_info": {
                "exchange": part.exchange,
                "routing_key": part.routing_key,
                "priority": part.priority,
                "redelivered": False,
            },
            "timelimit": [part.time_limit, part.soft_time_limit],
            # Each item's own; here for their place, since a copy that grows costs more than one that is filled.
            **dict.fromkeys(("id", "root_id", "correlation_id", "retries", "headers")),
        }

    def run(
        self, message_id: str, args: list[Any], kwargs: dict[str, Any], attempt: int, more: dict[str, Any] | None
    ) -> Any:
        """Run an item. Returns None for a success (its result is in the capture), `Ended`, `Retry` or `Stopped`."""
        if self._tracer is None:
            return Ended(FAILED, error=(NotRegistered.__name__, f"{self.name}: this worker knows no such task", ""))
        capture = self._capture
        capture.reset(message_id)
        request = {
            **self.request,
            "id": message_id,
            "root_id": message_id,
            "correlation_id": message_id,
            "retries": attempt - 1,
            "headers": {**self._trace},  # each item's own: bodies and integrations change it
        }
        if more:
            request |= more
        try:
            # Called here where nothing is timed: the common case costs one call less.
            info = (
                self._tracer(message_id, args, kwargs, request)[1]
                if self._timer is None
                else self._run_timed(self._timer, message_id, args, kwargs, request)
            )
        except Reject as reject:
            info = reject
        except BaseException as error:  # noqa: BLE001 - what the tracer lets out ends this item
            return self._escaped(error, attempt)
        finally:
            capture.message_id = None
        if self._timer is not None and self._timer.exceeded:
            return Ended(FAILED, error=("TimeLimitExceeded", f"hard limit of {self.part.time_limit} s", ""))
        if capture.retry is None and capture.state == states.SUCCESS:
            return None
        return self._judge(info, attempt)

    def _run_timed(
        self, timer: Timer, message_id: str, args: list[Any], kwargs: dict[str, Any], request: dict[str, Any]
    ) -> Any:
        """Run with the limits armed. The signal may come while the timer is being stopped: still this item's matter."""
        assert self._tracer is not None  # noqa: S101 - the caller looked
        info: Any = None
        try:
            try:
                timer.arm(self.part.soft_time_limit, self.part.time_limit)
                info = self._tracer(message_id, args, kwargs, request)[1]
            finally:
                timer.disarm()
        except (SoftTimeLimitExceeded, TimeLimitExceeded):
            timer.disarm()
            if self._capture.state is None and self._capture.retry is None:
                raise
        return info

    def _escaped(self, error: BaseException, attempt: int) -> Ended | Retry:
        """What came out of the tracer fails its item, unless a hook raised it when the item was settled.

        One that is no `Exception`, as of `sys.exit()`, ends the lane too.
        """
        capture, fatal = self._capture, None if isinstance(error, Exception) else error
        if capture.retry is not None and fatal is None:
            return self._kept_retry(attempt)
        if capture.state == states.SUCCESS:
            return Ended(SUCCEEDED, capture.result, fatal=fatal)
        failure = capture.error if capture.state == states.FAILURE and capture.error is not None else described(error)
        return Ended(FAILED, error=failure, fatal=fatal)

    def _judge(self, info: Any, attempt: int) -> Ended | Retry | Stopped:
        capture = self._capture
        if capture.retry is not None:
            return self._kept_retry(attempt)
        if capture.error is not None and capture.error[0] == Paused.__name__:
            return Stopped()  # where Celery's tracer is hidden by a wrapper
        if capture.state == states.FAILURE and capture.error is not None:
            return Ended(CANCELLED if capture.error[0] == "Cancelled" else FAILED, error=capture.error)
        return self._judge_predicate(info, attempt)

    def _judge_predicate(self, info: Any, attempt: int) -> Ended | Retry | Stopped:
        """What the body raised instead of an error: Reject, Ignore, or something that a batch does not know."""
        predicate: Any = getattr(info, "retval", info)
        if isinstance(predicate, Paused):
            return Stopped()
        if isinstance(predicate, Reject):
            rejected: Any = predicate
            if rejected.requeue and attempt <= _REJECT_RETRIES:
                return Retry(min(60.0, 2.0**attempt) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            return Ended(FAILED, error=("Reject", str(rejected.reason or rejected), ""))
        if isinstance(predicate, Ignore):
            return Ended(SKIPPED, error=("Ignore", str(predicate), ""))
        if self._capture.state == states.SUCCESS:
            return Ended(SUCCEEDED, self._capture.result)
        return Ended(
            FAILED, error=("PoimenError", f"the task ended in a state that a batch does not know: {info!r:.200}", "")
        )

    def _kept_retry(self, attempt: int) -> Ended | Retry:
        """A retry that `self.retry` asked for: its delay, and its call when that changed."""
        kept = self._capture.retry
        assert kept is not None  # noqa: S101 - the caller looked
        delay = self._delay(kept.options)
        if delay is None:
            asked = {name: kept.options[name] for name in ("countdown", "eta") if kept.options.get(name) is not None}
            return Ended(FAILED, error=("InvalidArgument", f"{self.name}: retry({asked!r:.200}) is no time", ""))
        if kept.args is None and kept.kwargs is None:
            return Retry(delay)
        try:
            return Retry(
                delay,
                codec.encode(
                    [list(kept.args or ()), dict(kept.kwargs or {})],
                    what=f"{self.name}: arguments of attempt {attempt + 1}",
                ),
            )
        except SerializationError as error:
            return Ended(FAILED, error=("SerializationError", str(error), ""))

    def _delay(self, options: Mapping[str, Any]) -> float | None:
        """Seconds until the next attempt, read as Celery reads `eta` and `countdown`; None when they are no time."""
        eta, countdown = options.get("eta"), options.get("countdown")
        try:
            if eta:
                moment = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
                delay = (maybe_make_aware(moment, self._app.timezone) - datetime.now(UTC)).total_seconds()
            else:
                delay = float(countdown or 0.0)
        except (AttributeError, TypeError, ValueError):
            return None
        return max(0.0, delay) if delay < _LONGEST_DELAY else None
