"""What the pages need of a `Poimen`; the app's own class stands above this room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.audit import Audit
    from poimen_tasks.cache import Cache
    from poimen_tasks.health import Finding
    from poimen_tasks.settings import Settings
    from poimen_tasks.store import Store

__all__ = ["System"]


class System(Protocol):
    """One app's batches, pauses, cache and log, to be looked at."""

    celery: Celery
    cache: Cache
    audit: Audit

    @property
    def settings(self) -> Settings:
        """The checked settings."""

    @property
    def store(self) -> Store:
        """This process's store."""

    @property
    def redis_url(self) -> str:
        """The Redis that holds the state."""

    def health(self) -> list[Finding]:
        """A short look at the server, the workers and the audit log."""
