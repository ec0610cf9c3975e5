"""Bodies that take their process with them; on a worker of their own, as Celery keeps a lost process's slot a while."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import ModuleType

import pytest

from poimen_tasks import ItemStatus
from tests.conftest import Workers, eventually

pytestmark = pytest.mark.usefixtures("lanes")


def lines(path: Path) -> list[str]:
    """The lines that bodies left."""
    return path.read_text().splitlines() if path.exists() else []


def test_sys_exit_fails_only_its_item(shop: ModuleType) -> None:
    """A body that leaves the interpreter fails its item; the others run."""
    batch = shop.poimen.dispatch([shop.add.s(i, 0) if i != 30 else shop.exits.s(3) for i in range(60)])
    report = batch.wait(timeout=40)
    assert (report.succeeded, report.failed) == (59, 1)
    assert report.errors["30"].type == "SystemExit"


def test_a_process_that_is_told_to_end_is_lost(shop: ModuleType, lanes: Workers, notes: Path) -> None:
    """SIGTERM to one pool process is a kill as any other: its item runs again."""
    batch = shop.poimen.dispatch([shop.stubborn.s(str(notes), "x")])
    eventually(lambda: lines(notes))
    os.kill(int(notes.read_text().split()[2]), signal.SIGTERM)
    eventually(lambda: len(lines(notes)) >= 2, timeout=20)
    Path(f"{notes}.go").touch()
    assert batch.wait(timeout=20).succeeded == 1


def test_a_poison_pill_is_given_up(shop: ModuleType, notes: Path) -> None:
    """An item that always kills its process fails as WorkerLost after a few runs; no other is blamed (fault B03).

    The worker serves on when it lost one process after another (fault B04).
    """
    batch = shop.poimen.dispatch([shop.dies.s(str(notes)), *(shop.add.s(i, 0) for i in range(40))])
    report = batch.wait(timeout=60)
    assert (report.succeeded, report.failed) == (40, 1)
    assert report.errors["0"].type == "WorkerLost"
    assert 1 <= len(lines(notes)) <= 4


def test_an_item_whose_process_died_runs_again(shop: ModuleType, notes: Path) -> None:
    """One lost process costs a run, not the item (fault B02)."""
    outcome = next(shop.poimen.dispatch([shop.dies_once.s(str(notes))]).outcomes(timeout=30))
    assert (outcome.result, len(lines(notes))) == ("alive", 2)


def test_cancel_with_terminate_kills(shop: ModuleType, notes: Path) -> None:
    """`terminate=True` ends a body that does not ask (promise D8)."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 60.0) for i in range(4)], concurrency=2)
    eventually(lambda: batch.status().running == 2 and len(lines(notes)) == 2)
    batch.cancel("now", "me", terminate=True)
    outcomes = list(batch.outcomes(timeout=20))
    assert [outcome.status for outcome in outcomes] == [ItemStatus.CANCELLED] * 4
