"""How a task wants to be run: retries, caching, claim size. No app, no Redis, no Celery.

A policy is an attribute (`__poimen_policy__`) on whatever `policy` decorates, so it can stand under any Celery
decorator, where it marks the function, and above one, where it marks the task.
"""

from __future__ import annotations

import random as _random
from dataclasses import dataclass, fields, replace
from inspect import getclosurevars
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from poimen_tasks._checks import (
    MOST_SECONDS,
    check_classes,
    check_count,
    check_flag,
    check_number,
    check_text,
    expected,
)
from poimen_tasks.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CachePolicy", "Policy", "RetryCount", "RetryPolicy", "policy", "policy_of"]

T = TypeVar("T")
_ATTRIBUTE = "__poimen_policy__"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which failures are worth another attempt, and how long to wait before it.

    The wait grows exponentially and is drawn at random from its upper half, so that many items that failed together do
    not come back together (a mild form of the jitter in the AWS Builders' Library).

    Attributes:
        max_attempts: runs of the body in all, the first included.
        initial: seconds before the second attempt, before jitter.
        factor: growth of the wait from one attempt to the next.
        maximum: most seconds between two attempts.
        jitter: draw the wait from its upper half; False waits exactly.
        retry_on: exception classes worth another attempt.
        never_on: exception classes that are not, though `retry_on` covers them.
        max_lost: how many workers may die under an item that runs alone before it fails as `WorkerLost`.

    Raises:
        InvalidArgument: an attribute is out of its range.
    """

    max_attempts: int = 3
    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 60.0
    jitter: bool = True
    retry_on: tuple[type[Exception], ...] = (Exception,)
    never_on: tuple[type[Exception], ...] = ()
    max_lost: int = 3

    def __post_init__(self) -> None:
        """Check every attribute; a single class or a list of them becomes a tuple."""
        check_count("RetryPolicy.max_attempts", self.max_attempts)
        check_count("RetryPolicy.max_lost", self.max_lost)
        check_number("RetryPolicy.initial", self.initial, least=0)
        check_number("RetryPolicy.factor", self.factor, least=1)
        check_number("RetryPolicy.maximum", self.maximum, least=self.initial)
        check_flag("RetryPolicy.jitter", self.jitter)
        object.__setattr__(self, "retry_on", check_classes("RetryPolicy.retry_on", self.retry_on))
        object.__setattr__(self, "never_on", check_classes("RetryPolicy.never_on", self.never_on))

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> float:
        """Seconds to wait after attempt number `attempt` failed (the first is 1).

        Args:
            attempt: the attempt that failed.
            random: gives a number from 0 to 1.

        Raises:
            InvalidArgument: the attempt is not a whole number from 1.
        """
        check_count("attempt", attempt)
        try:
            wait = min(self.maximum, self.initial * self.factor ** (attempt - 1))
        except OverflowError:
            wait = self.maximum if self.initial else 0.0
        return wait * (0.5 + 0.5 * random()) if self.jitter else float(wait)

    def should_retry(self, exc: BaseException, attempt: int) -> bool:
        """Whether another attempt follows when attempt number `attempt` (the first is 1) ended with `exc`.

        `Cancelled` is never retried: the item was asked to stop.

        Raises:
            InvalidArgument: the attempt is not a whole number from 1.
        """
        check_count("attempt", attempt)
        retryable = isinstance(exc, self.retry_on) and not isinstance(exc, (Cancelled, *self.never_on))
        return retryable and attempt < self.max_attempts

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; classes by their full names."""
        return _fields(self) | {"retry_on": _names(self.retry_on), "never_on": _names(self.never_on)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How the results of a task are cached.

    Attributes:
        ttl: seconds that a result is served; 0 is for ever, None the setting `cache_ttl`.
        version: part of the key; change it when the code computes something else.
        key: called with the call's arguments, returns what the key is made of instead of them.
        model_id: part of the key: which model (or version of a dependency) computes.
        per_task: make the task id part of the key, so that no two tasks share a result.
        max_bytes: larger results are not cached; None is no limit but the cache's own.
        on_uncacheable: a call whose arguments have no canonical form (NaN among them) is refused (`raise`), or runs
            uncached and is counted (`run`).

    Raises:
        InvalidArgument: an attribute is out of its range.
    """

    ttl: float | None = None
    version: str = "1"
    key: Callable[..., Any] | None = None
    model_id: str | None = None
    per_task: bool = False
    max_bytes: int | None = None
    on_uncacheable: Literal["raise", "run"] = "raise"

    def __post_init__(self) -> None:
        """Check every attribute."""
        if self.ttl is not None:
            check_number("CachePolicy.ttl", self.ttl, least=0, most=MOST_SECONDS)
        if self.max_bytes is not None:
            check_count("CachePolicy.max_bytes", self.max_bytes)
        check_text("CachePolicy.version", self.version)
        if self.model_id is not None:
            check_text("CachePolicy.model_id", self.model_id)
        if self.key is not None and not callable(self.key):
            raise expected("CachePolicy.key", "a callable or None", self.key)
        check_flag("CachePolicy.per_task", self.per_task)
        if self.on_uncacheable not in ("raise", "run"):
            raise expected("CachePolicy.on_uncacheable", "raise or run", self.on_uncacheable)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the key function by its full name."""
        return _fields(self) | {"key": None if self.key is None else _name(self.key)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What `policy` attached to a task; None means that nothing was said.

    Attributes:
        cache: how results are cached; None: they are not.
        retry: which failures are retried; None: only those that the task retries itself.
        prefetch: most items that a lane claims at once; None: as the task's durations suggest.
    """

    cache: CachePolicy | None = None
    retry: RetryPolicy | None = None
    prefetch: int | None = None

    def over(self, other: Policy) -> Policy:
        """This policy, with what it does not say taken from another."""
        return Policy(
            cache=self.cache or other.cache, retry=self.retry or other.retry, prefetch=self.prefetch or other.prefetch
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "cache": self.cache and self.cache.to_dict(),
            "retry": self.retry and self.retry.to_dict(),
            "prefetch": self.prefetch,
        }


def policy(
    *, cache: CachePolicy | bool | None = None, retry: RetryPolicy | None = None, prefetch: int | None = None
) -> Callable[[T], T]:
    """Say how a task is run; a decorator that returns the very object it decorates.

    Several add up; where two speak of the same thing, the outer one holds.

    Args:
        cache: True for the defaults of `CachePolicy`; False or None: not cached.
        retry: None: one attempt, plus what `autoretry_for` and `self.retry` ask for.
        prefetch: most items that a lane claims at once; 1 for long or uneven tasks.

    Raises:
        InvalidArgument: an argument is of the wrong type or out of its range.
    """
    if not (cache is None or isinstance(cache, (bool, CachePolicy))):
        raise expected("policy(cache=)", "True, None or a CachePolicy", cache)
    if not (retry is None or isinstance(retry, RetryPolicy)):
        raise expected("policy(retry=)", "None or a RetryPolicy", retry)
    if prefetch is not None:
        check_count("policy(prefetch=)", prefetch)
    if isinstance(cache, bool):
        cache = CachePolicy() if cache else None
    said = Policy(cache=cache, retry=retry, prefetch=prefetch)

    def decorate(target: T) -> T:
        _attach(target, said)
        return target

    return decorate


def policy_of(task: Any) -> Policy:
    """What was said about a task: on it, on its `run`, on what that wraps, and on its class, the nearest first.

    Args:
        task: a Celery task, a proxy of one, a task class or a plain function.

    Returns:
        The policies found, added up; `Policy()` when there is none.
    """
    found = Policy()
    for said in _said_about(task):
        if isinstance(said, Policy):
            found = found.over(said)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryCount:
    """How often something was retried, and how often it may be.

    Attributes:
        current: retries so far.
        maximum: most retries.

    Raises:
        InvalidArgument: `current` is not from 0 to `maximum`.
    """

    current: int = 0
    maximum: int = 3

    def __post_init__(self) -> None:
        """Check both numbers."""
        check_count("RetryCount.maximum", self.maximum, least=0)
        check_count("RetryCount.current", self.current, least=0)
        if self.current > self.maximum:
            raise expected("RetryCount.current", f"at most the maximum, {self.maximum}", self.current)

    @property
    def can_retry(self) -> bool:
        """True when one more retry is allowed."""
        return self.current < self.maximum

    def increment(self) -> RetryCount:
        """One retry more.

        Raises:
            InvalidArgument: the maximum is reached.
        """
        return replace(self, current=self.current + 1)

    def to_dict(self) -> dict[str, int]:
        """Plain values, ready for JSON."""
        return {"current": self.current, "maximum": self.maximum}


def _attach(target: Any, said: Policy) -> None:
    """Mark a function, class or task; a lazy task of Celery once it is made, because touching it would make it now."""
    then = getattr(type(target), "__then__", None)
    if then is None:
        _mark(_function_behind(target), said)
    else:
        then(target, _mark, target, said)


def _mark(target: Any, said: Policy) -> None:
    before = getattr(target, _ATTRIBUTE, None)
    try:
        setattr(target, _ATTRIBUTE, said.over(before) if isinstance(before, Policy) else said)
    except (AttributeError, TypeError):
        raise expected("policy", "a function, class or task that takes attributes", target) from None


def _function_behind(target: Any) -> Any:
    """The function of a `shared_task`, whose proxy would finalise the current app when touched; else the target."""
    if type(target).__module__ != "celery.local":
        return target
    try:
        return getclosurevars(object.__getattribute__(target, "_Proxy__local")).nonlocals["fun"]
    except (AttributeError, TypeError, KeyError):
        return target  # another Celery: touching the proxy is early, but right


def _said_about(task: Any) -> Iterator[Any]:
    yield getattr(task, "__dict__", {}).get(_ATTRIBUTE)
    for layer in _layers(getattr(task, "run", task)):
        yield getattr(layer, _ATTRIBUTE, None)
    yield getattr(task, _ATTRIBUTE, None)


def _layers(function: Any) -> Iterator[Any]:
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def _fields(value: RetryPolicy | CachePolicy) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _name(named: Any) -> str:
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _names(classes: tuple[type[Exception], ...]) -> list[str]:
    return [_name(one) for one in classes]
