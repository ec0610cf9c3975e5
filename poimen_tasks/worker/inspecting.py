"""`celery inspect poimen_items`: the items that each worker holds now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from celery.worker.control import inspect_command

from poimen_tasks.dispatch.publish import LANE_TASK
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.holding import Holding, read_holdings

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.worker.keeper import Keeper
    from poimen_tasks.worker.known_lanes import KnownLane

__all__ = ["poimen_items"]

_PATIENCE = 0.7
"""Seconds; whoever asks gives up after one."""
_MOST = 100


@inspect_command()
def poimen_items(state: Any, **_: Any) -> Any:
    """List of batch items currently held by lanes."""
    keeper: Keeper | None = getattr(state.app.tasks.get(LANE_TASK), "keeper", None)
    if keeper is None:
        return {"error": "this worker serves no batches"}
    lanes = keeper.lanes.all()
    return _in_time(lambda: _rows(keeper.store, lanes))


def _in_time(read: Callable[[], Any]) -> Any:
    """The answer of a read; the worker's own loop, which runs this, must not wait for a store that is frozen."""
    answers: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            answers.put(read())
        except PoimenError as error:
            answers.put({"error": str(error)})

    threading.Thread(target=run, name="poimen-inspect", daemon=True).start()
    try:
        return answers.get(timeout=_PATIENCE)
    except Empty:
        return {"error": f"the store did not answer within {_PATIENCE:g} s"}


def _rows(store: Store, lanes: list[KnownLane]) -> list[dict[str, Any]]:
    pids = {(lane.batch, lane.slot): lane.pid for lane in lanes}
    rows: list[dict[str, Any]] = []
    held = read_holdings(store.client, [lane.key for lane in lanes], most=_MOST, patience=_PATIENCE / 2)
    parts = {batch: store.reads.parts(batch) for batch in {holding.batch for holding in held}}
    for holding in held:
        ids = store.reads.names(holding.batch, holding.positions)
        common = _common(holding, parts[holding.batch][holding.part].activity, pids[holding.batch, holding.slot])
        rows += [
            {**common, "item": item, "position": position, "message_id": f"{holding.batch}.{position}", "attempt": n}
            for item, position, n in zip(ids, holding.positions, holding.attempts, strict=True)
        ]
        if holding.more:
            rows.append({**common, "more": holding.more})
    return rows


def _common(holding: Holding, activity: str, pid: int) -> dict[str, Any]:
    since = datetime.fromtimestamp(holding.since, UTC).isoformat(timespec="milliseconds")
    return {"batch": holding.batch, "activity": activity, "slot": holding.slot, "pid": pid, "since": since}
