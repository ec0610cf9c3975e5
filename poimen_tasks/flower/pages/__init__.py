"""The pages: each reads some plain data from the store, and says which blocks show it."""

from __future__ import annotations

from poimen_tasks.flower.pages import audit, batch, batches, cache, health, pauses
from poimen_tasks.flower.pages.page import Asked, Page

__all__ = ["PAGES", "Asked", "Page"]

#: In the order of their tabs; that of one batch is reached from the list.
PAGES: tuple[Page, ...] = (batches.PAGE, pauses.PAGE, cache.PAGE, audit.PAGE, health.PAGE, batch.PAGE)
