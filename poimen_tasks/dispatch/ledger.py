"""What a report knows of a batch: outcome blobs as they came, and 13 bytes of columns for each item.

Results stay encoded until somebody asks, because a million of them as Python objects take hundreds of megabytes.
When an item has more than one outcome, as after `retry_failed`, the newest one counts.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from itertools import compress
from typing import Any

from poimen_tasks.dispatch.outcomes import STATUSES, cursor_start, decode_blob, queue_waits, start_times
from poimen_tasks.dispatch.spread import spread
from poimen_tasks.model import ItemStatus, Outcome
from poimen_tasks.store.outcome_blob import OutcomeColumns, decode_outcomes
from poimen_tasks.store.ranges import expand_ranges

__all__ = ["Ledger"]

_STATUS, _RAN, _CACHED, _OPEN = 3, 4, 8, 255
"""The byte of an item: its status, whether its body ran, whether the cache answered; or that it has no outcome."""
_DECODED = 64
"""Entries kept decoded: more than lanes that finish at one time, so that reading in item order decodes each once."""


class Ledger:
    """Collects the outcome blobs of a batch in the order of their ordinals.

    Attributes:
        first_start: when the first body began, seconds since 1970; None when none did.
        last_finish: when the last body ended; None when none did.
        total_task_time: seconds in all bodies.
        total_queue_wait: seconds that items waited, ready to run.
        total_attempts: runs of all items that have an outcome.
    """

    def __init__(self) -> None:
        self.first_start: float | None = None
        self.last_finish: float | None = None
        self.total_task_time = 0.0
        self.total_queue_wait = 0.0
        self.total_attempts = 0
        self._data = bytearray()
        self._ends = array("Q", [0])
        self._ordinals = array("L")
        self._flags = bytearray()
        self._entries = array("I")
        self._durations = array("f")
        self._waits = array("f")
        self._retried: dict[int, int] = {}
        self._has_ids = False
        self._places: dict[str, int] | None = None
        self._decoded: OrderedDict[int, dict[int, Outcome[Any]]] = OrderedDict()

    def __len__(self) -> int:
        """Positions seen so far; those below it that have no outcome yet count too."""
        return len(self._flags)

    @property
    def size(self) -> int:
        """Bytes of the outcomes as they came."""
        return len(self._data)

    # --- collecting ----------------------------------------------------------------------------------------------

    def add(self, ordinal: int, blob: bytes) -> int:
        """Take one stream entry.

        Args:
            ordinal: its ordinal; entries come in ascending order.
            blob: its field `b`.

        Returns:
            How many items it held.

        Raises:
            SerializationError: the bytes are not an outcome blob.
        """
        columns = decode_outcomes(blob)
        if columns is None:
            return 0
        entry = len(self._ordinals)
        self._ordinals.append(ordinal)
        self._data += blob
        self._ends.append(len(self._data))
        self._has_ids = self._has_ids or columns.ids is not None
        self._places = None
        return self._take(entry, columns)

    def _take(self, entry: int, columns: OutcomeColumns) -> int:
        ranges = list(zip(columns.ranges[::2], columns.ranges[1::2], strict=True))
        count = sum(hi - lo for lo, hi in ranges)
        durations, waits = self._times(columns, count)
        flags = _flags_of(columns, count)
        attempts = columns.attempts or [1] * count
        place = 0
        for lo, hi in ranges:
            upto = place + hi - lo
            self._make_room(hi)
            self._forget(lo, hi)
            self._flags[lo:hi] = flags[place:upto]
            self._entries[lo:hi] = array("I", [entry]) * (hi - lo)
            self._durations[lo:hi] = durations[place:upto]
            self._waits[lo:hi] = waits[place:upto]
            if columns.attempts is not None:
                self._retried.update((lo + i, n) for i, n in enumerate(attempts[place:upto]) if n != 1)
            place = upto
        self.total_attempts += sum(attempts)
        return count

    def _times(self, columns: OutcomeColumns, count: int) -> tuple[array[float], array[float]]:
        started = start_times(columns)
        if started is None:
            nothing = array("f", bytes(4 * count))
            return nothing, nothing
        durations = [max(0, micros) * 1e-6 for micros in columns.durations or [0] * count]
        waits = queue_waits(columns, started)
        self.total_task_time += sum(durations)
        self.total_queue_wait += sum(waits)
        first, last = min(started), max(map(float.__add__, started, durations))
        self.first_start = first if self.first_start is None else min(first, self.first_start)
        self.last_finish = last if self.last_finish is None else max(last, self.last_finish)
        return array("f", durations), array("f", waits)

    def _make_room(self, size: int) -> None:
        missing = size - len(self._flags)
        if missing > 0:
            self._flags += bytes((_OPEN,)) * missing
            for column in (self._entries, self._durations, self._waits):
                column.frombytes(bytes(column.itemsize * missing))

    def _forget(self, lo: int, hi: int) -> None:
        """Take the older outcomes of these items out of the sums."""
        if self._flags.count(_OPEN, lo, hi) == hi - lo:
            return
        self.total_task_time -= sum(self._durations[lo:hi])
        self.total_queue_wait -= sum(self._waits[lo:hi])
        for position in range(lo, hi):
            if self._flags[position] != _OPEN:
                self.total_attempts -= self._retried.pop(position, 1)

    # --- looking -------------------------------------------------------------------------------------------------

    def count(self, status: ItemStatus) -> int:
        """Items whose outcome has this status."""
        number = STATUSES.index(status)
        return sum(self._flags.count(number | more) for more in (0, _RAN, _CACHED, _RAN | _CACHED))

    def cached(self) -> int:
        """Items that the cache answered."""
        return sum(self._flags.count(number | _CACHED | ran) for number in range(len(STATUSES)) for ran in (0, _RAN))

    def ran(self) -> int:
        """Items whose body ran."""
        return self._flags.translate(_RAN_ONLY).count(1)

    def durations(self) -> dict[str, float]:
        """Least, most and percentiles of the seconds in the body, of the items that ran; keys are `RANKS`."""
        return spread(self._durations, self._flags.translate(_RAN_ONLY))

    def queue_waits(self) -> dict[str, float]:
        """The same of the seconds that those items had waited."""
        return spread(self._waits, self._flags.translate(_RAN_ONLY))

    def lanes(self) -> int:
        """The most lanes seen at work at one time: the entries whose times overlap."""
        events: list[tuple[float, int]] = []
        for entry in range(len(self._ordinals)):
            columns = decode_outcomes(self._blob(entry))
            started = start_times(columns) if columns else None
            if columns and started:
                ends = map(float.__add__, started, [micros * 1e-6 for micros in columns.durations or ()])
                events += ((min(started), 1), (max(ends), -1))
        live = most = 0
        for _, change in sorted(events):
            live += change
            most = max(most, live)
        return most

    def positions(self, status: ItemStatus) -> Iterator[int]:
        """Positions of the items with this status, ascending."""
        wanted = bytes(flag != _OPEN and STATUSES[flag & _STATUS] is status for flag in range(256))
        return compress(range(len(self._flags)), self._flags.translate(wanted))

    def status(self, position: int) -> ItemStatus | None:
        """How an item ended; None when it has no outcome or there is no such position."""
        flag = self._flags[position] if 0 <= position < len(self._flags) else _OPEN
        return None if flag == _OPEN else STATUSES[flag & _STATUS]

    def outcome(self, position: int) -> Outcome[Any]:
        """The newest outcome of an item that has one."""
        return self._entry(self._entries[position])[position]

    def ordinal(self, position: int) -> int:
        """The ordinal of the newest outcome of an item that has one."""
        return int(self._ordinals[self._entries[position]])

    def outcomes(self, status: ItemStatus) -> Iterator[Outcome[Any]]:
        """The newest outcomes of the items with this status, in item order."""
        last, decoded = -1, _NOTHING
        for position in self.positions(status):
            entry = self._entries[position]
            if entry != last:
                last, decoded = entry, self._entry(entry)
            yield decoded[position]

    def item_id(self, position: int) -> str:
        """The id of an item that has an outcome."""
        return self.outcome(position).item_id if self._has_ids else str(position)

    def position(self, item_id: str) -> int | None:
        """The position of an item that has an outcome; None when no such item has one."""
        if not self._has_ids:
            number = int(item_id) if item_id.isascii() and item_id.isdecimal() else -1
            return number if str(number) == item_id and self.status(number) else None
        if self._places is None:
            done = compress(range(len(self._flags)), self._flags.translate(_HAS_OUTCOME))
            self._places = {self.item_id(place): place for place in done}
        return self._places.get(item_id)

    def _blob(self, entry: int) -> bytes:
        return bytes(self._data[self._ends[entry] : self._ends[entry + 1]])

    def _entry(self, entry: int) -> dict[int, Outcome[Any]]:
        """A stream entry, decoded: position → outcome."""
        found = self._decoded.get(entry)
        if found is None:
            blob = self._blob(entry)
            columns = decode_outcomes(blob)
            positions = expand_ranges(columns.ranges) if columns else ()
            found = dict(zip(positions, decode_blob(blob, cursor_start(self._ordinals[entry])), strict=True))
            self._decoded[entry] = found
            if len(self._decoded) > _DECODED:
                self._decoded.popitem(last=False)
        else:
            self._decoded.move_to_end(entry)
        return found


_NOTHING: dict[int, Outcome[Any]] = {}
_RAN_ONLY = bytes(flag != _OPEN and bool(flag & _RAN) for flag in range(256))
_HAS_OUTCOME = bytes(flag != _OPEN for flag in range(256))


def _flags_of(columns: OutcomeColumns, count: int) -> bytearray:
    ran = 0 if columns.starts is None else _RAN
    if columns.statuses is None:
        flags = bytearray((ran,)) * count
    else:
        flags = bytearray(status | ran for status in columns.statuses)
    for i in columns.cached or ():
        flags[i] |= _CACHED
    return flags
