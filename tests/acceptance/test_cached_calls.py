"""Plain Celery calls of cached tasks: `delay`, native canvas, and calls in the caller's process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from celery import chain, chord, group

from tests.conftest import Workers, eventually

pytestmark = pytest.mark.usefixtures("lanes")


def runs(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines() if path.exists() else [])


def test_the_second_call_is_served(shop: ModuleType, notes: Path) -> None:
    """The same plain call twice runs one body; a batch's item counts too (promise C9)."""
    first = shop.priced.delay(str(notes), "x").get(timeout=20)
    assert shop.priced.delay(str(notes), name="x").get(timeout=20) == first == "price of x"
    assert shop.poimen.dispatch([shop.priced.s(str(notes), "x")]).wait(timeout=20).stats()["cached"] == 1
    assert runs(notes) == {"x": 1}


def test_equal_calls_wait_without_a_process(shop: ModuleType, notes: Path) -> None:
    """Of many equal calls one runs; the others hold no process meanwhile, and all get its value (promise C9)."""
    calls = [shop.priced.delay(str(notes), "slow", 0.6) for _ in range(12)]
    eventually(lambda: runs(notes) == {"slow": 1})
    assert shop.add.delay(1, 1).get(timeout=20) == 2
    assert {call.get(timeout=20) for call in calls} == {"price of slow"}
    assert runs(notes) == {"slow": 1}


def test_canvas_goes_on_behind_calls_that_waited(shop: ModuleType, notes: Path) -> None:
    """Chords and chains with equal cached members end as they would without a cache (promise C9)."""
    header = [shop.priced.s(str(notes), "member", 0.3) for _ in range(5)]
    joined = chord(group(header))(shop.joined.s())
    chained = [chain(shop.priced.s(str(notes), "member", 0.3), shop.joined.s()).apply_async() for _ in range(3)]
    assert joined.get(timeout=30) == ", ".join(["price of member"] * 5)
    assert {one.get(timeout=30) for one in chained} == {"price of member"}
    assert runs(notes) == {"member": 1}


def test_a_failing_call_lets_the_next_one_run(shop: ModuleType, notes: Path) -> None:
    """Each equal call of a task that fails fails by itself, and none waits for ever (protocol 8)."""
    calls = [shop.priced_never.delay(str(notes), "x") for _ in range(5)]
    for call in calls:
        with pytest.raises(ValueError, match="x"):
            call.get(timeout=30)


def test_a_killed_leader_is_followed(shop: ModuleType, lanes: Workers, notes: Path) -> None:
    """When the process that computes dies, one that waits computes after the lease (promise C9, fault G02).

    The call whose process died is Celery's to deliver again, after its own delay.
    """
    calls = [shop.priced.delay(str(notes), "killed", 3.0) for _ in range(4)]
    store = shop.poimen.store
    eventually(lambda: runs(notes) == {"killed": 1})
    eventually(lambda: store.client.redis.hlen(store.keys.build("waiting_calls")) == 3)
    for process in lanes.all[0].children():
        process.kill()
    eventually(lambda: sum(call.successful() for call in calls) >= 3, timeout=60)
    assert {call.get() for call in calls if call.ready()} == {"price of killed"}


def test_a_direct_call_runs_the_body(shop: ModuleType, notes: Path) -> None:
    """Calling a task directly runs its body only, with the cache left alone."""
    for _ in range(2):
        assert shop.priced(str(notes), "direct") == "price of direct"
    assert runs(notes) == {"direct": 2}


def test_calls_in_the_callers_process(shop: ModuleType, notes: Path) -> None:
    """`apply` is served from the cache too."""
    assert [shop.priced.apply((str(notes), "here")).get() for _ in range(2)] == ["price of here"] * 2
    assert runs(notes) == {"here": 1}
