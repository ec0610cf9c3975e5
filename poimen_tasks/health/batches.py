"""Checks of the batches: what is counted against what is there, and what hinders them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from poimen_tasks.errors import BatchNotFound
from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.health.fleet import drift_in_words
from poimen_tasks.health.repairs import REPAIR, Repairs
from poimen_tasks.model import BatchState, BatchStatus
from poimen_tasks.store.scripts import tickets_of
from poimen_tasks.store.survey import Survey

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = ["check_batches", "check_leftovers"]

MOST_KEYS = 1_000_000
_EVERY = 25

Progress = Callable[[str], None]


def check_batches(
    store: Store, survey: Survey, served: Collection[str], repairs: Repairs | None, progress: Progress
) -> tuple[int, list[Finding]]:
    """Every open batch. Returns how many there are, and the findings.

    Args:
        store: the store.
        survey: reads for it.
        served: the queues that live workers serve.
        repairs: put counters right; None only looks.
        progress: told how far it is.
    """
    found: list[Finding] = []
    count = 0
    for count, batch in enumerate(survey.open_batches(), 1):
        if count % _EVERY == 1:
            progress(f"open batches, {count}")
        try:
            found += _check_batch(store, batch, served, repairs)
        except BatchNotFound:
            continue  # it went away while we looked
    if all(one.level is not Level.ERROR for one in found):
        found.insert(0, Finding(Level.OK, "batches", f"{count} open", "counters, slots and lists of each agree"))
    return count, found


def _check_batch(store: Store, batch: str, served: Collection[str], repairs: Repairs | None) -> list[Finding]:
    status = store.reads.status(batch)
    queues = {part.queue for part in store.reads.parts(batch)} if served else set[str]()
    return [
        *_slots(store, batch, repairs),
        *_counters(store, status, repairs),
        *_hindrances(status, queues - set(served)),
    ]


def _slots(store: Store, batch: str, repairs: Repairs | None) -> Iterator[Finding]:
    reply = store.scripts.repair_slots(
        batch, repair=repairs is not None, lease=store.settings.lease, actor=repairs.actor if repairs else "doctor"
    )
    if not reply[b"good"]:
        words = [
            *_count(len(reply[b"lanes"]), "lanes without a lease"),
            *_count(len(reply[b"tickets"]), "tickets that nobody looks for"),
            *_count(reply[b"runs"], "lanes that hold items and have no slot"),
            *drift_in_words(reply[b"drift"]),
        ]
        yield Finding(
            Level.ERROR, "slots", batch, "; ".join(words), REPAIR, repairable=True, repaired=bool(reply[b"repaired"])
        )


def _count(number: int, what: str) -> list[str]:
    return [f"{what}: {number}"] if number else []


def _counters(store: Store, status: BatchStatus, repairs: Repairs | None) -> Iterator[Finding]:
    reply = store.scripts.check_batch(status.batch_id, repair=repairs is not None)
    if repairs is not None and (tickets := tickets_of(reply)):
        repairs.publish(tickets)
    if reply[b"good"]:
        return
    counted, found = _plain(reply[b"counted"]), _plain(reply[b"found"])
    missing = counted["total"] - counted["finished"] - status.waiting - sum(found.values())
    if missing:
        what = f"{missing} items are in no list" if missing > 0 else f"{-missing} items are in two lists"
        yield Finding(
            Level.ERROR, "counters", status.batch_id, f"of {counted['total']} items {what}",
            "part of the stored data was lost: cancel the batch, and dispatch what has no result as a new one",
        )  # fmt: skip
        return
    off = [name for name, number in found.items() if counted[name] != number]
    words = [f"{name}: counted are {counted[name]}, there are {found[name]}" for name in off]
    if not reply[b"listed"]:
        words.append("the list of open batches lacks it")
    words = words or ["the counts of what lanes may claim differ from the lists"]
    yield Finding(
        Level.ERROR,
        "counters",
        status.batch_id,
        "; ".join(words),
        REPAIR,
        repairable=True,
        repaired=bool(reply[b"repaired"]),
    )


def _plain(row: dict[bytes, Any]) -> dict[str, int]:
    return {name.decode(): int(number) for name, number in sorted(row.items())}


def _hindrances(status: BatchStatus, unserved: Collection[str]) -> Iterator[Finding]:
    batch = status.batch_id
    if status.state is BatchState.STALLED:
        yield Finding(
            Level.WARNING, "stalled", batch, f"its producer is gone and it was never sealed; {status.total} items came",
            f"dispatch it again with batch_id={batch!r} to go on where it stopped, or `poimen cancel -A APP {batch}`",
        )  # fmt: skip
    for queue in sorted(unserved):
        yield Finding(
            Level.WARNING, "queues", batch, f"no worker serves its queue {queue}",
            f"start one: `poimen worker -A APP -Q {queue}`",
        )  # fmt: skip


def check_leftovers(store: Store, survey: Survey, repairs: Repairs | None, progress: Progress) -> Iterator[Finding]:
    """Keys of batches that have no record, and records that are listed and gone."""
    rows, whole = survey.leftovers(most=MOST_KEYS, progress=lambda seen: progress(f"keys, about {seen:,}"))
    for row in rows:
        removed = store.scripts.repair_keys(row.batch, parts=row.parts, actor=repairs.actor) if repairs else 0
        yield Finding(
            Level.WARNING, "keys", row.batch, f"{row.keys} keys of a batch whose record is gone", REPAIR,
            repairable=True, repaired=removed > 0,
        )  # fmt: skip
    listed = set(survey.unrecorded()) - {row.batch for row in rows}
    if listed:
        removed = (
            sum(store.scripts.repair_keys(batch, parts=(), actor=repairs.actor) for batch in listed) if repairs else 0
        )
        yield Finding(
            Level.WARNING, "keys", f"{len(listed)} batches", "they are listed and their records are gone", REPAIR,
            repairable=True, repaired=removed > 0,
        )  # fmt: skip
    if not whole:
        text = f"only about {MOST_KEYS:,} keys were looked at; the server holds more"
        yield Finding(Level.WARNING, "keys", "server", text, "give Poimen a database or server of its own")
    elif not rows and not listed:
        yield Finding(Level.OK, "keys", "namespace", "no batch left keys behind")
