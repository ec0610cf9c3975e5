"""The sealer that `poimen up` starts beside its server."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys

import click

from poimen_tasks.store.tether import tethered

__all__ = ["UpSealer", "can_seal"]

#: Seconds that it has to seal what is left, when it is asked to stop.
_GRACE = 10.0


def can_seal() -> bool:
    """Whether a log can be written here: the extra `audit` is installed."""
    return all(map(importlib.util.find_spec, ("cryptography", "msgspec")))


class UpSealer:
    """`poimen audit seal` as a process that never outlives this one; what it says goes to stderr.

    Args:
        app: where the app is, whose settings it takes; None: those of the environment.
    """

    def __init__(self, app: str | None) -> None:
        command = [sys.executable, "-m", "poimen_tasks.cli", "audit", "seal", *(["-A", app] if app else [])]
        self._process = subprocess.Popen(
            tethered(command),
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,  # Ctrl-C is for `up`, which stops it after the worker
        )
        self._told = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def look(self) -> None:
        """Say once that it ended. It is not started again: a disk that failed it must be looked at first."""
        if not self._told and (code := self._process.poll()) is not None:
            self._told = True
            click.echo(
                f"the sealer ended with exit code {code}, its reason is above; the work goes on, and its audit entries "
                "wait in Redis for `poimen audit seal`",
                err=True,
            )

    def stop(self) -> None:
        """End it; first it seals what there is."""
        self._told = True
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
