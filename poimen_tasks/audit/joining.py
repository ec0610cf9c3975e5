"""Where a sealer begins: what is on its disk is held against the stream, and what does not fit is said in the log.

The stream holds what is not published yet; whatever the disk has beyond that was sealed, and the sealer died before it
could say so. So each entry of the stream is either among those, or is still to be sealed; and each of those is either
in the stream, or was removed by somebody, or the store lost it: it came back with an older state. The stream's own
count of entries tells the last two apart.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, NamedTuple

from poimen_tasks.audit.lines import head_of
from poimen_tasks.audit.own_events import OwnEvents
from poimen_tasks.audit.segments import read_lines
from poimen_tasks.audit.source import BEGIN, Source, number_of, text_of
from poimen_tasks.errors import SealerConflict
from poimen_tasks.store.audit_scripts import RawEntry, StreamState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from poimen_tasks.audit.lines import Line
    from poimen_tasks.audit.log import SealedLog

__all__ = ["Tail", "join", "refuse_foreign", "refuse_to_begin"]


class Tail(NamedTuple):
    """What the disk has beyond what was published.

    Attributes:
        crcs: the entries of the stream's epoch, as numbers, each with the CRC of its first line's event.
        again: the same for ids that came a second time.
        dropped: how many dropped entries its events tell of.
        vanished: how many vanished entries its events tell of.
    """

    crcs: dict[int, int]
    again: set[tuple[int, int]]
    dropped: int
    vanished: int


class _Found(NamedTuple):
    """The stream up to the last entry on the disk, held against the disk.

    Attributes:
        there: how many entries the stream has there.
        new: those of them that are not on the disk.
        missing: entries on the disk that the stream does not have, in order.
    """

    there: int
    new: list[int]
    missing: list[int]


def refuse_to_begin(directory: Path, state: StreamState) -> None:
    """Make sure that no log is begun for a stream that is sealed elsewhere: what is there would look like a log.

    Raises:
        SealerConflict: it is, and there is none in the directory.
    """
    if (directory / "checkpoint").exists():
        return
    if state.root:
        raise SealerConflict(
            f"{directory}: there is no log, and the stream was sealed up to line {state.sealed:,} in another directory "
            f"(last: {state.who or 'nobody registered'}). Seal there (POIMEN_AUDIT_DIR), or go on without these lines, "
            "`poimen audit seal --fork`"
        )
    if state.alive:
        raise SealerConflict(f"the audit stream has a living sealer: {state.who}; stop that one first")


def refuse_foreign(log: SealedLog, state: StreamState) -> None:
    """Make sure that the log begins with what was published.

    Raises:
        SealerConflict: the stream was sealed elsewhere: this is another log, a copy, or an older backup.
    """
    if not state.root or (log.size >= state.sealed and log.root(state.sealed).hex() == state.root):
        return
    raise SealerConflict(
        f"{log.directory}: the stream was sealed up to line {state.sealed:,}; this log has other lines there or only "
        f"{log.size:,}: it is another log, a copy or an older backup. Seal in the directory that has them (last: "
        f"{state.who or 'nobody registered'}), or go on without them, `poimen audit seal --fork`"
    )


def join(
    log: SealedLog, source: Source, own: OwnEvents, expand: Callable[[RawEntry], list[Line]], *, fork: bool = False
) -> bool:
    """Register, and bring disk and stream together; afterwards everything up to `source.position` is sealed.

    Args:
        log: the log, open.
        source: the stream.
        own: makes the sealer's own lines.
        expand: makes an entry's lines.
        fork: go on in this directory although the stream was sealed elsewhere.

    Returns:
        Whether the directory did fork.

    Raises:
        SealerConflict: another sealer lives, or the stream was sealed elsewhere.
        StoreUnavailable: the server does not answer.
    """
    if not fork:
        refuse_foreign(log, source.look())
    state = source.register()
    forks = _is_foreign(log, state)
    if forks and not fork:
        source.leave()
        refuse_foreign(log, state)
    _Joining(log, source, own, expand).run(forks=forks)
    return forks


def _is_foreign(log: SealedLog, state: StreamState) -> bool:
    try:
        refuse_foreign(log, state)
    except SealerConflict:
        return True
    return False


class _Joining:
    def __init__(
        self, log: SealedLog, source: Source, own: OwnEvents, expand: Callable[[RawEntry], list[Line]]
    ) -> None:
        self._log = log
        self._source = source
        self._own = own
        self._expand = expand
        self._state = source.state

    def run(self, *, forks: bool) -> None:
        log, source, state = self._log, self._source, self._state
        before, is_new = log.cursor, log.cursor is None or log.cursor[0] != state.epoch
        if is_new and not state.root:
            # From here on a crash finds where this epoch begins on the disk.
            source.position = BEGIN
            state = self._state = source.publish(size=log.size, root=log.root(log.size).hex(), count=0, look=True)
        tail = self._read_tail(0 if forks else state.sealed)
        source.told = (max(state.dropped_told, tail.dropped), max(state.vanished_told, tail.vanished))
        top = max([*tail.crcs, number_of(state.cursor or BEGIN)])
        source.position = text_of(top)
        if is_new and before is not None:
            log.append([self._own.epoch(state, before)])
        count, removed = self._reconcile(tail) if tail.crcs else (0, False)
        if forks:
            log.append([self._own.forked(state, source.position, size=log.size)])
        if log.recovered:
            log.append([self._own.recovered(state, source.position, log.recovered)])
            log.recovered = ""
        size = log.seal()
        source.publish(size=size, root=log.root(size).hex(), count=count, look=True, removed=removed)

    def _read_tail(self, start: int) -> Tail:
        state, published = self._state, number_of(self._state.cursor or BEGIN)
        epoch, tail = state.epoch.encode(), Tail({}, set(), 0, 0)
        for _, line in read_lines(self._log.directory, start):
            head = head_of(line)
            if head.place.epoch != epoch:
                continue
            number = (head.place.ms << 64) | head.place.sub
            if number > published and head.place.n == 0 and tail.crcs.setdefault(number, head.crc) != head.crc:
                tail.again.add((number, head.crc))
            if b'"event_type":"audit.unsealed_dropped"' in line:
                tail = tail._replace(dropped=_total(head.event))
            elif b'"event_type":"audit.gap"' in line:
                tail = tail._replace(vanished=_total(head.event))
        return tail

    def _reconcile(self, tail: Tail) -> tuple[int, bool]:
        """Seal what the disk lacks below its last entry; returns what `publish` is told: count and removed."""
        source, state = self._source, self._state
        top = max(tail.crcs)
        if number_of(state.last) < top:  # at once, so that nothing more can come below it
            source.rewind(text_of(top))
        found = self._compare(tail, top)
        vanished = state.added - state.length - state.gone - (state.dropped - state.counted)
        lost = len(found.missing) - vanished if vanished >= 0 else 0
        if lost > 0:  # ids may have been given a second time
            found = self._compare(tail, top, by_content=True)
            lost = len(found.missing) - vanished
        if lost > 0 or found.new:
            self._mark(tail, found, max(0, lost))
            self._seal_new(set(found.new), top)
        if vanished < 0:
            self._log.append([self._own.gap(state, source.position, lost=None, total=state.vanished, until=state.last)])
        return found.there + min(max(0, vanished), len(found.missing)), vanished < 0

    def _compare(self, tail: Tail, top: int, *, by_content: bool = False) -> _Found:
        new, there, missing = list[int](), 0, set(tail.crcs)
        for entry in self._up_to(top):
            number, there = number_of(entry.id), there + 1
            if number not in tail.crcs or (by_content and self._is_another(entry, tail)):
                new.append(number)
            else:
                missing.discard(number)
        return _Found(there, new, sorted(missing))

    def _is_another(self, entry: RawEntry, tail: Tail) -> bool:
        number, crc = number_of(entry.id), zlib.crc32(self._expand(entry)[0].event)
        return tail.crcs[number] != crc and (number, crc) not in tail.again

    def _mark(self, tail: Tail, found: _Found, lost: int) -> None:
        first = min([*found.missing[:1], *found.new[:1]])
        kept = max((number for number in tail.crcs if number < first), default=number_of(self._state.cursor or BEGIN))
        ends = [text_of(found.missing[0]), text_of(found.missing[-1])] if found.missing else ["", ""]
        line = self._own.rollback(self._state, kept=text_of(kept), lost=ends, count=lost, said=len(found.new))
        self._log.append([line])

    def _seal_new(self, new: set[int], top: int) -> None:
        for entry in self._up_to(top):
            if number_of(entry.id) in new:
                self._log.append(self._expand(entry))

    def _up_to(self, top: int) -> Iterator[RawEntry]:
        after, full = self._state.cursor or BEGIN, True
        while full:
            entries, full = self._source.read(after=after, most=text_of(top))
            yield from entries
            if entries:
                after = entries[-1].id


def _total(event: bytes) -> int:
    return int(json.loads(event)["metadata"]["total"])
