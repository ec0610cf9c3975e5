"""Speaks the audit stream's protocol as a sealer does, without a log on disk."""

from __future__ import annotations

from typing import Any

from poimen_tasks.store import Store
from poimen_tasks.store.audit_scripts import StreamState

ONE = "one"

__all__ = ["Sealer", "add", "ids", "meta", "register"]


def add(store: Store, count: int = 1, payload: bytes = b"") -> list[str]:
    """Put entries into the stream as a script's include does; returns their ids."""
    key = store.keys.build("audit")
    return [
        store.client.redis.xadd(key, {"t": "test.entry", "h": b"\x80", "d": payload}).decode() for _ in range(count)
    ]


def ids(store: Store) -> list[str]:
    """The ids in the stream."""
    return [entry_id.decode() for entry_id, _ in store.client.redis.xrange(store.keys.build("audit"))]


def meta(store: Store) -> dict[str, str]:
    """The stored fields about the stream and its sealer."""
    found: dict[bytes, bytes] = store.client.redis.hgetall(store.keys.build("audit_meta"))
    return {name.decode(): value.decode() for name, value in found.items()}


def register(store: Store, token: str = ONE, *, home: str = "home", lease: float = 60.0) -> StreamState:
    """Register a sealer."""
    return store.audit.register_sealer(token, who=f"sealer {token}", home=home, lease=lease)


class Sealer:
    """A registered sealer that keeps nothing but its numbers."""

    def __init__(self, store: Store, token: str = ONE, *, home: str = "home", lease: float = 60.0) -> None:
        self.store = store
        self.token = token
        self.state = register(store, token, home=home, lease=lease)
        self.epoch = self.state.epoch
        self.cursor = "0-0"
        self.sealed = 0

    def read(self, count: int = 500, size: int = 1 << 20, **more: Any) -> list[str]:
        """The ids of what comes next."""
        entries, _ = self.store.audit.read_audit(
            self.token, self.epoch, after=self.cursor, count=count, size=size, **more
        )
        return [entry.id for entry in entries]

    def publish(self, read: list[str], *, told: tuple[int, int] = (0, 0), **more: Any) -> StreamState:
        """Say that these are on disk."""
        size, cursor = self.sealed + len(read), read[-1] if read else self.cursor
        request = {"was": self.sealed, "size": size, "root": f"root{size}", "cursor": cursor, "count": len(read)} | more
        state = self.store.audit.publish_sealed(self.token, self.epoch, told=told, **request)
        self.sealed, self.cursor = state.sealed, cursor
        return state
