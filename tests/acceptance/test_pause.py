"""Pauses with real workers: nothing of a paused scope starts, and everything goes on afterwards."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from poimen_tasks import BatchState
from tests.conftest import eventually


def lines(path: Path, what: str = "start") -> list[str]:
    """Names that bodies noted."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [row[1] for row in rows if row[0] == what]


@pytest.mark.usefixtures("lanes")
def test_nothing_starts_while_paused(shop: ModuleType, notes: Path) -> None:
    """After `pause()` returned nothing of the workflow starts; what ran finishes; the resume runs the rest (promise P3)."""
    work = [shop.marked.s(str(notes), str(number), 0.1) for number in range(12)]
    batch = shop.poimen.dispatch(work, workflow="wf-p3", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 4)
    receipt = shop.poimen.pause(workflow="wf-p3", reason="maintenance", actor="ops")
    running = {item for one in receipt.running for item in one.item_ids}
    receipt.wait_quiet(timeout=20)
    started = lines(notes)
    assert set(started) == {*lines(notes, "end")}
    assert running <= set(started)
    status = batch.status()
    assert (status.state, status.running, status.paused_by) == (BatchState.PAUSED, 0, ("w:wf-p3",))
    assert shop.poimen.pauses.is_paused("wf-p3")
    assert lines(notes) == started
    shop.poimen.resume(workflow="wf-p3", reason="done", actor="ops")
    assert batch.wait(timeout=30).succeeded == 12
    assert sorted(lines(notes)) == sorted(map(str, range(12)))
