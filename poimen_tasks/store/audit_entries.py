"""The audit stream as its writers and readers see it: events that are recorded, entries that are not sealed yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from poimen_tasks.store.audit_scripts import Entry
from poimen_tasks.store.callers import Callers
from poimen_tasks.store.client import Client, Prepared
from poimen_tasks.store.direct import pack_parts

__all__ = ["AuditEntries"]

#: Most events, and about the most bytes, of one call.
_MOST, _MOST_BYTES = 500, 1 << 20
#: A call in so many, and one after so many seconds, looks at the layout, the epoch and the length of the stream: its
#: bound has room for what comes in between.
_LOOK, _LOOK_SECONDS = 16, 60.0


@dataclass(slots=True)
class _Calls:
    """How the calls of one caller begin, and until when the next look at the stream can wait."""

    many: Prepared
    one: Prepared
    look_at: float = 0.0


class AuditEntries:
    """Writes and reads entries."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._key = client.keys.build("audit")
        self._meta = client.keys.build("audit_meta")
        self._limit = pack_parts(b"%d" % client.settings.audit_unsealed_limit)
        self._callers = Callers(self._calls)

    def record_event(self, own: str, payload: bytes) -> str:
        """Write a recorded event. Returns the stream id of its entry.

        Args:
            own: the event's own id, ASCII, 1 to 128 characters.
            payload: the event.

        Raises:
            StoreUnavailable: no answer within the connect timeout; the event may be written.
        """
        event = _packed(own, payload)
        caller = self._callers.take()
        try:
            calls, sequence = caller.made, caller.next()
            if sequence % _LOOK != 1 and time.monotonic() < calls.look_at:
                number = b"%d" % sequence  # packed here: `pack_parts` would cost a hundredth of the whole call
                reply = self.client.direct(calls.one, 3, b"$%d\r\n%b\r\n%b" % (len(number), number, event)).decode()
                if "-" in reply:
                    return reply
            calls.look_at = time.monotonic() + _LOOK_SECONDS
            return self._record(calls, sequence, 1, event).decode()
        finally:
            self._callers.give_back(caller)

    def record_events(self, ids: Sequence[str], payloads: Sequence[bytes], told: Callable[[list[str]], None]) -> None:
        """Write recorded events, up to 500 or a megabyte a call.

        Args:
            ids: the events' own ids, as there.
            payloads: the events.
            told: gets the stream ids of their entries, in their order, some at a time: while the server is at work on
                the next ones.

        Raises:
            StoreUnavailable: no answer within the connect timeout; the last call's events may be written.
        """
        portions, packed, untold = deque(_portions(payloads)), deque[tuple[int, bytes]](), deque[list[str]]()

        def pack() -> None:
            start, stop = portions.popleft()
            packed.append((stop - start, b"".join(map(_packed, ids[start:stop], payloads[start:stop]))))

        def meanwhile() -> None:
            while untold:
                told(untold.popleft())
            if portions and not packed:
                pack()

        caller = self._callers.take()
        try:
            while portions or packed:
                if not packed:
                    pack()
                reply = self._record(caller.made, caller.next(), *packed.popleft(), meanwhile)
                untold.append(reply.decode().split(" "))
        finally:
            self._callers.give_back(caller)
        meanwhile()

    def _calls(self, owner: str) -> _Calls:
        prepare, build = self.client.prepare, self.client.keys.build
        return _Calls(
            prepare("record_event", build("owner", owner), build("recorder", owner), self._key, self._meta),
            prepare("record_one", build("recorder", owner), self._key),
        )

    def _record(
        self, calls: _Calls, sequence: int, count: int, events: bytes, meanwhile: Callable[[], None] | None = None
    ) -> bytes:
        arguments = pack_parts(b"%d" % sequence) + self._limit + events
        return self.client.direct(calls.many, 2 + 2 * count, arguments, meanwhile)

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


def _packed(own: str, payload: bytes) -> bytes:
    """An event's two arguments: a header with its id, as msgpack (a map of one short text), and the event."""
    size = len(own)
    return b"$%d\r\n\x81\xa1i\xd9%c%b\r\n$%d\r\n%b\r\n" % (
        size + 5, size, own.encode("ascii"), len(payload), payload
    )  # fmt: skip


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
