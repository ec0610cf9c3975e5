"""What the tests of sealing share: events to count, a sealer in this process or one of its own, a look at a log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.event import AuditEvent, pack_event
from poimen_tasks.audit.log import SealedLog
from poimen_tasks.audit.sealer import Sealer
from poimen_tasks.audit.segments import read_lines
from poimen_tasks.audit.source import Source
from poimen_tasks.store import Store
from tests import nursery
from tests.conftest import ROOT

__all__ = ["SealProcess", "events", "kinds", "numbers", "record", "seal_all", "sealing"]

ORIGIN = "poimen/test"


def record(store: Store, numbers: range, *, who: str = "test") -> None:
    """Record one event a number."""
    made = [AuditEvent(event_type="step", actor=who, action=str(number)) for number in numbers]
    payloads = [pack_event(event, most=1 << 20) for event in made]
    store.entries.record_events([f"{who}-{number}" for number in numbers], payloads, [].extend)


def events(directory: Path) -> list[dict[str, Any]]:
    """The sealed events, in order."""
    return [json.loads(line)["event"] for _, line in read_lines(directory)]


def numbers(directory: Path, who: str = "test") -> list[int]:
    """The numbers of what `record` recorded, as they are sealed."""
    return [int(e["action"]) for e in events(directory) if e["event_type"] == "step" and e["actor"] == who]


def kinds(directory: Path) -> Counter[str]:
    """How many events there are of each type."""
    return Counter(event["event_type"] for event in events(directory))


@contextlib.contextmanager
def sealing(
    store: Store, directory: Path, *, disk: Disk | None = None, fork: bool = False, lease: float = 3.0
) -> Iterator[Sealer]:
    """A sealer in this process, joined."""
    with SealedLog.open(directory, origin=ORIGIN, disk=disk) as log:
        source = Source(store.audit, directory, lease=lease)
        sealer = Sealer(log, ContentStore(directory), source, inline_bytes=4096, stopping=lambda: False)
        sealer.join(fork=fork)
        yield sealer


def seal_all(store: Store, directory: Path, **options: Any) -> None:
    """Seal what is in the stream."""
    with sealing(store, directory, **options) as sealer:
        sealer.run(once=True)


class SealProcess:
    """`poimen audit seal` as a process of its own.

    Args:
        env: its settings.
        directory: where the log is to be.
        log: what it says goes there.
        words: further options.
    """

    def __init__(self, env: Mapping[str, str], directory: Path, log: Path, *words: str) -> None:
        self.log = log
        self.directory = directory
        with log.open("ab") as out:
            self.process = nursery.start(
                ["poimen_tasks.cli", "audit", "seal", "--no-index", *words],
                env={**os.environ, "PYTHONPATH": str(ROOT), **env, "POIMEN_AUDIT_DIR": str(directory)},
                stdout=out,
            )

    def text(self) -> str:
        """What it said."""
        return self.log.read_text()

    def stop(self) -> int:
        """Stop it in order; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
