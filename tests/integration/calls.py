"""Plain calls as a worker's check tells the store of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack

from poimen_tasks.store import Store
from poimen_tasks.store.call_scripts import PlainCall

MESSAGE = b"the whole message"


def call(name: str = "m1", *, runner: str = "w\t7", **more: Any) -> PlainCall:
    """A plain call of `acts.work` from queue `q`."""
    said = {"activity": "acts.work", "queue": "q", "workflow": "", "batch": ""}
    return PlainCall(name, runner, **{**said, **more})


def pause(store: Store, scope: str = "*", **options: Any) -> Any:
    """Pause as somebody."""
    return store.pauses.pause_scope(scope, **{"reason": "why", "actor": "me", **options})


def resume(store: Store, scope: str = "*") -> list[tuple[str, bytes]]:
    """Resume as somebody; what is to be published."""
    return [(one.id, one.message) for one in store.pauses.resume_scope(scope, reason="why", actor="me").calls]


def park(store: Store, one: PlainCall | None = None, message: bytes = MESSAGE, **options: Any) -> tuple[str, str]:
    """A message that a pause covers."""
    return store.calls.park_call(one or call(), message, **options)


def back(name: str = "m1", key: str | None = None, **more: Any) -> PlainCall:
    """The same call as its message comes back."""
    return call(name, returned=key or name, **more)


def running(store: Store) -> dict[str, tuple[float, str]]:
    """What is registered: message id to the end of its lease and the rest."""
    rows = store.client.redis.hgetall(store.keys.build("running_calls"))
    return {
        field.decode().split("\t")[0]: (float(value.split(b"\t")[0]), value.split(b"\t", 2)[2].decode())
        for field, value in rows.items()
    }


def parked(store: Store) -> dict[str, list[Any]]:
    """The records of parked calls by their key."""
    rows = store.client.redis.hgetall(store.keys.build("paused_calls"))
    return {key.decode(): msgpack.unpackb(value, raw=True) for key, value in rows.items()}


def held(store: Store, scope: str = "*") -> set[bytes]:
    """What a scope holds back."""
    return set(store.client.redis.smembers(store.keys.build("held", scope)))


def due(store: Store, key: str = "m1") -> float | None:
    """When a released call is published again."""
    score = store.client.redis.zscore(store.keys.build("paused_due"), key)
    return None if score is None else float(score)


def make_due(store: Store, key: str = "m1") -> None:
    """It is overdue."""
    store.client.redis.zadd(store.keys.build("paused_due"), {key: 0}, xx=True)


@contextmanager
def no_memory(store: Store) -> Iterator[None]:
    """The server has no memory left for anything new."""
    redis = store.client.redis
    before = redis.config_get("maxmemory")["maxmemory"]
    redis.config_set("maxmemory", "1mb")
    try:
        yield
    finally:
        redis.config_set("maxmemory", before)
