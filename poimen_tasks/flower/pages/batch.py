"""One batch: its numbers, what covers it, some of its errors, a page of its outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from poimen_tasks.dispatch.outcomes import cursor_start, decode_blob, resume_at
from poimen_tasks.dispatch.stream import last_ordinal
from poimen_tasks.flower.blocks import Block, cell, facts, links, notice, progress, state, table
from poimen_tasks.flower.pages.page import Asked, Page
from poimen_tasks.flower.pages.pauses import pause_table, states_of
from poimen_tasks.flower.passwords import mask_text
from poimen_tasks.flower.system import System
from poimen_tasks.flower.words import count, seconds, share, when
from poimen_tasks.ids import check_name
from poimen_tasks.model import ItemStatus, Outcome
from poimen_tasks.store import Store

__all__ = ["PAGE"]

#: Outcomes on a page; errors that are shown, found among the newest entries of the outcome stream.
ROWS, ERRORS, NEWEST, SCOPES = 50, 10, 32, 20
#: Bytes of outcomes that are read for one of these.
_MOST_BYTES = 4 << 20
_MOST_CURSOR = (1 << 63) - 1
_NUMBERS = ("pending", "delayed", "waiting", "running", "succeeded", "failed", "cancelled", "skipped", "cached")


def read(system: System, asked: Asked) -> dict[str, Any]:
    """The batch, without what its items were called with and what they returned."""
    batch, after = check_name(asked.id, "batch id"), asked.number("after", 0, least=0, most=_MOST_CURSOR)
    store = system.store
    status = store.reads.status(batch)
    outcomes = _page_of(store, batch, after)
    return {
        "now": store.reads.now(),
        "batch": status.to_dict(),
        "pauses": states_of(store, status.paused_by[:SCOPES]),
        "errors": [_shown(one) for one in _errors(store, batch)] if status.failed or status.cancelled else [],
        "outcomes": [_shown(one) for one in outcomes[:ROWS]],
        "next": outcomes[ROWS - 1].cursor if len(outcomes) > ROWS else None,
        "after": after,
    }


def _shown(outcome: Outcome[Any]) -> dict[str, Any]:
    """An outcome without its result, which may be large or secret; its error in one text."""
    found = {**outcome.to_dict(), "cursor": outcome.cursor}
    del found["result"]
    found["error"] = mask_text(str(outcome.error)) if outcome.error else None
    return found


def _page_of(store: Store, batch: str, after: int) -> list[Outcome[Any]]:
    """One more than a page of outcomes behind a cursor, if there are as many."""
    ordinal, skip = resume_at(after or None)
    found = list[Outcome[Any]]()
    for part in _parts(store, batch, max(0, ordinal - 1), ordinal, skip):
        found += part
        if len(found) > ROWS:
            break
    return found


def _errors(store: Store, batch: str) -> list[Outcome[Any]]:
    """The newest of the outcomes that are no success, as far as they are among the newest entries."""
    begin = max(0, last_ordinal(store, batch) - NEWEST)
    bad = [one for part in _parts(store, batch, begin) for one in part if one.status is not ItemStatus.SUCCEEDED]
    return bad[-ERRORS:]


def _parts(store: Store, batch: str, at: int, ordinal: int = 0, skip: int = 0) -> Iterator[list[Outcome[Any]]]:
    """Outcomes entry by entry, until enough bytes were read."""
    size = 0
    while size < _MOST_BYTES and (entries := store.reads.outcomes(batch, after=at, block=None, count=4)):
        for entry in entries:
            size += len(entry.blob)
            left = skip if entry.ordinal == ordinal else 0
            yield decode_blob(entry.blob, cursor_start(entry.ordinal), skip=left)
        at = entries[-1].ordinal


def show(data: dict[str, Any], asked: Asked) -> list[Block]:
    """Facts, advice, pauses, errors, outcomes."""
    one = data["batch"]
    blocks = [_facts(one, asked)]
    blocks += [
        notice(f"No worker serves the queue {queue}: start one with poimen worker -Q {queue}.", "warning")
        for queue in one["unserved_queues"][:5]
    ]
    if one["state"] == "stalled":
        blocks.append(
            notice("Its producer is gone: dispatch the same work again with its id, or cancel it.", "warning")
        )
    if data["pauses"]:
        blocks.append(pause_table("Paused by", data["pauses"], asked))
    if data["errors"]:
        blocks.append(_error_table(data))
    blocks.append(_outcome_table(data))
    blocks.append(
        links(
            [
                ("From the first", asked.batch(one["batch_id"]), not data["after"]),
                *([("Next", f"{asked.batch(one['batch_id'])}?after={data['next']}", False)] if data["next"] else []),
                ("Its items as tasks", f"{asked.prefix}/tasks?search={one['batch_id']}", False),
                ("Its audit entries", asked.link("/audit", workflow=one["workflow"]), False),
            ]
        )
    )
    return blocks


def _facts(one: dict[str, Any], asked: Asked) -> Block:
    rows: list[tuple[str, Any]] = [
        ("State", state(one["state"])),
        ("Done", progress(one["finished"], one["total"], share(one["finished"], one["total"]))),
        ("Workflow", cell(one["workflow"], href=asked.link("", workflow=one["workflow"], state="all"))),
        ("Stage", one["stage"]),
        ("Limit", count(one["concurrency"])),
        ("Items", ", ".join(f"{count(one[name])} {name}" for name in _NUMBERS if one[name]) or "none yet"),
    ]
    if one["callbacks_pending"]:
        rows.append(("Callbacks pending", count(one["callbacks_pending"])))
    for name in ("created_at", "started_at", "finished_at"):
        moment = datetime.fromisoformat(one[name]) if one[name] else None
        rows.append((f"{name.removesuffix('_at').capitalize()} (UTC)", when(moment)))
    return facts("", rows)


def _error_table(data: dict[str, Any]) -> Block:
    rows = [
        [cell(one["item_id"], strong=True), state(one["status"]), cell(one["error"] or "")] for one in data["errors"]
    ]
    return table(
        "Errors", ("Item", "Status", "Error"), rows, long=("Error",), note=f"Of the newest outcomes, {ERRORS} at most."
    )


def _outcome_table(data: dict[str, Any]) -> Block:
    rows = [
        [
            cell(one["item_id"], strong=True),
            state(one["status"]),
            cell(one["attempts"]),
            cell("cached" if one["cached"] else seconds(one["duration"])),
            cell(seconds(one["queue_wait"])),
            cell(one["worker"]),
            cell(one["error"] or "", most=120),
        ]
        for one in data["outcomes"]
    ]
    return table(
        "Outcomes", ("Item", "Status", "Attempts", "Took", "Waited", "Worker", "Error"), rows,
        spare=("Attempts", "Waited", "Worker"), numbers=("Attempts", "Took", "Waited"), long=("Error",),
        empty="no outcome yet", note="In the order in which they were recorded.",
    )  # fmt: skip


PAGE = Page("batch", r"/batches/([^/]+)", "Batch", read, show, ("after",), tab=False)
