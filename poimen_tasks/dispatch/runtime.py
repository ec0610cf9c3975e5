"""What the objects of this room hold in common: the app, the store, the settings, and how tickets are published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poimen_tasks.store.values import Part, Ticket

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.settings import Settings
    from poimen_tasks.store import Store

__all__ = ["Runtime"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Wired once by `Poimen`. `store()` is this process's store; `publish` never raises for an unreachable broker.

    `pause` and `resume` are those of `Poimen`.
    """

    app: Celery
    load_settings: Callable[[], Settings]
    store: Callable[[], Store]
    publish: Callable[[Sequence[Ticket], Mapping[str, Sequence[Part]]], None]
    pause: Callable[..., Any]
    resume: Callable[..., Any]

    @property
    def settings(self) -> Settings:
        """The checked settings."""
        return self.load_settings()
