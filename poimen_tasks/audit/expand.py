"""From entries of the stream to events: what the sealer writes, and what a query without a log on disk reads.

Deterministic: the same entry gives the same bytes, so an entry that is expanded again after a crash is the same lines.
A type that is not known here loses nothing: it becomes a general event with all that its entry says.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from poimen_tasks._json import compact_writer
from poimen_tasks.audit.event import iso, moment_of
from poimen_tasks.audit.header import Head, read_header
from poimen_tasks.audit.items import expand_items, finished_lines
from poimen_tasks.audit.plain import plain
from poimen_tasks.audit.recorded import has_form, may_record
from poimen_tasks.audit.wording import describe
from poimen_tasks.codec import decode, jsonable
from poimen_tasks.errors import PoimenError
from poimen_tasks.ids import check_name
from poimen_tasks.store.outcome_blob import decode_outcomes

__all__ = ["LARGE", "RECORDED", "Expanded", "encode_event", "expand_entry", "expand_lines"]

#: The type of entries that `audit.record` writes; their events have types of their own.
RECORDED = "audit.recorded"
#: Types that only the sealer writes: what they say, it relies on.
SEALER_TYPES = frozenset(
    {"audit.epoch", "audit.forked", "audit.gap", "audit.recovered", "audit.unsealed_dropped", "store.rollback"}
)
#: Fields of an event that are kept by digest when they are large.
LARGE = ("reasoning", "input", "output", "error", "metadata")
_EMPTY: dict[str, Any] = {"reasoning": "", "input": None, "output": None, "error": None, "metadata": {}}
#: How half of a character looks, which no strict parser takes; and a whole one beyond the first 65,536.
_HALF = "\\ud"

_write = compact_writer()


class Expanded(NamedTuple):
    """An entry made ready for the disk.

    Attributes:
        events: the bytes of each line's event, in order.
        blobs: SHA-256 (hex) to the bytes of fields too large for a line: to be in the content store before the lines.
    """

    events: list[bytes]
    blobs: dict[str, bytes]


def expand_entry(epoch: str, stream_id: str, fields: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    """The events of one entry of the stream, in order, every field in full.

    An entry that cannot be read gives one `audit.unreadable` event with its bytes in base64, never an exception.

    Args:
        epoch: the stream's random epoch.
        stream_id: the entry's id.
        fields: its fields as the server returned them.
    """
    text = _lines(epoch, stream_id, fields)
    return list(map(json.loads, text.split("\n"))) if text else []


def expand_lines(
    epoch: str, stream_id: str, fields: Mapping[bytes, bytes], *, inline_bytes: int | None = None
) -> Expanded:
    """What the sealer writes for one entry: `expand_entry`, encoded, fields over `inline_bytes` kept by digest.

    In the event such a field is empty, and `content` says where it is: `{"reasoning": {"sha256": ..., "bytes": ...}}`.
    A text is kept as UTF-8, any other value as JSON.

    Args:
        epoch: the stream's random epoch.
        stream_id: the entry's id.
        fields: its fields as the server returned them.
        inline_bytes: how long a field may be on a line, as JSON; None: as long as it is.
    """
    text, blobs = _lines(epoch, stream_id, fields), dict[str, bytes]()
    events = text.encode("ascii").split(b"\n") if text else []
    if inline_bytes is not None and len(text) > inline_bytes:
        for at, event in enumerate(events):
            if len(event) > inline_bytes:
                events[at] = encode_event(move_out(json.loads(event), inline_bytes, blobs))
    return Expanded(events, blobs)


def _lines(epoch: str, stream_id: str, fields: Mapping[bytes, bytes]) -> str:
    """The events as JSON, a newline between any two: what is done to all of them at once costs a third."""
    try:
        text = "\n".join(_expand(epoch, stream_id, fields))
        if _HALF not in text:
            return text
        return "\n".join(
            line if _HALF not in line else _write(plain(json.loads(line), "event")) for line in text.split("\n")
        )
    except Exception as error:  # noqa: BLE001 - whatever an entry does to us: one that is not told would stop the sealer
        return _write(_unreadable(epoch, stream_id, fields, error))


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Compact strict JSON in ASCII."""
    return _write(dict(event)).encode("ascii")


