"""Small audit logs for tests: lines to append, and a log that is built from them."""

from __future__ import annotations

import json

from poimen_tasks.audit.log import Line, SealedLog

ORIGIN = "log.example"
EPOCH = "e1"
#: Milliseconds of the first entry's id: 2025-11-29, 12:00 UTC.
BEGIN = 1_764_417_600_000


def event(number, **more):
    """An event as compact JSON."""
    values = {
        "event_id": f"e{number}", "event_type": "note", "workflow_id": "w", "task_id": None, "actor": "tester",
        "timestamp": "2025-11-29T12:00:00.000000Z", "action": f"line {number}",
        "reasoning": "", "input": None, "output": None, "status": "success", "error": None, "metadata": {}, **more,
    }  # fmt: skip
    return json.dumps(values, separators=(",", ":")).encode()


def entry(number, *, lines=1, epoch=EPOCH, ms=None, **more):
    """The lines of one entry of the stream."""
    ident = f"{BEGIN + number if ms is None else ms}-0"
    return [Line(epoch, ident, n, n == lines - 1, event(f"{number}.{n}", **more)) for n in range(lines)]


def entries(start, end, *, lines=1):
    """The lines of the entries [start, end)."""
    return [line for number in range(start, end) for line in entry(number, lines=lines)]


def build(directory, size, *, segment_bytes=64 << 20, step=100):
    """A sealed log of this many entries, closed again; returns its directory."""
    with SealedLog.open(directory, origin=ORIGIN, segment_bytes=segment_bytes) as log:
        for at in range(0, size, step):
            log.append(entries(at, min(size, at + step)))
            log.seal()
    return directory


def files_of(directory):
    """Every file of a log with its bytes, by its path within it; the lock says nothing."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
