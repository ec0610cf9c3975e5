"""Many processes that do the same at the same time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import nursery
from tests.conftest import ROOT, eventually


class Crowd:
    """So many processes that do a thing of `trackers.py`, and wait until `go`.

    Args:
        what: what they do.
        count: how many.
        *words: arguments of it.
        env: their environment on top of this process's own.
        directory: a file each goes into a directory below.
    """

    def __init__(self, what: str, count: int, *words: str, env: Mapping[str, str], directory: Path) -> None:
        self._count = count
        self._directory = directory / f"crowd-{what}"
        self._directory.mkdir()
        with (self._directory / "log").open("wb") as log:
            self._parent = nursery.start(
                ["tests.acceptance.trackers", what, str(count), str(self._directory), *words],
                env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                stdout=log,
            )

    def go(self) -> None:
        """Let them begin, all at once."""
        eventually(lambda: all(path.exists() and path.read_text() for path in self._files("ready")), 60)
        (self._directory / "go").touch()

    def _files(self, name: str) -> list[Path]:
        return [self._directory / f"{name}-{number}" for number in range(self._count)]

    def kill(self, number: int) -> None:
        """Kill one of them."""
        os.kill(int(self._files("ready")[number].read_text()), signal.SIGKILL)

    def end(self) -> None:
        """Wait until all have ended."""
        self._parent.wait(120)

    def reports(self) -> list[Any]:
        """Let them begin, and return what each of them did, in order."""
        self.go()
        self.end()
        return [json.loads(path.read_text()) for path in self._files("report")]
