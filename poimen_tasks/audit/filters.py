"""What a question may say, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poimen_tasks._checks import check_count, check_flag, expected
from poimen_tasks.errors import InvalidArgument
from poimen_tasks.ids import check_label, check_name

__all__ = ["Filters"]

_TEXTS = ("action", "reasoning", "error", "event_type", "workflow_id", "task_id", "actor", "event_id")
_VALUES = ("input", "output", "metadata")
_MOST_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Filters:
    """Which events are wanted: those that all of these leave.

    Attributes:
        types, actors, statuses: one of these; empty: any.
        workflow, task: this one.
        since, until: later, and earlier, than this; neither moment itself.
        text: somewhere in its texts and values, whatever the case.
    """

    types: tuple[str, ...] = ()
    workflow: str | None = None
    task: str | None = None
    actors: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Filters:
        """From the keywords of a question.

        Raises:
            InvalidArgument: a keyword is unknown, or its value has another type; or since is not before until.
            InvalidId: a name or the task id breaks its rule.
        """
        for name in given:
            if name not in _KEYWORDS:
                raise InvalidArgument(f"filter {name!r:.60} is not known; known are {', '.join(_KEYWORDS)}")
        since, until = (_moment(name, given.get(name)) for name in ("since", "until"))
        if since is not None and until is not None and since >= until:
            raise InvalidArgument(
                f"since: expected a moment before until ({until.isoformat()}), got {since.isoformat()}"
            )
        workflow, task = given.get("workflow"), given.get("task")
        return cls(
            types=_names("type", given.get("type")),
            workflow=None if workflow is None else check_name(workflow, "workflow"),
            task=None if task is None else check_label(task, "task"),
            actors=_names("actor", given.get("actor")),
            statuses=_names("status", given.get("status")),
            since=since,
            until=until,
            text=_text(given.get("text")),
        )

    def match(self, event: Mapping[str, Any]) -> bool:
        """Whether an event of the log is wanted."""
        named = (
            (not self.types or event["event_type"] in self.types)
            and (self.workflow is None or event["workflow_id"] == self.workflow)
            and (self.task is None or event["task_id"] == self.task)
            and (not self.actors or event["actor"] in self.actors)
            and (not self.statuses or event["status"] in self.statuses)
        )
        return named and self._in_time(event) and self.match_text(event)

    def _in_time(self, event: Mapping[str, Any]) -> bool:
        if self.since is None and self.until is None:
            return True
        when = datetime.fromisoformat(event["timestamp"])
        return (self.since is None or when > self.since) and (self.until is None or when < self.until)

    def match_text(self, event: Mapping[str, Any]) -> bool:
        """Whether the text stands somewhere in the event."""
        if not self.text:
            return True
        wanted = self.text.casefold()
        if any(wanted in (event.get(name) or "").casefold() for name in _TEXTS):
            return True
        return any(
            wanted in json.dumps(event[name], ensure_ascii=False).casefold() for name in _VALUES if event.get(name)
        )

    @property
    def hint(self) -> bytes:
        """Bytes that every line with the text holds, in lower case; empty where that cannot be said."""
        plain = self.text.isascii() and self.text.isprintable() and not set(self.text) & {'"', "\\"}
        return self.text.lower().encode() if plain else b""

    def options(self, limit: object, *, newest_first: object) -> None:
        """Check what goes with them."""
        if limit is not None:
            check_count("limit", limit)
        check_flag("newest_first", newest_first)


_KEYWORDS = ("type", "workflow", "task", "actor", "status", "since", "until", "text")


def _names(what: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (check_name(value, what),)
    if not isinstance(value, (list, tuple, set, frozenset)) or not value:
        raise expected(what, "a name, or a list of them", value)
    return tuple(check_name(one, what) for one in value)


def _moment(what: str, value: Any) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise expected(what, "an aware datetime", value)
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT:
        raise expected("text", f"a text of 1 to {_MOST_TEXT} characters", value)
    return value
