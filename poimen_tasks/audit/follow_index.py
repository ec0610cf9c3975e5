"""The query index follows the log in a process of its own: it is the slowest part, and sealing does not wait for it."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from poimen_tasks.audit.collecting import rare_collections
from poimen_tasks.audit.index import AuditIndex
from poimen_tasks.audit.segments import sealed_size
from poimen_tasks.errors import PoimenError
from poimen_tasks.store.tether import tethered

__all__ = ["IndexProcess", "Pace", "follow"]

log = logging.getLogger("poimen.audit")

_POLL = 0.1
#: Seconds until a process that ended is started again.
_AGAIN = 5.0
_NICENESS = 10
#: Lines a second, over so many seconds, that are more than an index takes in.
_FLOOD, _WINDOW = 20_000, 0.5
#: Seconds that the index waits for the end of a flood until it takes a portion nevertheless.
_LONGEST = 10.0


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


class Pace:
    """When the index is to be taken further: not while lines come faster than it could take them in.

    A flood like that is a sealer that works off what had piled up. The two would share the disk and the processors, the
    flood would only last longer, and the index would be behind in any case. So it waits for the end of it, and takes a
    portion now and then in case there is none.
    """

    def __init__(self) -> None:
        self._looks = deque[tuple[float, int]]()
        self._last = math.inf

    def may_go_on(self, size: int, now: float | None = None) -> bool:
        """Whether now is the time; to be asked again and again.

        Args:
            size: how many lines are sealed.
            now: seconds, from any beginning.
        """
        now = time.monotonic() if now is None else now
        looks, self._last = self._looks, min(self._last, now)
        looks.append((now, size))
        while len(looks) > 1 and looks[1][0] <= now - _WINDOW:
            looks.popleft()
        past, before = looks[0]
        calm = now - past >= _WINDOW and size - before < _FLOOD * (now - past)
        if calm or now - self._last > _LONGEST:
            self._last = now
            return True
        return False


def follow(directory: Path) -> None:
    """Take in what is sealed, until the process is ended."""
    index, pace, seen = AuditIndex.open(directory), Pace(), -1
    while True:
        size = sealed_size(directory)
        if pace.may_go_on(size) and size != seen:
            seen = index.catch_up(stop=lambda: not pace.may_go_on(sealed_size(directory)))
        time.sleep(_POLL)


def _main(directory: str) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(_NICENESS)
    try:
        with rare_collections():
            follow(Path(directory))
    except PoimenError as error:
        sys.stderr.write(f"audit index: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
