"""Messages under a lane's name that carry no ticket: whoever may write to the broker can send them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.acceptance.conftest import APP
from tests.conftest import Workers, eventually

FORGED: list[list[Any]] = [
    [], ["b"], ["b", 0, 1], ["b", 0, 1, "celery", 5], [None] * 4, ["b", "0", "1", "celery"], ["b", -1, 1, "celery"],
    ["b", True, 1, "celery"], ["b", 0, 1.5, "celery"], ["b/../x", 0, 1, "celery"], ["b\nc", 0, 1, "celery"],
    ["b" * 257, 0, 1, "celery"], [{"a": 1}, 0, 1, "celery"], ["b", 0, 1, ["celery"]], ["b", {}, [], "celery"],
]  # fmt: skip


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_carries_no_ticket_is_dropped(own_shop: ModuleType, workers: Workers, pool: str) -> None:
    """A worker drops each with a word in its log, and works on: its keeper too, which renews leases (fault K05)."""
    worker = workers.start(APP, pool=pool, concurrency=2)
    for args in FORGED:
        own_shop.app.send_task("poimen.lane", args=args)
    own_shop.app.send_task("poimen.lane", kwargs={"batch": "b", "slot": 0, "generation": 1, "queue": "celery"})
    batch = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.nap, [0.01] * 20), concurrency=2)
    assert batch.wait(timeout=60).succeeded == 20
    eventually(lambda: worker.text().count("carries no ticket and is dropped") == len(FORGED) + 1, timeout=20)
    text = worker.text()
    assert "unexpected" not in text
    assert "Pool callback raised" not in text
    assert own_shop.poimen.store.reads.leases() == []
