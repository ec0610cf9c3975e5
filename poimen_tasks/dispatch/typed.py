"""Types only: what a type checker learns from the way that work is handed over. Not imported at run time."""

from __future__ import annotations

from typing import Any, Protocol, TypedDict, TypeVar

from poimen_tasks.model import OnExisting, Priority

__all__ = ["DispatchOptions", "OneArgument", "Rows"]

A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class OneArgument(Protocol[A_contra, R_co]):
    """A task that can be called with one value; a plain function is none, it has no `name`.

    A protocol rather than `Task[[A], R]`: further parameters may have defaults.
    """

    @property
    def name(self) -> str:
        """The task's name."""

    def __call__(self, value: A_contra, /) -> R_co:
        """Run its body."""


class Rows(Protocol[R_co]):
    """A task that is called with whole rows of arguments, which are not checked."""

    @property
    def name(self) -> str:
        """The task's name."""

    def __call__(self, *args: Any, **kwargs: Any) -> R_co:
        """Run its body."""


class DispatchOptions(TypedDict, total=False):
    """The options of `Poimen.dispatch`, for its overloads; their meanings and defaults are there."""

    workflow: str | None
    stage: str
    batch_id: str | None
    concurrency: int | None
    queue: str | None
    priority: Priority
    on_success: Any
    on_failure: Any
    on_complete: Any
    actor: str | None
    metadata: dict[str, Any] | None
    on_existing: OnExisting
