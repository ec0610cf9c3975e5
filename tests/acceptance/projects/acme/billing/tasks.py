"""Tasks of the app: classes of their own, hooks, models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery import Task
from poimen_tasks import RetryPolicy
from pydantic import BaseModel

from acme.celery import app, poimen


def note(path: str, *words: Any) -> None:
    """Append a line."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")


class Hooked(Task):  # type: ignore[type-arg]
    """A base whose hooks call what they override."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note(args[0], "call", self.request.id)
        return super().__call__(*args, **kwargs)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        note(args[0], "before_start", task_id)
        super().before_start(task_id, args, kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        note(args[0], "on_success", task_id)
        super().on_success(retval, task_id, args, kwargs)

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], "on_failure", task_id)
        super().on_failure(exc, task_id, args, kwargs, einfo)

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], "on_retry", task_id)
        super().on_retry(exc, task_id, args, kwargs, einfo)

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], "after_return", task_id)
        super().after_return(status, retval, task_id, args, kwargs, einfo)


class Bare(Hooked):
    """A base that leaves out what it overrides."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note(args[0], "call", self.request.id)
        return self.run(*args, **kwargs)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        note(args[0], "before_start", task_id)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        note(args[0], "on_success", task_id)

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], "on_failure", task_id)

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], "on_retry", task_id)

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], "after_return", task_id)


def work(self: Any, path: str, how: str) -> str:
    """Succeed, fail, or retry once."""
    note(path, "body", self.request.id)
    if how == "fails":
        raise ValueError(how)
    if how == "retries" and self.request.retries == 0:
        raise self.retry(countdown=0.01)
    return how


hooked = app.task(bind=True, base=Hooked, name="billing.tasks.hooked")(work)
bare = app.task(bind=True, base=Bare, name="billing.tasks.bare")(work)


class Broken(Task):  # type: ignore[type-arg]
    """A base whose hooks fail."""

    abstract = True

    def on_success(self, *_: Any) -> None:
        raise RuntimeError("hook")

    def on_failure(self, *_: Any) -> None:
        raise RuntimeError("hook")

    def on_retry(self, *_: Any) -> None:
        raise RuntimeError("hook")


broken = app.task(bind=True, base=Broken, name="billing.tasks.broken")(work)


class Invoice(Task):  # type: ignore[type-arg]
    """A task that is a class."""

    name = "billing.tasks.Invoice"
    currency = "EUR"

    def run(self, cents: int) -> str:
        """Write an invoice."""
        return f"{cents / 100:.2f} {self.currency}"


invoice = app.register_task(Invoice())


@poimen.task(retry=RetryPolicy(max_attempts=2, initial=0.02))
def late(path: str) -> str:
    """Declared after the app was finalised, which registering a class does."""
    first = not Path(path).exists()
    note(path, "run")
    if first:
        raise ConnectionError("once")
    return "twice"


class Address(BaseModel):
    """Where a bill goes."""

    street: str
    number: int


@app.task(pydantic=True)
def label(address: Address, copies: int = 1) -> Address:
    """Models in, a model out."""
    return Address(street=address.street.upper(), number=address.number * copies)


@app.task(bind=True)
def parcel(self: Any, weight: int) -> str:
    """The queue follows from the argument."""
    return str(self.request.delivery_info["routing_key"])


@app.task(bind=True)
def daily(self: Any) -> str:
    """Routed by exchange and routing key."""
    return str(self.request.delivery_info["routing_key"])
