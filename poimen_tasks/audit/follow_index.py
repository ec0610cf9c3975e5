"""The query index follows the log in a process of its own: it is the slowest part, and sealing does not wait for it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from poimen_tasks.audit.index import AuditIndex
from poimen_tasks.audit.segments import sealed_size
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.tether import tethered

__all__ = ["IndexProcess", "follow"]

log = logging.getLogger("poimen.audit")

_POLL = 0.1
#: Seconds until a process that ended is started again.
_AGAIN = 5.0
_NICENESS = 10


class IndexProcess:
    """Keeps one such process running, from `start` to `stop`; it never outlives this one.

    Args:
        directory: that of the log.
    """

    def __init__(self, directory: Path) -> None:
        self._command = tethered([sys.executable, "-m", "poimen_tasks.audit.follow_index", str(directory)])
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="poimen-audit-index", daemon=True)

    def start(self) -> None:
        """Start it; nothing waits for it."""
        self._thread.start()

    def stop(self) -> None:
        """End it; what it had not written yet it reads again the next time."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self._thread.join(10)

    def _keep(self) -> None:
        # The tether ends the process with the thread that started it, so it is this one that does.
        while not self._stopping.is_set():
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)
            code = self._process.wait()
            if not self._stopping.is_set():
                log.warning("the process of the index ended with exit code %d; sealing goes on", code)
                self._stopping.wait(_AGAIN)


def follow(directory: Path) -> None:
    """Take in what is sealed, until the process is ended."""
    index, seen = AuditIndex.open(directory), -1
    while True:
        size = sealed_size(directory)
        if size != seen:
            seen = index.catch_up()
        time.sleep(_POLL)


def _main(directory: str) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(_NICENESS)
    try:
        follow(Path(directory))
    except PoimenError as error:
        sys.stderr.write(f"audit index: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
