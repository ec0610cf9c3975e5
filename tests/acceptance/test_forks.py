"""Pool processes that are forked while a thread of their parent is busy."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from tests.acceptance.places import QUICK
from tests.conftest import Workers


def test_no_process_is_forked_amid_a_look_at_the_broker(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """A lock that the parent's thread held at the fork would be held in the child for ever (fault B02)."""
    workers.start("tests.acceptance.projects.slow_watch", args=QUICK, concurrency=1)
    linked = own_shop.add.s(1, 1).set(link=own_shop.add.s(1))
    batch = own_shop.poimen.dispatch([own_shop.dies_once.s(str(notes)), linked], concurrency=1)
    report = batch.wait(timeout=30)
    assert (report.succeeded, report.results["0"]) == (2, "alive")
