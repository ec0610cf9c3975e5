"""The cache keys of a batch's items, made where the calls are at hand: 32 bytes an item, for chunks that have any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poimen_tasks.cache_key import NO_DIGEST, key_of_call
from poimen_tasks.dispatch.chunks import Chunk
from poimen_tasks.dispatch.routing import Router
from poimen_tasks.policy import CachePolicy, policy_of
from poimen_tasks.store.chunk_blob import KIND_ARGS, KIND_SINGLE

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Digester"]


class Digester:
    """Makes the keys of one batch."""

    def __init__(self, app: Celery, router: Router) -> None:
        self._app = app
        self._router = router
        self._known: dict[int, tuple[Any, CachePolicy] | None] = {}

    def digests(self, chunk: Chunk, lo: int) -> bytes | None:
        """The keys of a chunk's items, joined, with zeros for those that have none; None when none has one.

        Args:
            chunk: the calls.
            lo: the position of the first.

        Raises:
            UncacheableArguments: an argument has no canonical form, and the task's policy does not let it run uncached.
        """
        parts = {chunk.parts} if isinstance(chunk.parts, int) else set(chunk.parts)
        if not any(self._router.parts[part].cached for part in parts):
            return None
        return b"".join(self._digest(chunk, i, lo + i) for i in range(len(chunk.calls)))

    def _digest(self, chunk: Chunk, i: int, position: int) -> bytes:
        cached = self._cached(chunk.parts if isinstance(chunk.parts, int) else chunk.parts[i])
        if cached is None:
            return NO_DIGEST
        task, policy = cached
        args, kwargs = _call(chunk, i)
        item_id = (chunk.ids[i] if chunk.ids else None) or str(position)
        said = chunk.extras[i] if chunk.extras else {}
        key = key_of_call(
            policy,
            task,
            args,
            kwargs,
            task_id=said.get("t", item_id),
            model_id=said.get("m"),
            what=f'item "{item_id}"',
        )
        # An item with a link is run, because it is the run that publishes links; it asks the cache then.
        return NO_DIGEST if key is None or said.get("cb") else key.digest

    def _cached(self, part: int) -> tuple[Any, CachePolicy] | None:
        if part not in self._known:
            task = self._app.tasks[self._router.parts[part].activity]
            policy = policy_of(task).cache
            self._known[part] = None if policy is None else (task, policy)
        return self._known[part]


def _call(chunk: Chunk, i: int) -> tuple[Any, Any]:
    call = chunk.calls[i]
    if chunk.kind == KIND_SINGLE:
        return [call], {}
    return (call, {}) if chunk.kind == KIND_ARGS else call
