"""`AuditEvent`: one thing that happened, as it stands on a line of the log; and what may stand in one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import repeat
from json.encoder import encode_basestring_ascii as _quote
from operator import attrgetter
from typing import Any, NoReturn

from poimen_tasks._checks import expected
from poimen_tasks.audit.plain import plain_json, plain_text
from poimen_tasks.errors import InvalidArgument
from poimen_tasks.ids import check_label, check_name

__all__ = ["RESERVED", "AuditEvent", "check_type", "event_of", "fill_in", "filled", "iso", "moment_of", "pack_event"]

#: First words of the types that the system itself writes: nobody else may, or its word would be no evidence.
RESERVED = frozenset(
    (
        "audit", "batch", "cache", "call", "callback", "fleet", "item", "keeper", "keys", "lane", "pauses", "scope",
        "slots", "snapshot", "store", "ticket", "tracker", "worker", "workflow",
    )
)  # fmt: skip

_MOST_ACTION = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Milliseconds to the end of the year 9999.
_LAST = 253_402_300_799_999


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One event of the audit log.

    Attributes:
        event_id: its own id; empty: one is made when it is recorded.
        event_type: what kind of event, e.g. `planner_decision` or `item.finished`; a name.
        workflow: the workflow that it is about, if any.
        task: the task id: an item's `task_id`, by default its id.
        actor: who did it; a name.
        timestamp: when, aware; None: the store's time when it is recorded.
        action: what was done, in words.
        reasoning: why, in words; may be long and have lines.
        input, output: plain values, as JSON carries them.
        status: `success`, `failure`, or another name.
        error: what went wrong, in words.
        metadata: anything else, plain values by name.
        content: fields that were too large for a line and are kept by digest beside the log: field to
            `{"sha256": ..., "bytes": ...}`. Empty in an event that is to be recorded.
        sequence: the number of its line in the sealed log; None while it is not sealed.
    """

    event_id: str = ""
    event_type: str
    workflow: str | None = None
    task: str | None = None
    actor: str
    timestamp: datetime | None = None
    action: str
    reasoning: str = ""
    input: Any = None
    output: Any = None
    status: str = "success"
    error: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sequence: int | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names that stand in the log: `workflow_id`, `task_id`, the timestamp as ISO text."""
        values = {
            "event_id": self.event_id,
            "event_type": self.event_type,
            "workflow_id": self.workflow,
            "task_id": self.task,
            "actor": self.actor,
            "timestamp": None if self.timestamp is None else iso(self.timestamp),
            "action": self.action,
            "reasoning": self.reasoning,
            "input": self.input,
            "output": self.output,
            "status": self.status,
            "error": self.error,
            "metadata": dict(self.metadata),
        }
        if self.content:
            values["content"] = {name: dict(place) for name, place in self.content.items()}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, sequence: int | None = None) -> AuditEvent:
        """The event that a line of the log, read as JSON, tells of.

        Raises:
            InvalidArgument: it is none: no dict, without an id or a type, or with a timestamp that is none.
        """
        try:
            when = values.get("timestamp")
            return cls(
                event_id=values["event_id"],
                event_type=values["event_type"],
                workflow=values.get("workflow_id"),
                task=values.get("task_id"),
                actor=values.get("actor") or "",
                timestamp=None if when is None else datetime.fromisoformat(when),
                action=values.get("action") or "",
                reasoning=values.get("reasoning") or "",
                input=values.get("input"),
                output=values.get("output"),
                status=values.get("status") or "",
                error=values.get("error"),
                metadata=values.get("metadata") or {},
                content=values.get("content") or {},
                sequence=sequence,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            allowed = "the dict of an event, with event_id, event_type and an ISO 8601 timestamp"
            raise expected("values", allowed, values) from None


def fill_in(event: AuditEvent, own: str, stream_id: str) -> AuditEvent:
    """Give an event that nobody has seen yet its id, and the time of its entry where it has none; returns it.

    Args:
        event: what was recorded; it is changed, though to everybody else it is frozen.
        own: its id.
        stream_id: the entry's.
    """
    _SET(_EVENT_ID, event, own)
    if event.timestamp is None:
        _SET(_TIMESTAMP, event, moment_of(stream_id))
    return event


def moment_of(stream_id: str) -> datetime:
    """When an entry was added: its id says so. Somebody may have given one beyond all calendars: the last day then."""
    return _moment(stream_id.partition("-")[0])


@lru_cache(16)  # what is recorded in bulk comes at one time
def _moment(milliseconds: str) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(_LAST, int(milliseconds)))


def filled(event: AuditEvent, own: str, stream_id: str) -> AuditEvent:
    """A copy of an event with its id, and the time of its entry where it has none."""
    return fill_in(event_of(_values(event)), own, stream_id)


def event_of(values: Iterable[Any]) -> AuditEvent:
    """An event of its values in the order of the fields; the class itself takes three times as long."""
    made = _NEW(AuditEvent)
    any(map(_SET, _SLOTS, repeat(made), values))  # each returns None
    return made


_NEW = object.__new__
_NAMES = tuple(one.name for one in fields(AuditEvent))
_SLOTS: Any = tuple(getattr(AuditEvent, name) for name in _NAMES)
_EVENT_ID, _TIMESTAMP = (_SLOTS[_NAMES.index(name)] for name in ("event_id", "timestamp"))
_SET: Any = type(_SLOTS[0]).__set__
_values = attrgetter(*_NAMES)


def iso(moment: datetime) -> str:
    """A moment as the log writes it: UTC, always with microseconds, so that texts sort as moments do."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def check_type(value: object) -> str:
    """The type of an event that a user records.

    Raises:
        InvalidId: it breaks the rule of names.
        InvalidArgument: its first word is one of the system's own.
    """
    name = check_name(value, "event_type")
    word = name.partition(".")[0]
    if word in RESERVED and word != name:
        raise InvalidArgument(
            f"event_type: {name!r} begins like one of the system's own events ({word}.…); choose another first word"
        )
    return name


