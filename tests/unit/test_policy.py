"""Policies, alone and on real Celery tasks (no broker is needed to make them)."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest
from celery import Celery, Task, _state, shared_task
from hypothesis import given
from hypothesis import strategies as st

from poimen_tasks.errors import Cancelled, InvalidArgument
from poimen_tasks.policy import CachePolicy, Policy, RetryCount, RetryPolicy, policy, policy_of

if TYPE_CHECKING:
    from collections.abc import Iterator

RETRY = RetryPolicy(max_attempts=5)
CACHE = CachePolicy(ttl=60)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """The current app; tasks made while it lives are not announced to the apps of other tests, before or after."""
    monkeypatch.setattr(_state, "_apps", WeakSet())
    app = Celery("shop", broker="memory://", set_as_current=False)
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr(_state._tls, "current_app", app)
    yield app
    app.close()


# --- values


def test_retry_defaults() -> None:
    """Three attempts at most, a second before the second, doubling up to a minute (promise R1)."""
    found = RetryPolicy()
    assert (found.max_attempts, found.initial, found.factor, found.maximum) == (3, 1.0, 2.0, 60.0)
    assert (found.jitter, found.retry_on, found.never_on, found.max_lost) == (True, (Exception,), (), 3)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (RetryPolicy, {"max_attempts": 0}, "RetryPolicy.max_attempts: expected a whole number from 1, got 0"),
        (RetryPolicy, {"max_attempts": 2.0}, "RetryPolicy.max_attempts: expected a whole number from 1, got 2.0"),
        (RetryPolicy, {"max_attempts": True}, "RetryPolicy.max_attempts: expected a whole number from 1, got True"),
        (RetryPolicy, {"max_lost": 0}, "RetryPolicy.max_lost: expected a whole number from 1, got 0"),
        (RetryPolicy, {"initial": -1}, "RetryPolicy.initial: expected a number from 0, got -1"),
        (RetryPolicy, {"initial": math.nan}, "RetryPolicy.initial: expected a number from 0, got nan"),
        (RetryPolicy, {"factor": 0.5}, "RetryPolicy.factor: expected a number from 1, got 0.5"),
        (RetryPolicy, {"factor": math.inf}, "RetryPolicy.factor: expected a number from 1, got inf"),
        (RetryPolicy, {"initial": 90}, "RetryPolicy.maximum: expected a number from 90, got 60.0"),
        (RetryPolicy, {"jitter": 1}, "RetryPolicy.jitter: expected True or False, got 1"),
        (RetryPolicy, {"retry_on": "ValueError"}, "RetryPolicy.retry_on: expected subclasses of Exception, got 'V"),
        (
            RetryPolicy,
            {"retry_on": (SystemExit,)},
            "RetryPolicy.retry_on: expected subclasses of Exception, got <class",
        ),
        (RetryPolicy, {"never_on": [int]}, "RetryPolicy.never_on: expected subclasses of Exception, got <class 'int'>"),
        (CachePolicy, {"ttl": -1}, "CachePolicy.ttl: expected a number from 0 to 1e+09, got -1"),
        (CachePolicy, {"ttl": "1h"}, "CachePolicy.ttl: expected a number from 0 to 1e+09, got '1h'"),
        (CachePolicy, {"version": ""}, "CachePolicy.version: expected 1-256 printable characters, got ''"),
        (CachePolicy, {"version": 2}, "CachePolicy.version: expected 1-256 printable characters, got int"),
        (CachePolicy, {"model_id": "a\nb"}, "CachePolicy.model_id: expected 1-256 printable characters, got 'a\\nb'"),
        (CachePolicy, {"key": "x"}, "CachePolicy.key: expected a callable or None, got 'x'"),
        (CachePolicy, {"per_task": None}, "CachePolicy.per_task: expected True or False, got None"),
        (CachePolicy, {"max_bytes": 0}, "CachePolicy.max_bytes: expected a whole number from 1, got 0"),
        (RetryCount, {"maximum": -1}, "RetryCount.maximum: expected a whole number from 0, got -1"),
        (RetryCount, {"current": -1}, "RetryCount.current: expected a whole number from 0, got -1"),
        (RetryCount, {"current": 4}, "RetryCount.current: expected at most the maximum, 3, got 4"),
        (policy, {"cache": 60}, "policy(cache=): expected True, None or a CachePolicy, got 60"),
        (policy, {"retry": 3}, "policy(retry=): expected None or a RetryPolicy, got 3"),
        (policy, {"prefetch": 0}, "policy(prefetch=): expected a whole number from 1, got 0"),
    ],
)
def test_refused_in_words(kind: Any, options: dict[str, Any], text: str) -> None:
    """An option out of its range is refused with its name, what is allowed and what came."""
    with pytest.raises(InvalidArgument) as caught:
        kind(**options)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("kind", [RetryPolicy, CachePolicy, Policy, RetryCount])
def test_values_are_frozen_and_keyword_only(kind: Any) -> None:
    """A policy cannot change under a running task, and its options are named where it is made."""
    with pytest.raises(FrozenInstanceError):
        setattr(kind(), fields(kind)[0].name, None)
    with pytest.raises(TypeError):
        kind(1)


@pytest.mark.parametrize("given_classes", [OSError, [OSError], (OSError,)])
def test_exception_classes_in_any_form(given_classes: Any) -> None:
    """One class or a list of them is as good as a tuple."""
    assert RetryPolicy(retry_on=given_classes).retry_on == (OSError,)


# --- how long to wait


POLICIES = st.builds(
    lambda initial, more, factor, jitter: RetryPolicy(
        initial=initial, maximum=initial + more, factor=factor, jitter=jitter
    ),
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e6), st.booleans(),
)  # fmt: skip


@given(POLICIES, st.integers(1, 10_000), st.floats(0, 1))
def test_delay_stays_in_the_upper_half(retry: RetryPolicy, attempt: int, drawn: float) -> None:
    """A wait is drawn from the upper half of the exponential one, which never passes the maximum, at any attempt."""
    exponent = math.log(retry.initial or 1) + (attempt - 1) * math.log(retry.factor)
    whole = min(retry.maximum, math.exp(exponent)) if exponent < 700 else retry.maximum
    whole = whole if retry.initial else 0.0
    found = retry.delay(attempt, random=lambda: drawn)
    share = (0.5 + drawn / 2) if retry.jitter else 1
    assert found == pytest.approx(whole * share, rel=1e-6)
    assert 0 <= found <= retry.maximum


def test_delay_by_example() -> None:
    """Without jitter the waits are 1, 2, 4, 5, 5 seconds when the maximum is 5; with it half to whole of them."""
    exact = RetryPolicy(maximum=5, jitter=False)
    assert [exact.delay(attempt) for attempt in range(1, 6)] == [1, 2, 4, 5, 5]
    assert RetryPolicy().delay(2, random=lambda: 0.0) == 1.0
    assert RetryPolicy().delay(2, random=lambda: 1.0) == 2.0
    assert 0.5 <= RetryPolicy().delay(1) <= 1.0


@pytest.mark.parametrize("attempt", [0, -1, 1.5, None])
def test_attempts_count_from_one(attempt: Any) -> None:
    """There is no attempt before the first."""
    with pytest.raises(InvalidArgument, match="attempt: expected a whole number from 1"):
        RetryPolicy().delay(attempt)
    with pytest.raises(InvalidArgument, match="attempt: expected a whole number from 1"):
        RetryPolicy().should_retry(ValueError(), attempt)


# --- what to retry


@pytest.mark.parametrize(
    ("options", "error", "retried"),
    [
        ({}, ValueError(), True),
        ({"retry_on": OSError}, ConnectionError(), True),
        ({"retry_on": OSError}, ValueError(), False),
        ({"never_on": ConnectionError}, ConnectionError(), False),
        ({"retry_on": OSError, "never_on": ConnectionError}, TimeoutError(), True),
        ({"retry_on": ()}, ValueError(), False),
        ({}, SystemExit(), False),
        ({}, KeyboardInterrupt(), False),
        ({}, Cancelled(), False),
        ({"retry_on": Cancelled}, Cancelled(), False),
    ],
)
def test_should_retry(options: dict[str, Any], error: BaseException, retried: bool) -> None:
    """`never_on` beats `retry_on`; what was asked to stop, item or process, is never retried (promise R1)."""
    assert RetryPolicy(**options).should_retry(error, 1) is retried


@given(st.integers(1, 20), st.integers(1, 20))
def test_attempts_are_bounded(most: int, attempt: int) -> None:
    """The attempt numbered `max_attempts` is the last (promise R1)."""
    assert RetryPolicy(max_attempts=most).should_retry(ValueError(), attempt) is (attempt < most)


def test_retry_count() -> None:
    """A counter goes up to its maximum, says if it can, and refuses to go on; each is a new value (promise R2)."""
    first = RetryCount(maximum=2)
    second = first.increment()
    last = second.increment()
    assert [count.current for count in (first, second, last)] == [0, 1, 2]
    assert [count.can_retry for count in (first, second, last)] == [True, True, False]
    with pytest.raises(InvalidArgument, match=r"RetryCount\.current: expected at most the maximum, 2, got 3"):
        last.increment()
    assert last.to_dict() == {"current": 2, "maximum": 2}


def test_to_dict_is_plain() -> None:
    """Policies are ready for JSON, classes and functions by their full names."""
    data = Policy(cache=CachePolicy(key=math.sqrt), retry=RetryPolicy(never_on=(KeyError,)), prefetch=1).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["cache"]["key"] == "math.sqrt"
    assert data["retry"]["never_on"] == ["builtins.KeyError"]
    assert Policy().to_dict() == {"cache": None, "retry": None, "prefetch": None}


# --- on functions and tasks


def test_decorates_in_place() -> None:
    """`policy` returns the very function that it decorates, which runs as before."""

    def double(x: int) -> int:
        return 2 * x

    assert policy(retry=RETRY)(double) is double
    assert double(4) == 8
    assert policy_of(double) == Policy(retry=RETRY)


@pytest.mark.parametrize(("cache", "kept"), [(True, CachePolicy()), (False, None), (None, None), (CACHE, CACHE)])
def test_forms_of_cache(cache: Any, kept: Any) -> None:
    """`cache=True` is the default cache policy, False and None are none."""
    assert policy_of(policy(cache=cache)(lambda: None)).cache == kept


def test_no_policy() -> None:
    """Whatever was never decorated has the empty policy."""
    for thing in (test_no_policy, Task, object(), None, 7):
        assert policy_of(thing) == Policy(cache=None, retry=None, prefetch=None)


def test_policies_add_up() -> None:
    """Several decorators add up; where two speak of the same thing the outer one holds."""

    @policy(retry=RETRY)
    @policy(cache=CACHE, retry=RetryPolicy(max_attempts=9), prefetch=1)
    def body() -> None: ...

    assert policy_of(body) == Policy(cache=CACHE, retry=RETRY, prefetch=1)


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"autoretry_for": (OSError,)}, {"lazy": False}, {"name": "n"},
                                     {"bind": True, "autoretry_for": (OSError,)}])  # fmt: skip
def test_under_app_task(app: Celery, options: dict[str, Any]) -> None:
    """Under `@app.task`, whatever its options, the policy is found on the task, on its proxy and in the registry."""

    @app.task(**options)
    @policy(retry=RETRY, prefetch=1)
    def body(*args: Any) -> Any: ...

    assert policy_of(app.tasks[body.name]) == policy_of(body) == Policy(retry=RETRY, prefetch=1)


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"autoretry_for": (OSError,)}, {"lazy": False}])
def test_above_app_task(app: Celery, options: dict[str, Any]) -> None:
    """Above `@app.task` the policy is found as well."""

    @policy(cache=True)
    @app.task(**options)
    def body(*args: Any) -> Any: ...

    assert policy_of(app.tasks[body.name]) == policy_of(body) == Policy(cache=CachePolicy())


def test_above_app_task_stays_lazy(app: Celery) -> None:
    """A lazy task is not made early by its policy, so configuration that comes later still counts for it."""

    @policy(retry=RETRY)
    @app.task
    def body() -> None: ...

    assert not body.__evaluated__()
    assert not app.configured
    app.conf.task_ignore_result = True
    assert policy_of(app.tasks[body.name]).retry == RETRY
    assert app.tasks[body.name].ignore_result


def test_above_speaks_of_one_task(app: Celery) -> None:
    """A policy above one of two tasks made of the same function leaves the other alone."""

    def body() -> None: ...

    one = policy(retry=RETRY)(app.task(name="one")(body))
    other = app.task(name="other")(body)
    assert (policy_of(one).retry, policy_of(other).retry) == (RETRY, None)


def test_above_and_under(app: Celery) -> None:
    """What stands above a task holds over what stands under it, part by part."""

    @policy(retry=RETRY)
    @app.task
    @policy(retry=RetryPolicy(), cache=CACHE)
    def body() -> None: ...

    assert policy_of(app.tasks[body.name]) == Policy(retry=RETRY, cache=CACHE)


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"autoretry_for": (OSError,), "name": "n"}])
def test_shared_task(app: Celery, options: dict[str, Any]) -> None:
    """`@shared_task` works with the policy under it, above it and both; no app is finalised by it."""

    @policy(retry=RETRY)
    @shared_task(**options)
    @policy(cache=CACHE)
    def body(*args: Any) -> Any: ...

    assert not app.finalized
    assert policy_of(body) == Policy(retry=RETRY, cache=CACHE)
    assert policy_of(app.tasks[body.name]) == Policy(retry=RETRY, cache=CACHE)


def test_shared_task_in_a_finalised_app(app: Celery) -> None:
    """An app that was finalised before learns of the policy too, and so does one that comes later."""
    app.finalize()

    @policy(retry=RETRY)
    @shared_task(name="late", autoretry_for=(OSError,))
    def body() -> None: ...

    later = Celery("later", broker="memory://", set_as_current=False)
    assert policy_of(app.tasks["late"]).retry == policy_of(later.tasks["late"]).retry == RETRY
    later.close()


def test_unknown_proxies_are_asked(app: Celery) -> None:
    """A proxy that hides its function (of another Celery, say) is asked for its task, which is marked then."""
    from celery.local import Proxy

    @app.task
    def body() -> None: ...

    proxy = Proxy(lambda: app.tasks[body.name])
    assert policy(retry=RETRY)(proxy) is proxy
    assert policy_of(app.tasks[body.name]).retry == RETRY


def test_through_other_decorators(app: Celery) -> None:
    """A well-behaved decorator between the task and the policy does not hide it."""

    def logged(function: Any) -> Any:
        @functools.wraps(function, updated=())
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    @app.task
    @logged
    @policy(retry=RETRY)
    def body() -> None: ...

    assert policy_of(body).retry == RETRY


def test_task_classes(app: Celery) -> None:
    """A policy on a task class holds for its instances and subclasses; a function's own comes before its base class."""

    @policy(retry=RetryPolicy(), prefetch=2)
    class Crawl(Task):
        name = "crawl"

        def run(self) -> None: ...

    @app.task(base=Crawl)
    @policy(retry=RETRY)
    def body() -> None: ...

    assert policy_of(app.register_task(Crawl())) == policy_of(Crawl) == Policy(retry=RetryPolicy(), prefetch=2)
    assert policy_of(body) == Policy(retry=RETRY, prefetch=2)


def test_circular_wrapping() -> None:
    """A function that claims to wrap itself does not hang the search."""

    def body() -> None: ...

    body.__wrapped__ = body  # type: ignore[attr-defined]
    assert policy_of(body) == Policy()


def test_what_takes_no_attribute() -> None:
    """A policy on something that cannot carry one is refused."""
    with pytest.raises(
        InvalidArgument, match=r"policy: expected a function, class or task that takes attributes, got <"
    ):
        policy(cache=True)(len)