def move_out(event: Mapping[str, Any], inline_bytes: int, blobs: dict[str, bytes]) -> dict[str, Any]:
    """The event without its large fields, which are put into `blobs` by their digest."""
    moved, content = dict(event), dict(event.get("content") or {})
    for name in LARGE:
        value = event.get(name)
        if not value or len(_write(value)) <= inline_bytes:
            continue
        data = value.encode("utf-8") if isinstance(value, str) else _write(value).encode("ascii")
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        content[name] = {"sha256": digest, "bytes": len(data), "type": "text" if isinstance(value, str) else "json"}
        moved[name] = _EMPTY[name]
    if content:
        moved["content"] = content
    return moved


def _expand(epoch: str, stream_id: str, fields: Mapping[bytes, bytes]) -> list[str]:
    """The lines of an entry, as JSON."""
    kind, payload = fields[b"t"].decode("ascii"), fields.get(b"d", b"")
    if kind == RECORDED:
        return [_write(_recorded(stream_id, fields))]
    if kind in SEALER_TYPES:
        raise ValueError(f"events of type {kind} are written by the sealer alone")
    header = read_header(fields[b"h"])
    head = Head.read(kind, header, prefix=f"{epoch[:12]}-{stream_id}-", at=moment_of(stream_id))
    if kind == "item.finished" and payload:
        columns = decode_outcomes(payload)
        return [] if columns is None else finished_lines(head, header, columns)
    events = expand_items(head, header)
    if events is None:
        events = [describe(head, header, _payload(kind, payload) if payload else {})]
    return list(map(_write, events))


def _recorded(stream_id: str, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """What somebody recorded: the entry has the event, but for its id and, mostly, its time."""
    header = msgpack.unpackb(fields[b"h"])
    values: dict[str, Any] = json.loads(fields[b"d"])
    if not has_form(values):
        raise ValueError("what was recorded is no event: it has other parts, or one has another type")
    when = values.pop("timestamp") or iso(moment_of(stream_id))
    if not may_record(json.dumps(values["event_type"]).encode()):
        raise ValueError(f"event_type {values['event_type']!r:.80} is none that may be recorded")
    kind, workflow, task, actor = (values.pop(name) for name in ("event_type", "workflow_id", "task_id", "actor"))
    return {
        "event_id": check_name(header["i"], "event_id"),
        "event_type": kind,
        "workflow_id": workflow,
        "task_id": task,
        "actor": actor,
        "timestamp": when,
        **values,
    }


def _payload(kind: str, payload: bytes) -> dict[str, Any]:
    """The payload of an entry without items."""
    try:
        value = jsonable(decode(payload))
    except PoimenError:
        return {"payload": base64.b64encode(payload).decode("ascii")}
    columns = _COLUMNS.get(kind)
    if columns is None:
        return {"payload": value}
    return {"entries": [dict(zip(columns, row, strict=False)) for row in value]}


_COLUMNS = {"cache.put": ("activity", "input_hash", "bytes"), "cache.hit": ("activity", "input_hash")}


def _unreadable(epoch: str, stream_id: str, fields: Mapping[bytes, bytes], error: Exception) -> dict[str, Any]:
    """An entry that is none of ours, or damaged: it is kept as it is."""
    kept = {
        base64.b64encode(name).decode("ascii"): base64.b64encode(value).decode("ascii")
        for name, value in fields.items()
    }
    reason = f"{type(error).__name__}: {error}"[:300].encode("ascii", "backslashreplace").decode("ascii")
    return {
        "event_id": f"{epoch[:12]}-{stream_id}-0",
        "event_type": "audit.unreadable",
        "workflow_id": None,
        "task_id": None,
        "actor": "system",
        "timestamp": iso(moment_of(stream_id)),
        "action": f"entry {stream_id} of the stream could not be read",
        "reasoning": "",
        "input": None,
        "output": None,
        "status": "failure",
        "error": reason,
        "metadata": {"stream_id": stream_id, "fields": kept},
    }
