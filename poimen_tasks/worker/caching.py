"""Items whose results are cached: what a lane knows of their keys, and what it reports to be kept."""

from __future__ import annotations

from typing import Any, NamedTuple

from poimen_tasks import codec
from poimen_tasks.cache_key import NO_DIGEST, CacheKey, key_of_call
from poimen_tasks.errors import PoimenError
from poimen_tasks.policy import CachePolicy, policy_of
from poimen_tasks.settings import Settings
from poimen_tasks.store.cache_scripts import Labels

__all__ = ["CachedActivity", "Kept"]


class Kept(NamedTuple):
    """One result to be kept: the item's position, its labels, `ttl` and `seconds`, and its encoded value."""

    position: int
    labels: Labels
    ttl: float
    seconds: float
    most: int | None
    value: bytes

    def pack(self) -> list[Any]:
        """As a script takes it, but for the value."""
        return [self.position, self.labels.pack(), self.ttl, self.seconds, self.most]


class CachedActivity:
    """One partition whose results are cached, in this process."""

    def __init__(self, task: Any, policy: CachePolicy, settings: Settings) -> None:
        self._task = task
        self._policy = policy
        self._ttl = settings.cache_ttl if policy.ttl is None else float(policy.ttl)

    @classmethod
    def of(cls, task: Any, settings: Settings) -> CachedActivity | None:
        """None when this process's task has no cache policy: its code is another than the dispatcher's."""
        policy = None if task is None else policy_of(task).cache
        return None if policy is None else cls(task, policy, settings)

    def labels(self, digest: bytes, args: Any, kwargs: Any, *, item_id: str, extras: dict[str, Any]) -> Labels | None:
        """What the result is filed under; made before the body runs, which may change its arguments.

        None when it must not be kept: the item leads no computation, or this process's code files the call under
        another key, because it is of another version.
        """
        if digest == NO_DIGEST:
            return None
        filed = self.filed(args, kwargs, item_id=item_id, extras=extras)
        if filed is None or filed[0].digest != digest:
            return None
        return filed[1]

    def filed(self, args: Any, kwargs: Any, *, item_id: str, extras: dict[str, Any]) -> tuple[CacheKey, Labels] | None:
        """Key and labels of an item's call; None when it has no key."""
        task_id = extras.get("t", item_id)
        try:
            key = key_of_call(
                self._policy,
                self._task,
                args,
                kwargs,
                task_id=task_id,
                model_id=extras.get("m"),
                what="item",
            )
        except PoimenError:
            return None
        if key is None:
            return None
        tags = tuple(extras.get("g") or ())
        labels = Labels(key.activity, task_id, key.input_hash, key.model_id, tags, key_task=key.task_id)
        return key, labels

    def kept(self, position: int, labels: Labels, result: Any, seconds: float) -> Kept:
        """A result as it is reported; `result` is what `pack_result` made of it."""
        value = bytes(result) if isinstance(result, bytes) else codec.encode(result)
        return Kept(position, labels, self._ttl, seconds, self._policy.max_bytes, codec.compress(value))
