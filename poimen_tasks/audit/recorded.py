"""What `audit.record` wrote, as a line at once: such entries may come by the ten thousand a second.

The payload is a client's own JSON, without its id and mostly without its time. Where it has the form that a client of
ours writes, and only there, its bytes stay as they are and the two are put in; anything else takes the long way, which
takes it apart and writes it anew. Whoever may add to the stream can write anything, so nothing is taken on trust.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from poimen_tasks.audit.event import check_type
from poimen_tasks.errors import PoimenError

__all__ = ["may_record", "recorded_line"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A msgpack map with one short text, the event's id.
_HEADER = re.compile(rb"\x81\xa1i\xd9[\x01-\x80]([A-Za-z0-9][A-Za-z0-9_.:-]{0,127})").fullmatch
_NAME = rb'"[ !#-\[\]-~]*+"'
_TEXT = rb'"[ !#-\[\]-~]*+(?:\\(?:["\\/bfnrt]|u(?!d[89a-f])[0-9a-f]{4})[ !#-\[\]-~]*+)*+"'
_BEGIN = rb'\{("event_type":(%b),"workflow_id":(?:null|%b),"task_id":(?:null|%b),"actor":%b,"timestamp":)(null|%b)' % (
    (_NAME,) * 5
)
_BODY = re.compile(_BEGIN + rb'(,"action":[ -~]*\})').fullmatch
#: The usual event: input and output are none or text. Then only the metadata has to be parsed.
_USUAL = re.compile(
    _BEGIN + rb'(,"action":%b,"reasoning":%b,"input":(?:null|%b),"output":(?:null|%b),"status":%b,"error":(?:null|%b),'
    rb'"metadata":(\{[ -~]*\})\})' % ((_TEXT,) * 6)
).fullmatch
_KEYS = {
    "event_type", "workflow_id", "task_id", "actor", "timestamp", "action", "reasoning", "input", "output", "status",
    "error", "metadata",
}  # fmt: skip
#: Those whose values may be objects.
_PARTS = ("input", "output", "metadata")
_LARGEST = 1e308


def recorded_line(stream_id: str, fields: Mapping[bytes, bytes], most: int) -> bytes | None:
    """The event of an entry of type `audit.recorded`, as it is sealed; None where the long way is to be taken.

    Args:
        stream_id: the entry's id.
        fields: its fields as the server returned them.
        most: bytes that it may have.
    """
    header, payload = fields.get(b"h", b""), fields.get(b"d", b"")
    ident = _HEADER(header)
    if ident is None or header[4] != len(header) - 5:
        return None
    if usual := _USUAL(payload):
        begin, kind, time, rest, metadata = usual.groups()
        sound = metadata == b"{}" or _is_object(metadata)
    elif body := _BODY(payload):
        begin, kind, time, rest = body.groups()
        sound = _is_sound(payload)
    else:
        return None
    if not sound or not may_record(kind):
        return None
    if time == b"null":
        ms = int(stream_id.partition("-")[0])
        time = b'"%b.%03d000+00:00"' % (_second(ms // 1000), ms % 1000)
    line = b'{"event_id":"%b",%b%b%b' % (ident[1], begin, time, rest)
    return None if len(line) > most else line


@lru_cache(maxsize=1024)
def may_record(kind: bytes) -> bool:
    """Whether a user's event may have this type, given as JSON: the system's own cannot be forged."""
    try:
        check_type(json.loads(kind))
    except (PoimenError, ValueError):
        return False
    return True


def _is_object(text: bytes) -> bool:
    """Whether it is one object in strict JSON, no name twice in it, no half characters."""
    try:
        return b"\\ud" not in text and _scan_names(text.decode("ascii"), 0)[1] == len(text)
    except (ValueError, StopIteration, RecursionError):
        return False


def _is_sound(payload: bytes) -> bool:
    """Whether it is one object in strict JSON with the keys of an event, no name twice in it, no half characters."""
    if b"\\ud" in payload:
        return False
    text = payload.decode("ascii")
    try:
        value, end = _scan(text, 0)
        if end != len(text) or value.keys() != _KEYS:
            return False
        names = len(_KEYS) + sum(len(value[name]) for name in _PARTS if type(value[name]) is dict)
        # Each name ends like this. Where more does, one may stand twice, or another object is within: look at each.
        if payload.count(b'":') != names or b'" ' in payload:
            _scan_names(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return False
    return True


@lru_cache(maxsize=64)
def _second(seconds: int) -> bytes:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="seconds")[:-6].encode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not -_LARGEST < value < _LARGEST:
        raise ValueError("a number beyond what readers take")
    return value


def _refuse(text: str) -> object:
    raise ValueError(text)


_scan = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse).scan_once  # type: ignore[attr-defined]
_scan_names = json.JSONDecoder(  # type: ignore[attr-defined]
    object_pairs_hook=_once, parse_float=_finite, parse_constant=_refuse
).scan_once
