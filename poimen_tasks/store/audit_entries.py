"""The audit stream as its writers and readers see it: events that are recorded, entries that are not sealed yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poimen_tasks.store.audit_scripts import Entry
from poimen_tasks.store.callers import Callers
from poimen_tasks.store.client import Client

__all__ = ["AuditEntries"]

#: Most events, and about the most bytes, of one call.
_MOST, _MOST_BYTES = 500, 1 << 20


class AuditEntries:
    """Writes and reads entries."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._key = client.keys.build("audit")
        self._meta = client.keys.build("audit_meta")
        self._limit = b"%d" % client.settings.audit_unsealed_limit
        self._callers = Callers()

    def record_event(self, ids: Sequence[str], payloads: Sequence[bytes]) -> list[str]:
        """Write recorded events, up to 500 or a megabyte a call. Returns the stream ids of their entries.

        Args:
            ids: the events' own ids, ASCII, 1 to 128 characters.
            payloads: the events.

        Raises:
            StoreUnavailable: no answer within the connect timeout; the last call's events may be written.
        """
        written: list[str] = []
        for start, stop in _portions(payloads):
            owner, sequence = self._callers.next_call()
            parts: list[bytes] = [owner.encode(), b"%d" % sequence, self._limit]
            for own, payload in zip(ids[start:stop], payloads[start:stop], strict=True):
                parts += (_header(own), payload)
            written += self.client.direct("record_event", *parts).decode().split(" ")
        return written

    def epoch(self, *, patience: float | None = None) -> str:
        """The random id of the stream as it is now; empty while nothing was ever written."""
        value = self.client.read(lambda redis: redis.hget(self._meta, "epoch"), patience=patience)
        return (value or b"").decode()

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


def _header(own: str) -> bytes:
    """A header with the event's id, as msgpack: a map of one short text."""
    data = own.encode("ascii")
    return b"\x81\xa1i\xd9" + bytes((len(data),)) + data


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
