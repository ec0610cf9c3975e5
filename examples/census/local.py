"""What the census needs beside itself: a Redis server, a sealer and worker processes, gone when it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from poimen_tasks.store.directory_lock import running_url
from poimen_tasks.store.server import EmbeddedServer
from poimen_tasks.store.tether import tethered

__all__ = ["DATA", "Fleet", "redis_server"]

_ROOT = Path(__file__).resolve().parents[2]
_GRACE = 5.0

#: Where what was measured is kept between runs.
DATA = Path(os.environ.get("POIMEN_DATA_DIR") or _ROOT / ".poimen") / "census"


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """Yield the URL in POIMEN_REDIS_URL, else that of a private server, which becomes the setting.

    What it was told stays in the directory, for the next run; while another run uses that, it is forgotten.
    """
    if url := os.environ.get("POIMEN_REDIS_URL"):
        yield url
        return
    with contextlib.ExitStack() as stack:
        if running_url(directory / "redis"):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="census-")))
        server = stack.enter_context(EmbeddedServer(directory / "redis"))
        os.environ["POIMEN_REDIS_URL"] = server.url
        try:
            with sealer(directory / "audit"):
                yield server.url
        finally:
            del os.environ["POIMEN_REDIS_URL"]


@contextlib.contextmanager
def sealer(directory: Path) -> Iterator[None]:
    """Seal what happens into the audit log in the directory, where the extra for that is installed."""
    if importlib.util.find_spec("cryptography") is None:
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "sealer.log").open("wb") as log:
        process = subprocess.Popen(
            tethered([sys.executable, "-m", "poimen_tasks.cli", "audit", "seal", "-A", "examples.census.tasks"]),
            cwd=_ROOT,
            env={**os.environ, "POIMEN_AUDIT_DIR": str(directory.resolve())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()  # it seals what is left first
        try:
            process.wait(2 * _GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
