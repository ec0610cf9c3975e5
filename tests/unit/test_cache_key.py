"""Cache keys: four fields, and how a call becomes one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from celery import Celery

from poimen_tasks import CacheKey, CachePolicy, UncacheableArguments
from poimen_tasks.cache_key import key_of_call

app = Celery("keys", set_as_current=False)


@app.task(shared=False)
def price(sku: int, *, currency: str = "EUR") -> int:
    """A task with a default."""
    return sku


@app.task(shared=False, bind=True)
def bound(self: Any, sku: int) -> int:
    """A task that has its own self."""
    return sku


def key(policy: CachePolicy, *args: Any, task: Any = price, **kwargs: Any) -> CacheKey | None:
    return key_of_call(policy, task, args, kwargs, task_id="T1", model_id=None, what="call")


def test_a_call_however_it_is_spelled() -> None:
    """Positional, by keyword, or with a default left out: one key (promise C1, fault G03)."""
    plain = CachePolicy()
    assert key(plain, 7) == key(plain, sku=7) == key(plain, 7, currency="EUR")
    assert key(plain, 7) != key(plain, 7, currency="USD")
    assert key(plain, 7, task=bound) == key(plain, sku=7, task=bound)


def test_what_else_is_part_of_the_key() -> None:
    """Task, version and model make other keys; the task id only where that is asked for (promise C1, fault G11)."""
    keys = [
        key(CachePolicy(), 7),
        key(CachePolicy(version="2"), 7),
        key(CachePolicy(model_id="gpt"), 7),
        key(CachePolicy(per_task=True), 7),
        key(CachePolicy(), 7, task=bound),
    ]
    assert len({one.digest for one in keys if one is not None}) == len(keys)
    assert [one.task_id for one in keys if one is not None] == ["", "", "", "T1", ""]


def test_a_key_function_stands_for_the_arguments() -> None:
    """What the function returns is what counts."""
    policy = CachePolicy(key=lambda sku, **_: sku % 10)
    assert key(policy, 7) == key(policy, 17, currency="USD") != key(policy, 8)


@pytest.mark.parametrize("on_uncacheable", ["raise", "run"])
def test_a_key_function_that_raises(on_uncacheable: Any) -> None:
    """Its error is told with the task's name, whatever is to become of other uncacheable calls."""
    policy = CachePolicy(key=lambda sku: sku // 0, on_uncacheable=on_uncacheable)
    with pytest.raises(UncacheableArguments, match=r"call: the key function of task .*price raised ZeroDivisionError"):
        key(policy, 7)


def test_arguments_without_a_canonical_form() -> None:
    """They are refused with their path and the way out, or have no key (fault G06)."""
    with pytest.raises(UncacheableArguments, match=r"call: cached arguments.*sku.*NaN.*on_uncacheable='run'"):
        key(CachePolicy(), math.nan)
    assert key(CachePolicy(on_uncacheable="run"), math.nan) is None


def test_a_call_that_does_not_fit_has_a_key_of_its_own() -> None:
    """It is its body that tells."""
    assert key(CachePolicy(), 1, 2, 3) is not None
