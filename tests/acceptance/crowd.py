"""Starts many processes that do the same at the same time."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import nursery
from tests.conftest import ROOT, eventually


class Crowd:
    """So many processes of a kind, which all wait until `go`; each says that it is ready by a file."""

    def __init__(self, what: str, count: int, *words: str, env: Mapping[str, str], directory: Path) -> None:
        self._go = directory / f"{what}.go"
        self._count = count
        self.processes = []
        for number in range(count):
            with (directory / f"{what}-{number}.log").open("wb") as log:
                self.processes.append(
                    nursery.start(
                        ["tests.acceptance.trackers", what, str(number), str(self._go), *words],
                        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                        stdout=subprocess.PIPE,
                        stderr=log,
                    )
                )

    def go(self) -> None:
        """Let them begin, all at once."""
        ready = f"{self._go.name}.ready-*"
        eventually(lambda: len(list(self._go.parent.glob(ready))) == self._count, 60)
        self._go.touch()

    def reports(self) -> list[Any]:
        """What each of them printed, in order."""
        self.go()
        return [json.loads(process.communicate(timeout=120)[0]) for process in self.processes]

    def kill(self, number: int) -> None:
        """Kill one of them."""
        process = self.processes[number]
        process.kill()
        process.wait()
        process.stdout.close()
