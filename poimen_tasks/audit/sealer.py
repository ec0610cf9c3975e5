"""The sealer: it moves the audit stream to the sealed log on disk, each entry once and in order.

A round: read what there is, append it, seal it (it is on the disk then), publish that, which takes it off the stream.
The longer sealing takes, the more the next round finds, so the load sets the size of a round. It may die anywhere: what
is sealed and not published is found at the next start, see `joining.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from poimen_tasks.audit.collecting import rare_collections
from poimen_tasks.audit.expand import expand_lines
from poimen_tasks.audit.joining import join
from poimen_tasks.audit.lines import Line, Lines
from poimen_tasks.audit.own_events import OwnEvents
from poimen_tasks.audit.recorded import recorded_lines
from poimen_tasks.errors import StoreRefused, StoreUnavailable
from poimen_tasks.store.audit_scripts import RawEntry, StreamChanged, StreamState

if TYPE_CHECKING:
    from poimen_tasks.audit.content import ContentStore
    from poimen_tasks.audit.log import SealedLog
    from poimen_tasks.audit.source import Source

__all__ = ["Sealer"]

log = logging.getLogger("poimen.audit")

#: A round takes up to this many entries, bytes of lines and seconds before it seals.
_MOST_ENTRIES = 4000
_MOST_BYTES = 8 << 20
_MOST_SECONDS = 0.05
#: So many times that where more waits than fits: what is late already had better be done with few syncs.
_BEHIND = 5
#: Lines that are expanded, written and hashed at a time.
_AT_ONCE = 1000
#: Seconds from one seal to the next, at least: a disk that syncs all the time is slower for everybody.
_PACE = 0.005
#: Seconds of waiting for an entry, at most: how long a request to stop may go unnoticed.
_WAIT = 0.25
#: Seconds for sealing what is there when the sealer is asked to stop.
_LAST_SECONDS = 3.0
#: Seconds between two tries, and between two words about it, while the server is away.
_AWAY, _SAY = 0.5, 10.0


class Sealer:
    """Seals the stream of one store into one log.

    Args:
        sealed: the log, open.
        content: keeps fields too large for a line.
        source: the stream.
        inline_bytes: how long a field on a line may be, as JSON.
        stopping: asked between rounds; true ends the run.
    """

    def __init__(
        self,
        sealed: SealedLog,
        content: ContentStore,
        source: Source,
        *,
        inline_bytes: int,
        stopping: Callable[[], bool],
    ) -> None:
        self._log = sealed
        self._content = content
        self._source = source
        self._inline = inline_bytes
        self._stopping = stopping
        self._own = OwnEvents(f"s{sealed.size:x}.{time.time_ns() & 0xFFFFFF:x}.")
        self._pending = False
        self._removed = False
        self._sealed_at = float("-inf")
        self.entries = 0

    def join(self, *, fork: bool = False) -> None:
        """Register, and seal what a crash, a rollback or somebody else left behind.

        Raises:
            SealerConflict: another sealer lives, or the stream was sealed elsewhere and `fork` was not given.
            StoreUnavailable: the server does not answer.
        """
        self._log.seal()  # what was read before something went wrong
        if join(self._log, self._source, self._own, self._lines, fork=fork):
            log.warning("the stream was sealed elsewhere; this log goes on without what is there")
        self._tell(self._source.state)

    def run(self, *, once: bool = False) -> None:
        """Seal until asked to stop; with `once` until the stream is empty. Call `join` first.

        Raises:
            AuditDiskError: the disk did not take it; nothing is tried again.
            SealerConflict: another sealer took the stream over.
        """
        with rare_collections():
            self._run(once=once)
        self._end()

    def _run(self, *, once: bool) -> None:
        while not self._stopping():
            try:
                if not self._round() and not self._pending:
                    if once:
                        break
                    self._idle()
            except (StreamChanged, StoreUnavailable, StoreRefused) as error:
                self._join_again(error)

    def _end(self) -> None:
        """Seal what is there at the end, for as long as that is soon done; the rest waits in the stream."""
        deadline = time.monotonic() + _LAST_SECONDS
        try:
            while (self._round() or self._pending) and time.monotonic() < deadline:
                pass
            self._source.leave()
        except (StreamChanged, StoreUnavailable, StoreRefused) as error:
            log.info("not said to the server that this sealer ends: %s", error)

    def _round(self) -> int:
        count = self._take()
        if not count and not self._pending:
            return 0
        size = self._log.seal()
        self._sealed_at, self._pending = time.monotonic(), False
        self._publish(size, count)
        self.entries += count
        return count

    def _take(self) -> int:
        """Append what there is, up to the bounds of a round. Returns how many entries."""
        times = _BEHIND if self._source.state.length > _MOST_ENTRIES else 1
        deadline, count, size, full = time.monotonic() + times * _MOST_SECONDS, 0, 0, True
        while full and count < times * _MOST_ENTRIES and size < times * _MOST_BYTES and time.monotonic() < deadline:
            entries, full = self._source.read(after=self._source.position)
            if entries:
                for lines in self._expand(entries):
                    self._log.append(lines)
                    size += sum(map(len, lines.events))
                self._source.position, count = entries[-1].id, count + len(entries)
        return count

    def _expand(self, entries: list[RawEntry]) -> Iterator[Lines]:
        """The lines of entries, so many at a time as stay in the processor's cache."""
        epoch, recorded = self._source.state.epoch, recorded_lines(entries, self._inline)
        if None not in recorded:
            yield Lines.single(epoch, [entry.id for entry in entries], cast("list[bytes]", recorded))
            return
        lines = Lines.of(())
        for entry, event in zip(entries, recorded, strict=True):
            lines.add(epoch, entry.id, self._events(epoch, entry) if event is None else [event])
            if len(lines.events) >= _AT_ONCE:
                yield lines
                lines = Lines.of(())
        yield lines

    def _lines(self, entry: RawEntry) -> list[Line]:
        """An entry's lines."""
        epoch = self._source.state.epoch
        events = self._events(epoch, entry)
        return [Line(epoch, entry.id, n, n == len(events) - 1, event) for n, event in enumerate(events)]

    def _events(self, epoch: str, entry: RawEntry) -> list[bytes]:
        """The events of an entry; what is too large for a line is kept beside the log first."""
        expanded = expand_lines(epoch, entry.id, entry.fields, inline_bytes=self._inline)
        for data in expanded.blobs.values():
            self._content.put(data)
        # Every entry has a line: the last one is the cursor.
        return expanded.events or [self._own.nothing(epoch, entry.id, entry.fields.get(b"t", b""))]

    def _publish(self, size: int, count: int) -> None:
        removed, self._removed = self._removed, False
        root = self._log.root(size).hex()
        self._tell(self._source.publish(size=size, root=root, count=count, removed=removed))

    def _tell(self, state: StreamState) -> None:
        """Put into the log what the stream lost; it is sealed with the next round."""
        dropped, vanished = self._source.told
        lines, place = list[Line](), self._source.position
        if state.dropped > dropped:
            lines.append(self._own.dropped(state, place, lost=state.dropped - dropped))
        if state.vanished > vanished:
            lost = state.vanished - vanished
            lines.append(self._own.gap(state, place, lost=lost, total=state.vanished, until=state.last))
            log.error("%d audit entries were removed from the stream before they were sealed", lost)
        if state.behind:
            self._removed = True
            lines.append(self._own.gap(state, place, lost=None, total=state.vanished, until=state.last))
            log.error("the audit stream was removed; how many entries were not sealed yet is unknown")
        if lines:
            self._log.append(lines)
            self._source.told, self._pending = (state.dropped, state.vanished), True

    def _idle(self) -> None:
        """Wait for an entry; now and then say that this sealer lives, and look for what vanished."""
        state = self._source.state
        if time.monotonic() - self._sealed_at > state.lease / 3:
            self._sealed_at = time.monotonic()
            self._publish(self._log.size, 0)
            return
        self._source.wait(min(_WAIT, state.lease / 3))
        time.sleep(max(0.0, self._sealed_at + _PACE - time.monotonic()))

    def _join_again(self, error: Exception) -> None:
        """Look at everything anew, as soon as the server is there."""
        log.info("looking at the audit stream anew: %s", error)
        said = time.monotonic()
        while not self._stopping():
            try:
                self.join()
            except (StoreUnavailable, StoreRefused, StreamChanged) as again:
                if time.monotonic() - said > _SAY:
                    said = time.monotonic()
                    log.warning("waiting for the server: %s", again)
                time.sleep(_AWAY)
            else:
                return
