"""Tasks that know no app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import shared_task
from poimen_tasks import RetryPolicy, policy


@shared_task
def charge(order: int) -> dict[str, int]:
    """Charge an order."""
    return {"order": order, "cents": order * 100}


@shared_task
def bill(charges: list[dict[str, int]]) -> int:
    """Add up what was charged."""
    return sum(charge["cents"] for charge in charges)


@policy(retry=RetryPolicy(max_attempts=3, initial=0.02))
@shared_task
def fetch(path: str) -> int:
    """Ask a service that fails twice."""
    return _third_time(path)


@shared_task
@policy(retry=RetryPolicy(max_attempts=3, initial=0.02))
def fetch_below(path: str) -> int:
    """The same, with the policy below the decorator."""
    return _third_time(path)


@shared_task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=True, retry_backoff_max=1, max_retries=3)
def fetch_again(self: Any, path: str) -> int:
    """The same, as Celery does it."""
    assert self.request.id is not None
    return _third_time(path)


@shared_task(bind=True)
def where(self: Any, *_: Any) -> dict[str, Any]:
    """How it was delivered."""
    return dict(self.request.delivery_info)


def _third_time(path: str) -> int:
    file = Path(path)
    runs = int(file.read_text(encoding="utf-8")) + 1 if file.exists() else 1
    file.write_text(str(runs), encoding="utf-8")
    if runs < 3:
        raise ConnectionError(f"run {runs}")
    return runs