def _names(kind: object, workflow: object, actor: object, status: object) -> tuple[str, str, str]:
    """The parts of an event that its names make up. Names are ASCII without quotes: they stand as they are."""
    about = "null" if workflow is None else f'"{check_name(workflow, "workflow")}"'
    return (
        f'{{"event_type":"{check_type(kind)}","workflow_id":{about},"task_id":',
        f',"actor":"{check_name(actor, "actor")}","timestamp":',
        f',"status":"{check_name(status, "status")}"',
    )


_known_names = lru_cache(4096)(_names)


def pack_event(event: AuditEvent, *, most: int) -> bytes:
    """Check an event that is to be recorded, and write it as the stream keeps it: strict JSON without its id.

    Args:
        event: what to record.
        most: bytes that it may take.

    Raises:
        InvalidArgument: it is no event, a part has another type than it may have, or it is over `most` bytes.
        InvalidId: a name or label breaks its rule.
        SerializationError: a value has no place in JSON, such as bytes, NaN or a key that is no text; it is named.
    """
    if not isinstance(event, AuditEvent):
        raise expected("event", "an AuditEvent", event)
    if event.event_id != "":
        check_name(event.event_id, "event_id")
    if event.content:
        raise expected(
            "content", "nothing in an event to be recorded; read its fields with `audit.content`", event.content
        )
    kind, workflow, actor, status = names = (event.event_type, event.workflow, event.actor, event.status)
    # Nearly always the same few; what is no plain text may be no key.
    known = type(kind) is type(actor) is type(status) is str and (workflow is None or type(workflow) is str)
    begin, middle, end = (_known_names if known else _names)(*names)
    task, timestamp, error, action, reasoning = event.task, event.timestamp, event.error, event.action, event.reasoning
    if not (type(action) is type(reasoning) is str and action.isascii() and reasoning.isascii()):
        action, reasoning = plain_text(action, "action"), plain_text(reasoning, "reasoning")
    if not 0 < len(action) <= _MOST_ACTION:
        raise InvalidArgument(f"action: expected a text of 1 to {_MOST_ACTION:,} characters, got {len(action):,}")
    text = (
        f"{begin}{'null' if task is None else _quote(check_label(task, 'task'))}"
        f"{middle}{'null' if timestamp is None else _check_moment(timestamp)}"
        f',"action":{_quote(action)},"reasoning":{_quote(reasoning)}'
        f',"input":{"null" if event.input is None else plain_json(event.input, "input")}'
        f',"output":{"null" if event.output is None else plain_json(event.output, "output")}'
        f'{end},"error":{"null" if error is None else _quote(plain_text(error, "error"))}'
        f',"metadata":{_check_metadata(event.metadata)}}}'
    )
    if len(text) > most:
        _too_large(event, len(text), most)
    return text.encode("ascii")


def _too_large(event: AuditEvent, size: int, most: int) -> NoReturn:
    values = event.to_dict()
    sizes = {
        name: len(json.dumps(values[name], default=str))
        for name in ("reasoning", "input", "output", "error", "metadata")
    }
    largest = max(sizes, key=lambda name: sizes[name])
    raise InvalidArgument(
        f"event: {size:,} bytes, allowed are at most {most:,} (POIMEN_AUDIT_MAX_BYTES); the largest part is {largest}, "
        f"{sizes[largest]:,} bytes: store it elsewhere and record its place"
    )


def _check_moment(value: object) -> str:
    if not isinstance(value, datetime):
        raise expected("timestamp", "an aware datetime", value)
    if value.utcoffset() is None:
        raise InvalidArgument(f"timestamp: expected an aware datetime, got the naive {value.isoformat()}")
    try:
        return f'"{iso(value)}"'
    except OverflowError:
        raise expected("timestamp", "a moment that UTC can say", value) from None


def _check_metadata(value: object) -> str:
    if type(value) is not dict and not isinstance(value, Mapping):  # the second look takes ten times as long
        raise expected("metadata", "a dict", value)
    return plain_json(value, "metadata") if value else "{}"
