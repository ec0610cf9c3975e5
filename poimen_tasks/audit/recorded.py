"""What `audit.record` wrote, as a line at once: such entries may come by the ten thousand a second.

The payload is a client's own JSON, without its id and mostly without its time. Where it has the form that a client of
ours writes, and only there, its bytes stay as they are and the two are put in; anything else takes the long way, which
takes it apart and writes it anew. Whoever may add to the stream can write anything, so nothing is taken on trust.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from poimen_tasks._refusals import MAX_DEPTH
from poimen_tasks.audit.depth import too_deep
from poimen_tasks.audit.event import check_type, iso, moment_of
from poimen_tasks.errors import PoimenError

if TYPE_CHECKING:
    from poimen_tasks.store.audit_scripts import RawEntry

__all__ = ["has_form", "may_record", "recorded_lines"]

#: A msgpack map with one short text, the event's id.
_HEADER = re.compile(rb"\x81\xa1i\xd9[\x01-\x80]([A-Za-z0-9][A-Za-z0-9_.:-]{0,127})").fullmatch
_NAME = rb'"[ !#-\[\]-~]*+"'
_TEXT = rb'"[ !#-\[\]-~]*+(?:\\(?:["\\/bfnrt]|u(?!d[89a-f])[0-9a-f]{4})[ !#-\[\]-~]*+)*+"'
_BEGIN = rb'\{("event_type":(%b),"workflow_id":(?:null|%b),"task_id":(?:null|%b),"actor":%b,"timestamp":)(null|%b)' % (
    (_NAME,) * 5
)
_BODY = re.compile(_BEGIN + rb'(,"action":[ -~]*\})').fullmatch
_VALUE = rb"(?:%b|null|true|false|-?(?:0|[1-9]\d{0,14}+)(?:\.\d{1,20}+)?)" % _TEXT
#: The usual event: input and output are none or text. Then only the metadata may have to be parsed: where they are more
#: than one name with a value that is no container.
_USUAL = re.compile(
    _BEGIN + rb'(,"action":%b,"reasoning":%b,"input":(?:null|%b),"output":(?:null|%b),"status":%b,"error":(?:null|%b),'
    rb'"metadata":(?:\{(?:%b:%b)?\}|(\{[ -~]*\}))\})' % ((_TEXT,) * 7 + (_VALUE,))
).fullmatch
_KEYS = {
    "event_type", "workflow_id", "task_id", "actor", "timestamp", "action", "reasoning", "input", "output", "status",
    "error", "metadata",
}  # fmt: skip
#: The type of these entries.
_RECORDED = b"audit.recorded"
#: Those whose values may be objects.
_PARTS = ("input", "output", "metadata")
_LARGEST = 1e308
_TYPES = {
    "workflow_id": (str, type(None)), "task_id": (str, type(None)), "actor": (str,), "timestamp": (str, type(None)),
    "action": (str,), "reasoning": (str,), "status": (str,), "error": (str, type(None)), "metadata": (dict,),
}  # fmt: skip


def recorded_lines(entries: Sequence[RawEntry], most: int) -> list[bytes | None]:
    """The events of entries of type `audit.recorded`, as they are sealed; None where the long way is to be taken.

    Args:
        entries: any; those of other types give None.
        most: bytes that an event may have.
    """
    times, lines = dict[str, bytes](), list[bytes | None]()
    for stream_id, flat in entries:
        line = None
        if len(flat) == 6 and flat[1] == _RECORDED and flat[0] == b"t" and flat[2] == b"h" and flat[4] == b"d":
            header, parts = flat[3], _read(flat[5])
            if parts and (ident := _HEADER(header)) and header[4] == len(header) - 5:
                begin, time, rest = parts
                if time == b"null":
                    ms = stream_id.partition("-")[0]
                    time = times.get(ms) or times.setdefault(ms, f'"{iso(moment_of(stream_id))}"'.encode())
                line = b"".join((b'{"event_id":"', ident[1], b'",', begin, time, rest))
                if len(line) > most:
                    line = None
        lines.append(line)
    return lines


def _read(payload: bytes) -> tuple[bytes, bytes, bytes] | None:
    """What stands before the time, the time, and what stands behind it; None: it is not in the form of our clients."""
    if usual := _USUAL(payload):
        begin, kind, time, rest, metadata = usual.groups()
        sound = metadata is None or _is_object(metadata)
    elif body := _BODY(payload):
        begin, kind, time, rest = body.groups()
        sound = _is_sound(payload)
    else:
        return None
    return (begin, time, rest) if sound and may_record(kind) and _is_moment(time) else None


def _is_moment(text: bytes) -> bool:
    """Whether a time, given as JSON, is written as a client of ours does."""
    if text == b"null":
        return True
    try:
        return iso(datetime.fromisoformat(text[1:-1].decode("ascii"))).encode("ascii") == text[1:-1]
    except (ValueError, OverflowError):
        return False


def has_form(values: object) -> bool:
    """Whether what was recorded has the parts of an event and no others, each of the type that readers rely on."""
    return (
        isinstance(values, dict)
        and values.keys() == _KEYS
        and all(isinstance(values[name], kinds) for name, kinds in _TYPES.items())
        and not any(too_deep(values[name]) for name in _PARTS)
        and (values["timestamp"] is None or _is_moment(f'"{values["timestamp"]}"'.encode()))
    )


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
    if b"\\ud" in text:
        return False
    try:
        value, end = _scan(text.decode("ascii"), 0)
        if text.count(b"[") + text.count(b"{") > MAX_DEPTH and too_deep(value):
            return False
        # Each name ends like this. Where more does, one may stand twice, or another object is within: look at each.
        if text.count(b'":') != len(value) or b'" ' in text:
            _scan_names(text.decode("ascii"), 0)
    except (ValueError, StopIteration, RecursionError):
        return False
    return bool(end == len(text))


def _is_sound(payload: bytes) -> bool:
    """Whether it is one object in strict JSON with the keys of an event, no name twice in it, no half characters."""
    if b"\\ud" in payload:
        return False
    text = payload.decode("ascii")
    try:
        value, end = _scan(text, 0)
        if end != len(text) or not has_form(value):
            return False
        names = len(_KEYS) + sum(len(value[name]) for name in _PARTS if type(value[name]) is dict)
        # Each name ends like this. Where more does, one may stand twice, or another object is within: look at each.
        if payload.count(b'":') != names or b'" ' in payload:
            _scan_names(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return False
    return True


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
