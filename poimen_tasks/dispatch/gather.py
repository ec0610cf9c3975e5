"""Reads all outcomes that a batch has, in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poimen_tasks.dispatch.ledger import Ledger
from poimen_tasks.model import ItemStatus

if TYPE_CHECKING:
    from poimen_tasks.store import Reads

__all__ = ["gather", "gather_results"]


def gather(reads: Reads, batch: str) -> Ledger:
    """A ledger of every outcome recorded so far."""
    ledger = Ledger()
    for entries in reads.entries(batch):
        for entry in entries:
            ledger.add(entry.ordinal, entry.blob)
    return ledger


def gather_results(reads: Reads, batch: str) -> list[Any]:
    """The results of the items that succeeded, in item order: what an `on_success` callback is given."""
    return [outcome.result for outcome in gather(reads, batch).outcomes(ItemStatus.SUCCEEDED)]
