"""Files that a command writes: `-o FILE`, there only when all is in it."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from poimen_tasks.cli.output import Failure
from poimen_tasks.errors import PoimenError

__all__ = ["destination", "out_option"]

F = TypeVar("F", bound=Callable[..., Any])


def out_option(text: str) -> Callable[[F], F]:
    """The option `output`: `-o` and `--out`, and `--output` for all who are used to that."""
    return click.option(
        "-o", "--out", "--output", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=text
    )


@contextlib.contextmanager
def destination(output: Path | None) -> Iterator[IO[bytes]]:
    """Where the bytes go; None is stdout. A file gets its name when all is in it; a device or a pipe is written to.

    Raises:
        Failure: it cannot be written; it is named as it was given.
    """
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with output.open("wb") if _is_special(output) else _aside(output) as file:
            yield file
    except OSError as error:
        if isinstance(error, PoimenError):
            raise
        raise Failure(f"{output}: {error.strerror or error}", kind="OSError") from error


def _is_special(output: Path) -> bool:
    """Whether it is there and no file: such a thing is not to be replaced by one."""
    try:
        return not stat.S_ISREG(output.stat().st_mode)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _aside(output: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of another when it is whole; of a link, of what that leads to."""
    target = Path(os.path.realpath(output))
    # A name may have 255 bytes, and that of the target may be as long; 48 characters have 192 at most.
    aside = target.with_name(f".{target.name[:48]}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(target)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
