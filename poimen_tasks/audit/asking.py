"""Questions to the log: `query`, `trail`, `count`, `follow`, `get`, `content`.

Where the log's directory is at hand, what is sealed comes by the index, and what waits in the stream to be sealed comes
from there; elsewhere all comes from the stream, which has only what is not sealed yet. Every answer says its source.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poimen_tasks._checks import check_count, expected
from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.event import AuditEvent
from poimen_tasks.audit.filters import Filters
from poimen_tasks.audit.index import AuditIndex
from poimen_tasks.audit.looking import AuditPage, Look
from poimen_tasks.audit.numbers import AuditStats, Tally
from poimen_tasks.audit.place import check_place
from poimen_tasks.audit.sealed import Sealed
from poimen_tasks.audit.segments import segments_in
from poimen_tasks.audit.unsealed import START, Place, Unsealed
from poimen_tasks.errors import SettingsError, StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from poimen_tasks.settings import Settings
    from poimen_tasks.store import Store
    from poimen_tasks.store.audit_scripts import StreamState

__all__ = ["Asking", "AuditPage"]

_PAGE = 500
#: Fields that may be kept by digest.
_LARGE = ("reasoning", "input", "output", "error", "metadata")
_NAMED = 10_000
_POLL = 0.5


def _place_of(event: AuditEvent, field: str) -> Mapping[str, Any] | None:
    """Where a field is kept; None: on the line itself.

    Raises:
        InvalidArgument: somebody made the event, and not as the log does.
    """
    if not isinstance(event.content, Mapping):
        raise expected("content", "a dict of places by field", event.content)
    place: Any = event.content.get(field)
    if place is None:
        return None
    if isinstance(place, Mapping) and isinstance(place.get("sha256"), str):
        return place
    raise expected(f"content[{field!r}]", '{"sha256": <64 hex digits>, ...}, as an event of the log has it', place)


class Asking:
    """The reading half of the audit log."""

    def __init__(self, load_settings: Callable[[], Settings], store: Callable[[], Store] | None) -> None:
        self._load_settings = load_settings
        self._open_store = store

    @property
    def directory(self) -> Path:
        """Where the log is sealed, by the settings."""
        return self._load_settings().audit_dir

    def query(
        self, *, limit: int | None = 1000, after: str | None = None, newest_first: bool = False, **filters: Any
    ) -> AuditPage:
        """Events that all filters leave, in the order of the log.

        Args:
            limit: most events to return; None is no limit.
            after: the `cursor` of the page before; or `"start"`: before everything.
            newest_first: from the end of the log backwards.
            **filters: any of `type`, `actor`, `status` (a name, or a list of names), `workflow`, `task` (the task id:
                an item's own, or else its id), `since`, `until` (aware datetimes; events strictly between them),
                `text` (stands somewhere in the event, whatever the case; the slowest of them: it looks at every line
                that the others leave).

        Raises:
            InvalidArgument: a filter is unknown, has a value of another type, or since is not before until.
            InvalidId: a name or the task id breaks its rule.
            AuditCorrupt: a line of the sealed log cannot be read; it is named.
            AuditUnavailable: the log's directory cannot be read.
            StoreUnavailable: there is no sealed log at hand, and Redis does not answer.
        """
        wanted = Filters.read(filters)
        wanted.options(limit, newest_first=newest_first)
        start = None if after is None else Place.read(after)
        with self._sealed() as sealed:
            look = Look(sealed, self._unsealed(sealed), wanted, limit)
            return look.back(start) if newest_first else look.forth(start)

    def trail(self, workflow: str | None = None, **filters: Any) -> Iterator[AuditEvent]:
        """Every event, of a workflow or of all, oldest first; read as far as it is consumed.

        Raises:
            PoimenError: as `query`.
        """
        if workflow is not None:
            filters["workflow"] = workflow
        Filters.read(filters)  # an option of `query` is no filter
        page = self.query(limit=_PAGE, **filters)
        return self._pages(page, filters)

    def _pages(self, page: AuditPage, filters: dict[str, Any]) -> Iterator[AuditEvent]:
        while True:
            yield from page
            if not page.more:
                return
            page = self.query(limit=_PAGE, after=page.cursor, **filters)

    def count(self, **filters: Any) -> int:
        """How many events all filters leave; of what `query` takes, sealed or not.

        Raises:
            PoimenError: as `query`.
        """
        wanted = Filters.read(filters)
        with self._sealed() as sealed:
            return Look(sealed, self._unsealed(sealed), wanted, None).count()

    def follow(
        self, *, after: str | None = None, stop: Callable[[], bool] | None = None, **filters: Any
    ) -> Iterator[AuditEvent]:
        """Events as they are written, for ever.

        Args:
            after: the `cursor` of a page: from there; `"start"`: from the first event on; None: from now on.
            stop: asked about twice a second; True ends it.
            **filters: as `query`.

        Raises:
            PoimenError: as `query`.
        """
        Filters.read(filters)
        if after is not None:
            Place.read(after)
        if stop is not None and not callable(stop):
            raise expected("stop", "a callable without arguments, or None", stop)
        cursor = after if after is not None else self.query(limit=1, newest_first=True).newest or START
        return self._follow(cursor, stop, filters)

    def _follow(
        self, cursor: str | None, stop: Callable[[], bool] | None, filters: dict[str, Any]
    ) -> Iterator[AuditEvent]:
        while stop is None or not stop():
            page = self.query(limit=_PAGE, after=cursor, **filters)
            yield from page
            cursor = page.cursor or cursor
            if not page:
                self._await(cursor)

    def _await(self, cursor: str | None) -> None:
        """Wait for the next entry, or a little."""
        place = None if cursor is None else Place.read(cursor)
        if self._open_store is None or place is None or place.id is None:
            time.sleep(_POLL)
            return
        try:
            self._open_store().audit.await_audit(place.id, seconds=_POLL)
        except (StoreUnavailable, StoreRefused):
            time.sleep(_POLL)

    def get(self, event_id: str) -> AuditEvent | None:
        """The event with an id; None when there is none. Of several under one id, which users may do, the first."""
        if not isinstance(event_id, str) or not event_id:  # type: ignore[redundant-expr]
            raise expected("event_id", "a text", event_id)
        with self._sealed() as sealed:
            unsealed = self._unsealed(sealed)
            waiting = None if unsealed is None else unsealed.by_id(event_id)
            # What was sealed meanwhile is found there.
            sealed.refresh()
            found = sealed.by_id(event_id)
            if found is not None or waiting is None:
                return found
            return AuditEvent.from_dict(waiting)

    def line(self, sequence: int) -> AuditEvent | None:
        """The event on a line of the sealed log; None when there is no such line, or it repeats an earlier one.

        Raises:
            PoimenError: as `query`.
        """
        check_count("sequence", sequence, least=0)
        with self._sealed() as sealed:
            return sealed.by_seq(sequence)

    def stats(self) -> AuditStats:
        """How much the log holds, and of what.

        Raises:
            PoimenError: as `query`.
        """
        with self._sealed() as sealed:
            state = self._describe(required=not sealed.there)
            known: dict[str, Any] = {}
            if state is not None:
                known = {"waiting": state.length, "dropped": state.dropped, "vanished": state.vanished}
            if sealed.there:
                segments, (first, last) = segments_in(self.directory), sealed.times()
                known |= {"sealed": sealed.end, "segments": len(segments), "bytes": sum(one.size for one in segments)}
                tally, source = Tally(sealed.facets()), "index"
            else:
                events = list(self.query(limit=None))
                moments = [event.timestamp for event in events if event.timestamp is not None]
                first, last = min(moments, default=None), max(moments, default=None)
                tally, source = Tally((event.event_type, event.actor, event.status, 1) for event in events), "stream"
        return AuditStats(
            source=source, events=tally.events, types=tally.types, actors=tally.actors, statuses=tally.statuses,
            first=first, last=last, **known,
        )  # fmt: skip

    def names(self) -> Tally:
        """Types, actors and statuses: all of the sealed log, and those of the newest 10,000 events that wait.

        Raises:
            PoimenError: as `query`.
        """
        with self._sealed() as sealed:
            unsealed = self._unsealed(sealed)
            waiting = () if unsealed is None else islice(unsealed.back(None), _NAMED)
            rows = [(one.event["event_type"], one.event["actor"], one.event["status"], 1) for one in waiting]
            return Tally(rows + sealed.facets() if sealed.there else rows)

    def rebuild_index(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Make the index again from the lines. Returns how many there are.

        Args:
            progress: told now and then how many lines are in, of how many.

        Raises:
            AuditCorrupt: a line of the log cannot be read; it is named.
            AuditUnavailable: there is no log, it cannot be read, or another process keeps the index.
        """
        if progress is not None and not callable(progress):
            raise expected("progress", "a callable of two numbers, or None", progress)
        check_place(self.directory)
        index = AuditIndex.open(self.directory)
        try:
            return index.rebuild(progress)
        finally:
            index.close()

    def _describe(self, *, required: bool) -> StreamState | None:
        """The stream's state; None where there is no server that answers."""
        if self._open_store is None:
            return None
        try:
            return self._open_store().audit.describe_audit(patience=None if required else 0.0)
        except (StoreUnavailable, StoreRefused, SettingsError):
            if required:
                raise
            return None

    def content(self, event: AuditEvent, field: str) -> Any:
        """A field of an event in full, also when it is kept by digest beside the log.

        Raises:
            InvalidArgument: there is no such field, or `event.content` has not the form that the log gives it.
            AuditCorrupt: what is kept under the digest was changed.
            AuditUnavailable: it is not in the log's directory, or cannot be read.
        """
        if not isinstance(event, AuditEvent):
            raise expected("event", "an AuditEvent", event)
        if not isinstance(field, str) or field not in _LARGE:  # type: ignore[redundant-expr]
            raise expected("field", f"one of {', '.join(_LARGE)}", field)
        place = _place_of(event, field)
        if place is None:
            return getattr(event, field)
        data = ContentStore(self.directory).get(place["sha256"])
        try:
            return data.decode("utf-8") if place.get("type") == "text" else json.loads(data)
        except (ValueError, RecursionError):  # what is kept is whole: the event says wrongly what it is
            raise expected(f"content[{field!r}]", "the place of a text or of JSON", dict(place)) from None

    def _sealed(self) -> Sealed:
        directory = self.directory
        check_place(directory)
        return Sealed(directory)

    def _unsealed(self, sealed: Sealed) -> Unsealed | None:
        """The stream behind what is sealed; None where there is a sealed log and no store that answers."""
        if self._open_store is None:
            return None
        try:
            return Unsealed.open(self._open_store().entries, sealed.edge(), patience=0.0 if sealed.there else None)
        except (StoreUnavailable, StoreRefused, SettingsError):  # of settings: no Redis is named
            if not sealed.there:
                raise
            return None
