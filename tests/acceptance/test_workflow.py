"""Workflows: several batches and stages as one run, dispatched by producers, callbacks and items."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from poimen_tasks import (
    BatchFailed,
    BatchState,
    BatchTimeout,
    InvalidArgument,
    InvalidId,
    ItemStatus,
    WorkflowNotFound,
)
from tests.conftest import Workers, eventually

pytestmark = pytest.mark.usefixtures("lanes")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_workflow_counts_its_batches(shop: ModuleType) -> None:
    """Batches and stages of one id are seen as one: counters are sums, `wait` ends with the last of them."""
    flow = shop.poimen.workflow("wf-sums")
    shop.poimen.dispatch(shop.poimen.map(shop.noop, range(3)), workflow="wf-sums", stage="fetch")
    shop.poimen.dispatch(
        [shop.odd_fails.s(n) for n in range(4)], workflow="wf-sums", stage="judge", batch_id="wf-judge"
    )
    report = flow.wait(timeout=30)
    assert (report.total, report.succeeded, report.failed, report.ok) == (7, 5, 2, False)
    assert [len(report.stages[stage]) for stage in ("fetch", "judge")] == [1, 1]
    assert dict(report.batches["wf-judge"].results) == {"0": 0, "2": 2}
    assert report.wall_time > 0
    status = flow.status()
    assert (status.total, status.finished, status.state, status.is_over) == (7, 7, BatchState.FAILED, True)
    assert [batch.stage for batch in flow.batches()] == ["fetch", "judge"]
    assert [batch.id for batch in flow.batches(stage="judge")] == ["wf-judge"]
    assert status.to_dict()["failed"] == 2
    with pytest.raises(BatchFailed, match="2 of 4 items failed") as failed:
        flow.wait(timeout=30, raise_on_error=True)
    assert failed.value.batch_id == "wf-judge"


def test_a_workflow_waits_for_what_its_callbacks_dispatch(shop: ModuleType, notes: Path) -> None:
    """A callback dispatches the next stage, which inherits the workflow: the workflow is over only with that."""
    first = shop.poimen.dispatch(
        shop.poimen.starmap(shop.add, [(1, 1), (2, 2)]),
        workflow="wf-chain",
        stage="first",
        actor="cron",
        on_success=shop.next_stage.s(str(notes)),
    )
    report = shop.poimen.workflow("wf-chain").wait(timeout=30)
    assert {stage: [dict(one.results) for one in reports] for stage, reports in report.stages.items()} == {
        "first": [{"0": 2, "1": 4}],
        "second": [{"0": 3, "1": 5}],
    }
    second = shop.poimen.batch(lines(notes)[0])
    assert second.id.startswith(first.id)
    assert second.status().workflow == "wf-chain"


def test_outcomes_of_all_batches_stream_with_their_batch(shop: ModuleType) -> None:
    """Outcomes of every batch come in as they finish, and go on behind a cursor of each batch (promise D1)."""
    flow = shop.poimen.workflow("wf-stream")
    for number in range(3):
        shop.poimen.dispatch(shop.poimen.map(shop.nap, [0.01] * 4), workflow="wf-stream", batch_id=f"wf-s{number}")
    cursors: dict[str, int] = {}
    seen = []
    for batch, outcome in flow.outcomes(timeout=30):
        seen.append((batch.id, outcome.item_id))
        cursors[batch.id] = outcome.cursor
        if len(seen) == 7:
            break
    rest = [(batch.id, outcome.item_id) for batch, outcome in flow.outcomes(after=cursors, timeout=30)]
    assert sorted(seen + rest) == [(f"wf-s{number}", str(item)) for number in range(3) for item in range(4)]


def test_a_retried_batch_is_read_on(shop: ModuleType, notes: Path) -> None:
    """After `retry_failed` the workflow is open again, and its new outcomes come in behind the old ones."""
    flow = shop.poimen.workflow("wf-again")
    batch = shop.poimen.dispatch([shop.fails_unless.s(str(notes))], workflow="wf-again")
    (old,) = [outcome for _, outcome in flow.outcomes(timeout=30)]
    assert old.status is ItemStatus.FAILED
    notes.touch()
    batch.retry_failed()
    (new,) = [outcome for _, outcome in flow.outcomes(after={batch.id: old.cursor}, timeout=30)]
    assert new.result == "there"
    assert flow.status().state is BatchState.COMPLETED


def test_cancelling_a_workflow_cancels_its_batches_and_stops_its_items(shop: ModuleType, notes: Path) -> None:
    """Open batches are cancelled, finished ones stay, a cancelled item dispatches nothing more (promise D8)."""
    flow = shop.poimen.workflow("wf-cancel")
    done = shop.poimen.dispatch([shop.add.s(1, 1)], workflow="wf-cancel", stage="done")
    done.wait(timeout=30)
    batch = shop.poimen.dispatch([shop.dispatches_on.s(str(notes))], workflow="wf-cancel")
    waiting = shop.poimen.dispatch([shop.noop.s(1).set(countdown=60)], workflow="wf-cancel")
    eventually(lambda: lines(notes) == ["start"])
    assert flow.cancel("enough", "me").state is BatchState.RUNNING
    Path(f"{notes}.go").touch()
    report = flow.wait(timeout=30)
    assert lines(notes) == ["start", "refused"]
    assert [report.batches[one.id].cancelled for one in (done, batch, waiting)] == [0, 1, 1]
    assert flow.status().state is BatchState.CANCELLED


def test_waiting_inside_an_item_would_deadlock(shop: ModuleType) -> None:
    """An item that waits for its own workflow is refused: it would wait for itself."""
    batch = shop.poimen.dispatch([shop.waits_for_workflow.s()], workflow="wf-inside")
    assert batch.wait(timeout=30).results["0"] == "WouldDeadlock"


def test_a_workflow_of_a_thousand_batches(shop: ModuleType) -> None:
    """A thousand batches are one workflow: all are listed in order, counted, and waited for."""
    for number in range(1000):
        shop.poimen.dispatch(shop.poimen.map(shop.noop, [1]), workflow="wf-thousand", batch_id=f"wf-t{number}")
    flow = shop.poimen.workflow("wf-thousand")
    assert flow.wait(timeout=90).succeeded == 1000
    assert [batch.id for batch in flow.batches()] == [f"wf-t{number}" for number in range(1000)]
    assert len(shop.poimen.batches(workflow="wf-thousand", state="completed")) == 1000


def test_deadlines_and_bad_input(shop: ModuleType, lanes: Workers) -> None:
    """An unknown workflow, a passed deadline and a wrong argument are one clear error each (promise D9)."""
    unknown = shop.poimen.workflow("wf-unknown")
    assert unknown.batches() == []
    for ask in (unknown.status, unknown.wait, unknown.cancel, lambda: list(unknown.outcomes())):
        with pytest.raises(WorkflowNotFound, match="wf-unknown"):
            ask()
    with pytest.raises(InvalidId, match="workflow"):
        shop.poimen.workflow("no spaces")
    batch = shop.poimen.dispatch([shop.noop.s(1).set(countdown=60)], workflow="wf-late")
    flow = shop.poimen.workflow("wf-late")
    with pytest.raises(BatchTimeout, match="0 of 1 items in 1 batches"):
        flow.wait(timeout=0.05)
    with pytest.raises(BatchTimeout):
        list(flow.outcomes(timeout=0.05))
    for wrong in ("5", {batch.id: "x"}):
        with pytest.raises(InvalidArgument, match="after"):
            flow.outcomes(after=wrong)
    with pytest.raises(InvalidArgument, match="timeout"):
        flow.wait(timeout=-1)
    flow.cancel()
