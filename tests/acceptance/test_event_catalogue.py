"""What the system really writes: every entry has a type and fields that `docs/events.md` tells of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgpack
import pytest

from poimen_tasks import Item
from poimen_tasks.audit.event import RESERVED
from tests.acceptance.conftest import APP, imported
from tests.auditing import lines_on_disk, seal
from tests.catalogue import documented
from tests.conftest import Workers, eventually

#: Types that the scenario below must bring about, or the test would say less than it seems to.
SEEN = {
    "batch.opened", "batch.appended", "batch.sealed", "batch.completed", "batch.failed", "batch.cancelling",
    "batch.cancelled", "batch.concurrency_changed", "batch.retried", "callback.opened", "callback.finished",
    "item.finished", "item.retried", "item.cancelled", "item.revoked", "item.lost", "lane.lost", "cache.put",
    "cache.invalidated", "cache.cleared", "cache.hit", "scope.paused", "scope.resumed", "scope.reset",
    "snapshot.created", "call.paused", "call.resumed", "tracker.updated", "tracker.removed", "tracker.cleared",
    "audit.recorded",
}  # fmt: skip


@pytest.fixture
def settled_env(worker_env: dict[str, str]) -> dict[str, str]:
    """Settings under which hits of the cache are told too."""
    return {**worker_env, "POIMEN_AUDIT_CACHE_HITS": "1"}


@pytest.fixture
def busy_shop(settled_env: dict[str, str]) -> Iterator[ModuleType]:
    """The shop with these settings."""
    with imported(settled_env) as module:
        yield module


def headers(shop: ModuleType) -> dict[str, set[str]]:
    """The names of the header's fields that entries of each type had."""
    found: dict[str, set[str]] = defaultdict(set)
    last = "0-0"
    while page := shop.poimen.store.entries.after(last):
        for entry in page:
            header = msgpack.unpackb(entry.fields[b"h"], raw=True)
            found[entry.fields[b"t"].decode()] |= {name.decode() for name in header}
        last = page[-1].id
    return found


def run_batches(shop: ModuleType, notes: Path) -> None:
    """Batches that succeed, fail, are cancelled, changed, retried; callbacks, caches, records, a lost worker."""
    poimen = shop.poimen
    poimen.dispatch([shop.add.s(1, 2), shop.decide.s("so")], workflow="w", on_success=shop.noop.s()).wait(timeout=60)
    bad = poimen.dispatch([Item(shop.add.s("x", 1), task_id="T1")], workflow="w", on_failure=shop.noop.s())
    bad.wait(timeout=60)
    eventually(lambda: poimen.audit.count(type="callback.finished", status="success") == 2)
    bad.retry_failed(actor="ada")
    bad.wait(timeout=60)
    poimen.dispatch([shop.third_time.s(str(notes.with_name("thrice")))], workflow="w").wait(timeout=60)
    slow = poimen.dispatch([shop.nap.s(0.1) for _ in range(30)], workflow="w", concurrency=1)
    slow.set_concurrency(2, actor="ada")
    slow.cancel(reason="enough", actor="ada")
    slow.wait(timeout=60)
    for _ in range(2):
        poimen.dispatch([shop.doubled.s(str(notes), 3)], workflow="w").wait(timeout=60)
    poimen.cache.get(next(iter(poimen.cache.entries()[0])).key)
    poimen.cache.invalidate(activity=shop.doubled.name, reason="new", actor="ada")
    poimen.cache.clear(actor="ada")


def pause(shop: ModuleType) -> None:
    """Pauses of batches and of plain calls, and a snapshot."""
    poimen = shop.poimen
    poimen.pause(workflow="held", reason="lunch", actor="ada")
    batch = poimen.dispatch([shop.add.s(1, 1)], workflow="held")
    poimen.snapshots.create("held", actor="ada")
    poimen.resume(workflow="held", reason="back", actor="ada")
    batch.wait(timeout=60)
    poimen.pauses.reset(workflow="held", actor="ada")
    poimen.pause(activity=shop.add, actor="ada")
    call = shop.add.delay(1, 2)
    eventually(lambda: poimen.audit.count(type="call.paused") == 1)
    poimen.resume(activity=shop.add, actor="ada")
    eventually(lambda: poimen.audit.count(type="call.resumed") == 1)
    call.forget()


def track(shop: ModuleType) -> None:
    """States of tasks, by a program and by an item."""
    states = shop.poimen.tracker("tracked")
    states.update("T1", scope="all", actor="ada", reason="new")
    shop.poimen.dispatch([shop.tracked.s("tracked", "T1")], workflow="w").wait(timeout=60)
    states.remove("T1", actor="ada")
    states.clear(actor="ada")


def lose(shop: ModuleType, notes: Path) -> None:
    """An item is revoked before it starts; another one kills its process, and is given up."""
    batch = shop.poimen.dispatch([shop.stubborn.s(str(notes), "m"), shop.nap.s(0.01)], concurrency=1)
    eventually(lambda: notes.exists() and "start m" in notes.read_text())
    shop.app.control.revoke(f"{batch.id}.1")
    eventually(lambda: shop.poimen.audit.count(type="item.revoked") == 1)
    Path(f"{notes}.go").touch()
    batch.wait(timeout=60)
    shop.poimen.dispatch([shop.dies_at_once.s()]).wait(timeout=60)


def test_what_is_written_is_on_the_page(
    busy_shop: ModuleType, workers: Workers, settled_env: dict[str, str], notes: Path
) -> None:
    """Batches, the cache, pauses, a snapshot and a death write only types and fields that the page has (promise A4)."""
    workers.start(APP, concurrency=2, env=settled_env)
    run_batches(busy_shop, notes)
    pause(busy_shop)
    track(busy_shop)
    lose(busy_shop, notes)
    page, found = documented(), headers(busy_shop)
    assert {kind: fields - page[kind].fields for kind, fields in found.items() if fields - page[kind].fields} == {}
    told = Counter(event.event_type for event in busy_shop.poimen.audit.query(limit=None))
    assert {kind for kind in told if kind.partition(".")[0] in RESERVED} <= set(page)
    assert "audit.unreadable" not in told
    assert SEEN - {*found} == set()
    assert seal(busy_shop.poimen) == sum(told.values())
    assert Counter(line["event"]["event_type"] for line in lines_on_disk(busy_shop.poimen.audit.directory)) == told
    assert busy_shop.poimen.audit.count(workflow="held", type=["scope.paused", "scope.resumed"]) == 2
