"""A router that looks at the arguments of a call."""

from __future__ import annotations

from typing import Any


def by_weight(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> dict[str, str] | None:
    """Heavy parcels have a queue of their own."""
    return {"queue": "heavy"} if name == "billing.tasks.parcel" and args and args[0] > 100 else None
