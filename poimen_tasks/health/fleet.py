"""Checks of the workers, and of the slots they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.health.repairs import REPAIR, Repairs
from poimen_tasks.store.reads import LIVE, WorkerInfo

if TYPE_CHECKING:
    from poimen_tasks.store import Store
    from poimen_tasks.store.survey import Survey

__all__ = ["LIVE", "check_ears", "check_slots", "check_workers", "drift_in_words"]

#: A ticket was looked for so often: 62 times `POIMEN_TICKET_OVERDUE` / 2 have passed, a minute.
_IN_VAIN = 5

#: Slots of the whole fleet that are compared in one step of the server.
MOST_SLOTS = 20_000


def check_workers(workers: Sequence[WorkerInfo], now: float, *, waiting: int) -> Iterator[Finding]:
    """Who serves; `waiting` is the number of open batches, which makes it worse when nobody does."""
    live = [worker for worker in workers if now - worker.seen <= LIVE]
    for worker in workers:
        if worker not in live:
            yield Finding(
                Level.WARNING, "workers", worker.name, f"it was last seen {now - worker.seen:.0f} s ago",
                "if it should run, look at its log; the other workers forget it by themselves",
            )  # fmt: skip
    if live:
        slots = sum(slots for worker in live for _, slots in worker.offers[:1])
        queues = sorted({queue for worker in live for queue, _ in worker.offers})
        yield Finding(
            Level.OK,
            "workers",
            "fleet",
            f"{len(live)} alive, {slots} slot{'' if slots == 1 else 's'}, queues {', '.join(queues)}",
        )
    else:
        text = f"no worker is alive, and {waiting} open batches wait" if waiting else "no worker is alive"
        yield Finding(
            Level.ERROR if waiting else Level.WARNING,
            "workers",
            "fleet",
            text,
            "start one: `poimen worker -A APP -c 4`",
        )


def check_ears(survey: Survey, workers: Sequence[WorkerInfo], now: float) -> Iterator[Finding]:
    """Workers that say they live, and take no message of those that wait: nothing runs meanwhile."""
    served = {queue for worker in workers if now - worker.seen <= LIVE for queue, _ in worker.offers}
    for queue, count in sorted(survey.untaken(tries=_IN_VAIN).items()):
        if queue in served:
            yield Finding(
                Level.ERROR, "workers", queue,
                f"{count} tickets wait in this queue for a minute, workers that serve it are alive, and nothing runs",
                "they take no messages: look at their logs and at the broker, and start them anew",
            )  # fmt: skip


def check_slots(store: Store, repairs: Repairs | None) -> Finding:
    """The fleet's leases, tickets and counters by queue against the slots of all batches."""
    reply = store.scripts.repair_fleet(
        repair=repairs is not None, most=MOST_SLOTS, actor=repairs.actor if repairs else "doctor"
    )
    if not reply[b"looked"]:
        text = f"over {MOST_SLOTS:,} slots are in use: too many to compare in one step"
        return Finding(Level.WARNING, "slots", "fleet", text, "look again when less is running")
    if reply[b"good"]:
        return Finding(Level.OK, "slots", "fleet", "leases, tickets and counters agree with the slots")
    words = [f"{what}: {len(reply[key])}" for key, what in _ORPHANS if reply[key]] + drift_in_words(reply[b"drift"])
    level = Level.ERROR if reply[b"drift"] else Level.WARNING
    return Finding(
        level, "slots", "fleet", "; ".join(words), REPAIR, repairable=True, repaired=bool(reply[b"repaired"])
    )


_ORPHANS = ((b"leases", "leases of lanes that are gone"), (b"tickets", "tickets that no slot has"))


def drift_in_words(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows of queue, counted tickets, found, counted lanes, found."""
    return [
        f"queue {row[0].decode()}: counted are tickets {row[1]} and lanes {row[3]}, there are {row[2]} and {row[4]}"
        for row in rows
    ]
