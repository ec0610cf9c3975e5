"""The first page: workflows and batches, how far they are and what they wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from poimen_tasks.dispatch.workflow_report import overall_state
from poimen_tasks.flower.blocks import Block, Cell, cards, cell, links, notice, progress, state, table
from poimen_tasks.flower.pages.page import Asked, Page
from poimen_tasks.flower.system import System
from poimen_tasks.flower.words import age, count, share
from poimen_tasks.health import LIVE
from poimen_tasks.model import BatchState, BatchStatus

__all__ = ["PAGE"]

#: Batches that are looked at, of which so many stand on a page; and workflows.
MOST, ROWS, WORKFLOWS = 500, 50, 20
_SHOWN = ("live", "all", *BatchState)


def read(system: System, asked: Asked) -> dict[str, Any]:
    """A page of batches, newest first, and the workflows that the newest belong to."""
    shown, workflow = asked.choice("state", _SHOWN), asked.name("workflow")
    page = asked.number("page", 1, least=1, most=MOST // ROWS)
    reads = system.store.reads
    names = reads.batches(workflow=workflow, newest=MOST)
    statuses = [one for one in reads.statuses(names) if one is not None]
    wanted = [one for one in statuses if _is_wanted(one, shown)]
    now, workers = reads.now(), reads.workers()
    return {
        "now": now,
        "workers": sum(1 for worker in workers if now - worker.seen <= LIVE),
        "looked_at": len(names),
        "live": sum(not one.is_over for one in statuses),
        "running": sum(one.running for one in statuses),
        "failed": sum(one.failed for one in statuses),
        "workflows": [] if workflow else list(_workflows(wanted)),
        "batches": [one.to_dict() for one in wanted[(page - 1) * ROWS : page * ROWS]],
        "state": shown,
        "workflow": workflow,
        "page": page,
        "pages": max(1, -(-len(wanted) // ROWS)),
    }


def _is_wanted(status: BatchStatus, shown: str) -> bool:
    if shown == "live":
        return not status.is_over
    return shown in {"all", status.state}


def _workflows(statuses: Sequence[BatchStatus]) -> Iterator[dict[str, Any]]:
    """Workflows of the batches that are shown; a batch without one is its own, and stands among the batches."""
    found: dict[str, list[BatchStatus]] = {}
    for one in statuses:
        if one.workflow != one.batch_id:
            found.setdefault(one.workflow, []).append(one)
    for name, batches in list(found.items())[:WORKFLOWS]:
        sums = {key: sum(getattr(one, key) for one in batches) for key in ("total", "finished", "failed", "running")}
        yield {"workflow": name, "state": str(overall_state(batches)), "batches": len(batches), **sums}


def show(data: dict[str, Any], asked: Asked) -> list[Block]:
    """Cards, what may be chosen, workflows, batches."""
    blocks = [
        cards(
            [
                ("Open batches", count(data["live"]), ""),
                ("Running items", count(data["running"]), "active"),
                ("Workers", count(data["workers"]), "success" if data["workers"] else "danger"),
                ("Failed items", count(data["failed"]), "danger"),
            ]
        ),
        links(
            (word, asked.link("", state=word, workflow=data["workflow"]), word == data["state"])
            for word in ("live", "all", *(str(one) for one in BatchState))
        ),
    ]
    if data["workflow"]:
        blocks.append(notice(f"Only batches of the workflow {data['workflow']}."))
    if data["workflows"]:
        blocks.append(_workflow_table(data, asked))
    blocks.append(_batch_table(data, asked))
    if data["pages"] > 1:
        blocks.append(links(_pages(data, asked)))
    return blocks


def _pages(data: dict[str, Any], asked: Asked) -> Iterator[tuple[str, str, bool]]:
    for number in range(1, data["pages"] + 1):
        query = {"state": data["state"], "workflow": data["workflow"], "page": number}
        yield str(number), asked.link("", **query), number == data["page"]


def _workflow_table(data: dict[str, Any], asked: Asked) -> Block:
    rows = [
        [
            cell(one["workflow"], href=asked.link("", workflow=one["workflow"], state="all"), strong=True),
            state(one["state"]),
            cell(count(one["batches"])),
            progress(one["finished"], one["total"], share(one["finished"], one["total"])),
            cell(count(one["failed"])),
            cell(count(one["running"])),
        ]
        for one in data["workflows"]
    ]
    note = f"The newest {WORKFLOWS}, by the batches below." if len(rows) == WORKFLOWS else ""
    return table(
        "Workflows", ("Workflow", "State", "Batches", "Done", "Failed", "Running"), rows,
        spare=("Batches", "Failed", "Running"), numbers=("Batches", "Failed", "Running"), note=note,
    )  # fmt: skip


def _batch_table(data: dict[str, Any], asked: Asked) -> Block:
    empty = "no batch is open" if data["state"] == "live" else "no such batch"
    note = f"Looked for among the newest {MOST:,} batches." if data["looked_at"] == MOST else ""
    return table(
        "Batches",
        ("Batch", "Workflow", "Stage", "State", "Done", "Failed", "Running", "Limit", "Age", "Waits for"),
        [_batch_row(one, data["now"], asked) for one in data["batches"]],
        spare=("Workflow", "Stage", "Failed", "Running", "Limit", "Age"),
        numbers=("Failed", "Running", "Limit", "Age"),
        long=("Batch", "Waits for"),
        empty=empty,
        note=note,
    )


def _batch_row(one: dict[str, Any], now: float, asked: Asked) -> list[Cell]:
    made = datetime.fromisoformat(one["created_at"]) if one["created_at"] else None
    own = one["workflow"] == one["batch_id"]
    return [
        cell(one["batch_id"], href=asked.batch(one["batch_id"]), strong=True),
        cell("its own") if own else cell(one["workflow"], href=asked.link("", workflow=one["workflow"], state="all")),
        cell(one["stage"]),
        state(one["state"]),
        progress(one["finished"], one["total"], share(one["finished"], one["total"])),
        cell(count(one["failed"])),
        cell(count(one["running"])),
        cell(count(one["concurrency"])),
        cell(age(made, now)),
        cell(_waits(one)),
    ]


def _waits(one: dict[str, Any]) -> str:
    said = [f"a worker on queue {queue}" for queue in one["unserved_queues"][:3]]
    said += [f"a resume of {scope}" for scope in one["paused_by"][:3]]
    if one["state"] == BatchState.STALLED:
        said.append("its producer")
    return ", ".join(said)


PAGE = Page("batches", "", "Batches", read, show, ("state", "workflow", "page"), twin="/batches")
