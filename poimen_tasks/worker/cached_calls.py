"""Plain calls of cached tasks: served from the cache, computed once, and waiting without a process.

An item of a batch is looked up where it is claimed; here are the calls that come as messages of their own (`delay`, a
native canvas) and those that run in the caller (`apply`, `task_always_eager`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore

from poimen_tasks import codec, context
from poimen_tasks.cache.leader import Leader
from poimen_tasks.cache_key import CacheKey, key_of_call
from poimen_tasks.dispatch.messages import WAITED_HEADER, waited_header
from poimen_tasks.dispatch.signatures import plain_signature
from poimen_tasks.errors import SerializationError, StoreUnavailable
from poimen_tasks.policy import CachePolicy, policy_of
from poimen_tasks.store.cache_scripts import Begun, Labels, Landed
from poimen_tasks.store.values import WaitingCall

if TYPE_CHECKING:
    from celery import Task

    from poimen_tasks.store import Store

__all__ = ["install_cache"]

log = logging.getLogger(__name__)

_ASK_FIRST, _ASK = 0.005, 0.05


def install_cache(task: Task[Any, Any], store: Callable[[], Store], publish: Callable[[Landed], None]) -> None:
    """Wrap the task's body, once; inside of what retries it. A direct call runs the body only."""
    policy = policy_of(task).cache
    if policy is None or getattr(task.run, "__poimen_cache__", False):
        return
    calls = _CachedTask(task, policy, task.run, store, publish)

    @wraps(task.run)
    def run(*args: Any, **kwargs: Any) -> Any:
        return calls.run(args, kwargs)

    run.__poimen_cache__ = True  # type: ignore[attr-defined]
    task.run = run  # type: ignore[method-assign]


class _CachedTask:
    """One cached task in this process."""

    def __init__(
        self,
        task: Any,
        policy: CachePolicy,
        body: Callable[..., Any],
        store: Callable[[], Store],
        publish: Callable[[Landed], None],
    ) -> None:
        self._task = task
        self._policy = policy
        self._body = body
        self._store = store
        self._publish = publish

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = self._task.request
        if request.called_directly:
            return self._body(*args, **kwargs)
        if _is_item(request.id):
            return self._run_item(args, kwargs)
        waited = self._begin_waited(request)
        if waited:
            (request.headers or {}).pop(WAITED_HEADER, None)  # what `replace` sends in its place has not waited
        key = key_of_call(self._policy, self._task, args, kwargs, what=f"call of {self._task.name}")
        if key is None:
            self._store().cache.count(self._task.name, "uncacheable")
            return self._body(*args, **kwargs)
        return self._run_cached(key, args, kwargs, since=0 if waited else None)

    def _run_item(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An item of a batch: its lane has looked already, but for one with a link."""
        running = context.current_item()
        filed = running and running.filed
        if not running or not filed:
            return self._body(*args, **kwargs)
        running.filed = None  # not for what the body calls
        return self._run_cached(filed[0], args, kwargs, since=None, labels=filed[1], parks=False)

    def _begin_waited(self, request: Any) -> bool:
        """True for a call that waited; a second copy of its message ends here."""
        if request.get(WAITED_HEADER) != waited_header(request.retries):
            return False
        call = context.current_call()
        if call is not None and call.begun and call.id == request.id:
            return True  # the check before it has looked
        redelivered = bool((request.delivery_info or {}).get("redelivered"))
        try:
            begins = self._store().cache.begin_call(request.id, redelivered=redelivered)
        except StoreUnavailable as error:
            log.warning("task %s begins without asking whether a copy did: %s", self._task.name, error)
            begins = True  # at least once
        if not begins:
            raise Ignore("a copy of this message has begun already")
        return True

    def _run_cached(
        self,
        key: CacheKey,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        since: int | None,
        labels: Labels | None = None,
        parks: bool = True,
    ) -> Any:
        store = self._store()
        leader = Leader(store.cache, key.digest, lease=store.settings.lease, publish=self._publish)
        labels = labels or Labels(key.activity, key.task_id, key.input_hash, key.model_id)
        call = self._waiting_call(args, kwargs) if parks else None
        try:
            begun = _ask(leader, key, since=since, call=call)
        except StoreUnavailable as error:
            log.warning("task %s runs without the cache: %s", self._task.name, error)
            return self._body(*args, **kwargs)
        if begun.how == "parked":
            raise Ignore("an equal call runs already; this one comes back with its result")
        if begun.how == "hit":
            try:
                return codec.decode(begun.value or b"")
            except SerializationError as error:
                log.warning("cache: the value of %s cannot be read, it is computed again: %s", key, error)
                store.cache.cache_invalidate(keys=[key.digest], actor="cache", reason="unreadable")
        ttl = store.settings.cache_ttl if self._policy.ttl is None else float(self._policy.ttl)
        return leader.compute(
            lambda: self._body(*args, **kwargs),
            labels,
            ttl=ttl,
            leads=begun.how == "lead",
            most=self._policy.max_bytes,
        )

    def _waiting_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WaitingCall | None:
        """This call as a message to be published again: with its id, and all that a canvas has put on it."""
        request = self._task.request
        if request.is_eager or not request.delivery_info:
            return None
        again = self._task.signature_from_request(request, args, kwargs, retries=request.retries)
        headers = {**(again.options.get("headers") or {}), WAITED_HEADER: waited_header(request.retries)}
        try:
            message = codec.encode(plain_signature(again.set(headers=headers)), what="message")
        except SerializationError as error:
            log.warning("task %s waits in its process for an equal call: %s", self._task.name, error)
            return None
        return WaitingCall(request.id, message)


def _ask(leader: Leader, key: CacheKey, *, since: int | None, call: WaitingCall | None) -> Begun:
    """Ask until there is an answer; a message waits in the store, and only a call without one waits here."""
    pause = _ASK_FIRST
    while True:
        alone = not context.may_wait_for(key.digest)
        begun = leader.begin(key.activity, since=since, alone=alone, call=call)
        if begun.how != "wait":
            return begun
        since = begun.clock
        time.sleep(pause)
        pause = min(2 * pause, _ASK)


def _is_item(message_id: str | None) -> bool:
    """True for an item of the lane in this thread: its lane has looked already."""
    running = context.current_item()
    return running is not None and message_id == f"{running.origin}.{running.position}"
