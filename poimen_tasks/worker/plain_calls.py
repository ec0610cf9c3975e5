"""Plain messages of tasks ask before they start: each is registered while it runs, or parked while a pause covers it.

The check stands before the task's tracer, so a parked call has run no hook and sent no signal, and its message is
acknowledged. It comes back as the same message, see `dispatch.messages`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.app.task import Context
from kombu.exceptions import EncodeError

from poimen_tasks import context
from poimen_tasks.dispatch.messages import (
    BATCH_HEADER,
    PARKED_HEADER,
    WAITED_HEADER,
    WORKFLOW_HEADER,
    groups_of,
    pack_message,
    returned_key,
    waited_header,
)
from poimen_tasks.errors import LayoutMismatch, PoimenError, SettingsError, StoreRefused, StoreUnavailable
from poimen_tasks.store.call_scripts import PlainCall
from poimen_tasks.worker.celery_compat.plain_tracer import ignored
from poimen_tasks.worker.group_keys import refresh_period

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.store import Store

__all__ = ["PAUSED_STATE", "PlainCalls"]

log = logging.getLogger(__name__)

#: Half of a character, which no store takes; nothing that can be paused is called so.
_HALF = re.compile("[\ud800-\udfff]").search

#: The state of a parked call in the result backend.
PAUSED_STATE = "PAUSED"

# While the store is away, calls spend at most a tenth of their time on asking for it, and one a second asks at least.
_ASK_AGAIN, _ASK_SHARE = 1.0, 10


class PlainCalls:
    """The check of one worker process."""

    def __init__(self, app: Celery, store: Callable[[], Store], hostname: Callable[[], str]) -> None:
        self._app = app
        self._store = store
        self._hostname = hostname
        self._on: bool | None = None
        self._away = False
        self._not_before = 0.0
        self._queues: dict[tuple[str, str], str] = {}
        self._runner = (0, "")

    def wrap(self, task: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
        """A tracer that asks first."""

        def checked(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
            if not request or not self._asks(request):
                return tracer(uuid, args, kwargs, request)
            call = self._call_of(task.name, uuid, request)
            refusal = self._begin(task, call, request)
            if refusal:
                return ignored(refusal)
            # What the body sends in its own place, `replace` for one, takes over its id and headers, and is no copy.
            request.pop(PARKED_HEADER, None)
            before = context.enter_call(context.RunningCall(uuid, call.workflow, call.batch, begun=not self._away))
            try:
                return tracer(uuid, args, kwargs, request)
            finally:
                context.enter_call(before)
                self._store().calls.end_call(call.field)

        return checked

    def reset(self) -> None:
        """Another process, or other settings."""
        self._on, self._away, self._not_before = None, False, 0.0
        self._queues.clear()

    def _asks(self, request: Mapping[str, Any]) -> bool:
        if self._on is None:
            try:
                self._on = self._store().settings.pause_plain_calls
            except SettingsError:
                return False  # the worker has said that it knows no Redis
        # One that was parked, by a worker with other settings, is known to have begun again only when that is said.
        return self._on or PARKED_HEADER in request

    def _call_of(self, activity: str, uuid: str, request: Mapping[str, Any]) -> PlainCall:
        delivery = request.get("delivery_info") or {}
        pid = os.getpid()
        if self._runner[0] != pid:
            self._runner = (pid, f"{self._hostname()}\t{pid}")
        return PlainCall(
            uuid,
            self._runner[1],
            activity,
            self._queue(delivery.get("exchange") or "", delivery.get("routing_key") or ""),
            _text(request.get(WORKFLOW_HEADER)),
            _text(request.get(BATCH_HEADER)),
            bool(delivery.get("redelivered")),
            returned_key(request),
            request.get(WAITED_HEADER) == waited_header(request.get("retries")),
        )

    def _queue(self, exchange: str, routing_key: str) -> str:
        """The name of the queue that a message came through."""
        if not exchange:
            return routing_key
        known = self._queues.get((exchange, routing_key))
        if known is None:
            known = self._queues[exchange, routing_key] = self._bound_queue(exchange, routing_key)
        return known

    def _bound_queue(self, exchange: str, routing_key: str) -> str:
        queues: Any = self._app.amqp.queues.consume_from.values()
        bound = [queue for queue in queues if queue.exchange is not None and queue.exchange.name == exchange]
        exact = [queue for queue in bound if queue.routing_key == routing_key]
        found = exact or bound
        return str(found[0].name) if found else routing_key

    # -- the question ------------------------------------------------------------------------------------------------

    def _begin(self, task: Any, call: PlainCall, request: dict[str, Any]) -> str:
        """Returns "" when it begins, else why not."""
        if self._away and monotonic() < self._not_before:
            return ""
        asked = monotonic()
        try:
            refusal = self._ask(task, call, request)
        except (StoreUnavailable, StoreRefused, LayoutMismatch) as error:
            self._store_is_away(error, since=asked)
            return ""
        except (PoimenError, EncodeError):
            log.exception("task %s[%s] begins without asking whether it is paused", call.activity, call.id)
            return ""
        self._away = False
        return refusal

    def _store_is_away(self, error: PoimenError, *, since: float) -> None:
        """Plain tasks do not need the store: they go on, and may run while a pause covers them (at least once)."""
        now = monotonic()
        if self._away:
            self._not_before = now + min(_ASK_AGAIN, _ASK_SHARE * (now - since))
        else:
            self._away = True
            log.warning("plain tasks begin without asking whether they are paused: %s", error)

    def _ask(self, task: Any, call: PlainCall, request: dict[str, Any]) -> str:
        scripts, scope, how, told = self._store().calls, "", "message", call.returned is not None
        if call.returned is not None or call.waited or call.redelivered:
            how, scope = scripts.park_call(call)
        else:
            # The first that misses the store waits for it as everything does, those behind it do not.
            scope = scripts.start_call(call, patience=0.0 if self._away else None)
            if not scope:
                return ""
        if how == "message":
            # Before it is parked: once it is, another worker may have run it before this one says so.
            self._tell(task, request, {"scope": scope}, PAUSED_STATE)
            told = True
            groups = groups_of(request)
            keep = refresh_period(self._app) if groups else 0.0
            how, scope = scripts.park_call(call, pack_message(request), groups=groups, keep=keep)
        if how == "refused":
            log.info("Task %s[%s] refused: a copy of this message has begun already", call.activity, call.id)
            return "a copy of this message has begun already"
        if how == "revoked":
            return self._end_revoked(task, request)
        if how == "parked":
            log.info("Task %s[%s] paused: %s", call.activity, call.id, scope)
            return f"paused: {scope}"
        if told:
            self._tell(task, request, None, "PENDING")
        return ""

    @staticmethod
    def _end_revoked(task: Any, request: dict[str, Any]) -> str:
        """It was revoked while it was parked, perhaps under workers that are gone: it ends as Celery ends it."""
        log.info("Discarding revoked task: %s[%s]", task.name, request["id"])
        stands = Context(request)
        stored = not task.ignore_result or task.store_errors_even_if_ignored
        try:
            task.backend.mark_as_revoked(request["id"], "revoked", request=stands, store_result=stored)
            task.backend.process_cleanup()
        except Exception as error:  # noqa: BLE001 - every backend has errors of its own
            log.warning("task %s[%s]: that it was revoked could not be stored: %s", task.name, request["id"], error)
        signals.task_revoked.send(sender=task, request=stands, terminated=False, signum=None, expired=False)
        return "revoked while it was parked"

    @staticmethod
    def _tell(task: Any, request: dict[str, Any], result: Any, state: str) -> None:
        ignores = request.get("ignore_result")
        if task.ignore_result if ignores is None else ignores:
            return
        try:
            task.backend.store_result(request["id"], result, state, request=Context(request))
            task.backend.process_cleanup()
        except Exception as error:  # noqa: BLE001 - every backend has errors of its own
            log.warning("task %s[%s]: its state %s could not be stored: %s", task.name, request["id"], state, error)


def _text(value: Any) -> str:
    return value if isinstance(value, str) and not _HALF(value) else ""
