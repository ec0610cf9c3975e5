"""`celery control revoke` and `terminate` on items, by real workers; several of them, of which any may act."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poimen_tasks import ItemStatus
from tests import nursery
from tests.acceptance.conftest import APP
from tests.conftest import ROOT, Workers, eventually


@pytest.fixture(scope="module")
def lanes(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two workers with a process each: both hear a command."""
    group = Workers(tmp_path_factory.mktemp("workers"), module_env)
    group.start_many(2, APP, concurrency=1)
    yield group
    group.destroy_all()


pytestmark = pytest.mark.usefixtures("lanes")


def lines(path: Path) -> list[str]:
    """The lines that bodies left."""
    return path.read_text().splitlines() if path.exists() else []


def errors(batch: Any) -> dict[str, str]:
    """What kept items of a batch from succeeding, when it is over."""
    return {outcome.item_id: outcome.error.type for outcome in batch.outcomes(timeout=30) if outcome.error}


def held(shop: ModuleType, notes: Path) -> Any:
    """A batch whose first two items run while the others wait; its limit keeps it so."""
    batch = shop.poimen.dispatch([shop.until_cancelled.s(str(notes)) for _ in range(6)], concurrency=2)
    eventually(lambda: len(lines(notes)) == 2)
    return batch


def test_waiting_items_are_cancelled(shop: ModuleType, notes: Path) -> None:
    """Several ids at once: those that wait get their outcome while others run, and no body is called (fault E06)."""
    batch = held(shop, notes)
    shop.app.control.revoke([f"{batch.id}.{position}" for position in (2, 4, 5)])
    eventually(lambda: batch.status().cancelled == 3)
    assert (batch.status().running, batch.status().pending) == (2, 1)
    batch.cancel("over", "me")
    assert errors(batch) == dict.fromkeys("245", "Revoked") | dict.fromkeys("013", "Cancelled")
    assert len(lines(notes)) == 2


def test_one_waiting_for_a_retry(shop: ModuleType, notes: Path) -> None:
    """A retried item, and one with a countdown, do not wait for their time to be cancelled."""
    work = [shop.retries_slowly.s(str(notes)), shop.add.s(1, 2).set(countdown=3600)]
    batch = shop.poimen.dispatch(work)
    eventually(lambda: batch.status().delayed == 2)
    shop.app.control.revoke([f"{batch.id}.0", f"{batch.id}.1"])
    outcomes = list(batch.outcomes(timeout=20))
    assert {(outcome.item_id, outcome.status, outcome.attempts) for outcome in outcomes} == {
        ("0", ItemStatus.CANCELLED, 1), ("1", ItemStatus.CANCELLED, 0),
    }  # fmt: skip
    assert len(lines(notes)) == 1


def test_a_running_item_is_told(shop: ModuleType, notes: Path) -> None:
    """`checkpoint()` raises in the revoked item and in no other of the batch (promise D8)."""
    batch = held(shop, notes)
    shop.app.control.revoke(f"{batch.id}.1")
    outcome = next(batch.outcomes(timeout=20))
    assert (outcome.item_id, outcome.status, outcome.error.type) == ("1", ItemStatus.CANCELLED, "Cancelled")
    assert "position 1" in outcome.error.message
    eventually(lambda: len(lines(notes)) == 3)
    assert batch.status().cancelled == 1
    batch.cancel("over", "me")
    batch.wait(timeout=20)


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_terminate_hits_one_item_only(shop: ModuleType, tmp_path: Path, signal: str) -> None:
    """A body that never asks is ended with its process and does not run again; its neighbours run once each."""
    notes = [tmp_path / str(i) for i in range(5)]
    batch = shop.poimen.dispatch(
        [shop.marked.s(str(path), "x", 60.0 if i == 0 else 0.3) for i, path in enumerate(notes)], concurrency=2
    )
    eventually(lambda: lines(notes[0]))
    shop.app.control.revoke(f"{batch.id}.0", terminate=True, signal=signal)
    assert errors(batch) == {"0": "Revoked"}
    assert [len(lines(path)) for path in notes] == [1, 2, 2, 2, 2]


def test_from_the_command_line(shop: ModuleType, module_env: dict[str, str], notes: Path) -> None:
    """`celery control terminate` names what it handed on; what is over or unknown is passed over."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), "x", 60.0)])
    eventually(lambda: lines(notes))
    done = nursery.run(
        ["celery", "-A", APP, "control", "terminate", "KILL", f"{batch.id}.0", "nobody.7"],
        env={**os.environ, **module_env, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert f"{batch.id}.0" in done.stdout
    assert errors(batch) == {"0": "Revoked"}
    before = batch.status()
    shop.app.control.revoke([f"{batch.id}.0", f"{batch.id}.1", "nobody.7", "no-item"], terminate=True)
    assert shop.poimen.dispatch([shop.add.s(1, 2)]).wait(timeout=20).succeeded == 1
    assert batch.status() == before


def test_plain_tasks_are_revoked_as_always(shop: ModuleType) -> None:
    """Celery's own revoke works for a plain task, also for one whose id looks like an item's."""
    shop.app.control.revoke("report.7", reply=True, timeout=2)
    assert len(shop.app.control.inspect(limit=2).revoked()) == 2
    result = shop.add.apply_async((1, 2), task_id="report.7")
    assert eventually(lambda: result.state == "REVOKED")
