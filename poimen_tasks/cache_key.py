"""What a cached result is filed under: a key of four fields, and how a task's call becomes one."""

from __future__ import annotations

import hashlib
import inspect
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from poimen_tasks import codec
from poimen_tasks._checks import check_text, expected
from poimen_tasks.errors import SerializationError, UncacheableArguments
from poimen_tasks.policy import CachePolicy

__all__ = ["NO_DIGEST", "CacheKey", "key_of", "key_of_call"]

NO_DIGEST = bytes(32)
"""Stands for "not cached" where every item of a chunk has its 32 bytes."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The key of one cached result.

    Attributes:
        activity: the name of the task.
        task_id: the work served; empty where a result is shared between tasks.
        input_hash: what it was computed from, see `input_hash`.
        model_id: which model, or version of a dependency, computed it; empty for none.

    Raises:
        InvalidArgument: an attribute is not a text of 1-256 printable characters (all but the activity may be empty).
    """

    activity: str
    task_id: str = ""
    input_hash: str = ""
    model_id: str = ""

    def __post_init__(self) -> None:
        """Check every attribute."""
        check_text("CacheKey.activity", self.activity)
        for name in ("task_id", "input_hash", "model_id"):
            value = getattr(self, name)
            if value != "" or not isinstance(value, str):
                check_text(f"CacheKey.{name}", value)

    @property
    def digest(self) -> bytes:
        """The sha256 of the four fields, each behind its length, so that no two keys run into one another."""
        fields = [field.encode() for field in (self.activity, self.task_id, self.input_hash, self.model_id)]
        return hashlib.sha256(b"".join(struct.pack(">I", len(field)) + field for field in fields)).digest()

    def __str__(self) -> str:
        """All four fields, in their order; `-` where one is empty."""
        return ":".join(field or "-" for field in (self.activity, self.task_id, self.input_hash, self.model_id))

    def to_dict(self) -> dict[str, str]:
        """Plain values."""
        return {
            "activity": self.activity,
            "task_id": self.task_id,
            "input_hash": self.input_hash,
            "model_id": self.model_id,
        }


def key_of_call(
    policy: CachePolicy,
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    task_id: str | None = None,
    model_id: str | None = None,
    what: str = "call",
) -> CacheKey | None:
    """The key of a call of a cached task; None when it cannot have one and its policy lets it run uncached.

    Arguments are bound to the task's parameters with defaults filled in, so that the same call spelled in another way
    is the same call; or they are what `CachePolicy.key` makes of them. The policy's version is part of the hash.

    Args:
        policy: the task's.
        task: the Celery task.
        args: positional arguments.
        kwargs: keyword arguments.
        task_id: the item's; part of the key only with `per_task`.
        model_id: the item's; else the policy's.
        what: names the call in an error.

    Raises:
        UncacheableArguments: an argument has no canonical form, or the key function raised.
    """
    value = _bound(task, args, kwargs) if policy.key is None else _by_function(policy, task, args, kwargs, what)
    try:
        hashed = codec.input_hash([policy.version, value], what=f"{what}: cached arguments")
    except SerializationError as error:
        if policy.on_uncacheable == "run":
            return None
        raise UncacheableArguments(
            f"{error}; give CachePolicy(key=...), or on_uncacheable='run' to run such calls uncached"
        ) from None
    return CacheKey(task.name, (task_id or "") if policy.per_task else "", hashed, model_id or policy.model_id or "")


def _by_function(policy: CachePolicy, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> Any:
    assert policy.key is not None  # noqa: S101 - the caller looked
    try:
        return policy.key(*args, **kwargs)
    except Exception as error:
        raise UncacheableArguments(
            f"{what}: the key function of task {task.name} raised {type(error).__name__}: {error}"
        ) from error


def _bound(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The arguments by parameter. A call that does not fit stays as it was spelled: running it tells."""
    signature = _signature(task.run)
    if signature is None:
        return [list(args), dict(kwargs)]
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return [list(args), dict(kwargs)]
    bound.apply_defaults()
    return bound.arguments


@lru_cache(maxsize=1024)
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def key_of(value: object) -> CacheKey:
    """A key, checked.

    Raises:
        InvalidArgument: not a `CacheKey`.
    """
    if not isinstance(value, CacheKey):
        raise expected("cache key", "a CacheKey", value)
    return value
