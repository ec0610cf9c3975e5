"""What the tests of the audit log share: a log made at once, a sealer that runs to the end, a strict JSON parser."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from poimen_tasks import AuditEvent
from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.event import pack_event
from poimen_tasks.audit.expand import expand_lines
from poimen_tasks.audit.log import Line, SealedLog
from poimen_tasks.audit.sealer import Sealer
from poimen_tasks.audit.segments import read_lines
from poimen_tasks.audit.source import Source

EPOCH = "ab" * 20


def strict(data: bytes) -> Any:
    """What RFC 8259 takes and nothing more: ASCII here, no NaN, no name twice, no half of a surrogate pair."""

    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), f"a name stands twice: {pairs}"
        return dict(pairs)

    value = json.loads(data.decode("ascii"), parse_constant=refuse, object_pairs_hook=once)
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # lone surrogates have no place in UTF-8
    return value


def fields_of(event: AuditEvent, own: str) -> dict[bytes, bytes]:
    """The entry of the stream that recording this event writes."""
    header = b"\x81\xa1i\xd9" + bytes((len(own),)) + own.encode()
    return {b"t": b"audit.recorded", b"h": header, b"d": pack_event(event, most=1 << 30)}


def write_log(
    directory: Path, events: Iterable[tuple[str, AuditEvent]], *, start: int = 1, segment_bytes: int = 64 << 20
) -> None:
    """Append events, each as an entry of its own with the next stream id, and seal them."""
    with SealedLog.open(directory, origin="test", segment_bytes=segment_bytes) as log:
        lines = []
        for at, (own, event) in enumerate(events, start):
            (data,) = expand_lines(EPOCH, f"{at}-0", fields_of(event, own)).events
            lines.append(Line(EPOCH, f"{at}-0", 0, True, data))
        log.append(lines, day="2025-11-29")
        log.seal()


def seal(poimen: Any) -> int:
    """Move what is in the stream to the sealed log, as `poimen audit seal --once` does. Returns the lines sealed."""
    settings, store = poimen.settings, poimen.store
    with SealedLog.open(settings.audit_dir, origin="test") as log:
        sealer = Sealer(
            log,
            ContentStore(settings.audit_dir),
            Source(store.audit, settings.audit_dir, lease=settings.lease),
            inline_bytes=settings.audit_inline_bytes,
            stopping=lambda: False,
        )
        sealer.join()
        sealer.run(once=True)
        return log.size


def lines_on_disk(directory: Path) -> list[Mapping[str, Any]]:
    """Every line of the sealed log, each taken by the strict parser."""
    return [strict(line) for _, line in read_lines(directory)]
