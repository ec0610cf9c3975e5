"""The audit stream as its writers and readers see it: events that are recorded, entries that are not sealed yet."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.client import Client

__all__ = ["AuditEntries", "Entry", "StreamState"]

#: Most events, and about the most bytes, of one call.
_MOST, _MOST_BYTES = 500, 1 << 20


class Entry(NamedTuple):
    """One entry: its id and its fields."""

    id: str
    fields: Mapping[bytes, bytes]


class StreamState(NamedTuple):
    """What is known of the stream.

    Attributes:
        epoch: the random id of this stream; empty while nothing was ever written.
        length: entries in it.
        dropped: entries that left it unsealed.
        sealed_by: the sealer that is registered, empty for none.
    """

    epoch: str
    length: int
    dropped: int
    sealed_by: str


class AuditEntries:
    """Writes and reads entries."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._key = client.keys.build("audit")
        self._meta = client.keys.build("audit_meta")
        self._bounds = {"unsealed": client.settings.audit_unsealed_limit}
        self._callers = threading.local()

    def record_event(
        self, ids: Sequence[str], payloads: Sequence[bytes], *, patience: float | None = None
    ) -> list[str]:
        """Write recorded events, up to 500 or a megabyte a call. Returns the stream ids of their entries.

        Raises:
            StoreUnavailable: no answer within `patience` seconds; the last call's events may be written.
        """
        written: list[str] = []
        for start, stop in _portions(payloads):
            # One owner a thread, not one a call: what the store keeps for a retry does not grow with what is recorded.
            owner, sequence = self._next_call()
            reply = self.client.call(
                "record_event",
                {"ids": list(ids[start:stop]), **self._bounds},
                owner=owner,
                sequence=sequence,
                payloads=tuple(payloads[start:stop]),
                patience=patience,
            )
            written += [made.decode() for made in reply[b"ids"]]
        return written

    def _next_call(self) -> tuple[str, int]:
        mine, pid = self._callers, os.getpid()
        if getattr(mine, "pid", None) != pid:  # a forked child is another caller
            mine.pid, mine.owner, mine.sequence = pid, os.urandom(8).hex(), 0
        mine.sequence += 1
        return mine.owner, mine.sequence

    def state(self, *, patience: float | None = None) -> StreamState:
        """Epoch, length and counters, in one round trip."""

        def ask(redis: Any) -> Any:
            pipeline = redis.pipeline(transaction=False)
            pipeline.hmget(self._meta, "epoch", "dropped", "sealer")
            pipeline.xlen(self._key)
            return pipeline.execute()

        (epoch, dropped, sealer), length = self.client.read(ask, patience=patience)
        return StreamState((epoch or b"").decode(), length, int(dropped or 0), (sealer or b"").decode())

    def after(self, stream_id: str, *, count: int = 500, patience: float | None = None) -> list[Entry]:
        """The oldest entries behind an id (`0-0`: from the first)."""
        rows = self.client.read(
            lambda redis: redis.xrange(self._key, f"({stream_id}", "+", count=count), patience=patience
        )
        return _entries(rows)

    def before(
        self, stream_id: str = "", *, least: str = "", count: int = 500, patience: float | None = None
    ) -> list[Entry]:
        """The newest entries before an id (empty: from the last), newest first, all behind `least`."""
        top, bottom = (f"({stream_id}" if stream_id else "+"), (f"({least}" if least else "-")
        rows = self.client.read(lambda redis: redis.xrevrange(self._key, top, bottom, count=count), patience=patience)
        return _entries(rows)

    def get(self, stream_id: str) -> Entry | None:
        """The entry with an id."""
        rows = self.client.read(lambda redis: redis.xrange(self._key, stream_id, stream_id, count=1))
        return next(iter(_entries(rows)), None)

    def wait(self, stream_id: str, *, seconds: float) -> bool:
        """Wait until there is an entry behind an id, at most some seconds. True when there is."""
        within = max(1, int(min(seconds, 0.5 * self.client.settings.socket_timeout) * 1000))
        return bool(self.client.read(lambda redis: redis.xread({self._key: stream_id}, count=1, block=within)))


def _entries(rows: Any) -> list[Entry]:
    return [Entry(name.decode(), fields) for name, fields in rows]


def _portions(payloads: Sequence[bytes]) -> list[tuple[int, int]]:
    """Where each call begins and ends."""
    cuts, size, start = [], 0, 0
    for at, payload in enumerate(payloads):
        if at > start and (at - start >= _MOST or size + len(payload) > _MOST_BYTES):
            cuts.append((start, at))
            start, size = at, 0
        size += len(payload)
    return [*cuts, (start, len(payloads))] if payloads else []
