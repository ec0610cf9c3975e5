"""What the census needs beside itself: a Redis server and worker processes, gone when it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from poimen_tasks.store.server import EmbeddedServer
from poimen_tasks.store.tether import tethered

__all__ = ["Fleet", "redis_server"]

_ROOT = Path(__file__).resolve().parents[2]
_GRACE = 5.0


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """Yield the URL in POIMEN_REDIS_URL, else that of a private server in the directory, which becomes the setting."""
    if url := os.environ.get("POIMEN_REDIS_URL"):
        yield url
        return
    with EmbeddedServer(directory / "redis") as server:
        os.environ["POIMEN_REDIS_URL"] = server.url
        os.environ.setdefault("POIMEN_DATA_DIR", str(directory / "data"))
        try:
            yield server.url
        finally:
            del os.environ["POIMEN_REDIS_URL"]


class Fleet:
    """Worker processes of one pool process each, as anybody would start them by hand on any machine."""

    def __init__(self, count: int, directory: Path) -> None:
        self._logs = [directory / f"worker-{number}.log" for number in range(1, count + 1)]
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for number, log in enumerate(self._logs, 1):
            name = f"census-{os.getpid()}-{number}@%h"
            command = [sys.executable, "-m", "celery", "-A", "examples.census.tasks", "worker", "-n", name]
            with log.open("wb") as out:
                self._workers.append(
                    subprocess.Popen(
                        tethered([*command, "-c", "1", "-l", "warning"]),
                        cwd=_ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C is for the census, which then stops its workers
                    )
                )
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(_GRACE)
            except subprocess.TimeoutExpired:
                worker.kill()  # its pool process notices, and ends too
                worker.wait()

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, when no worker is left."""
        if all(worker.poll() is not None for worker in self._workers):
            last = self._logs[-1].read_text(errors="replace").strip()[-2000:]
            raise RuntimeError(
                f"all {len(self._workers)} workers ended before the work was done; the log of one:\n{last}"
            )
