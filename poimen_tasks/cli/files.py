"""Files that a command writes: `-o FILE`, there only when all is in it."""

from __future__ import annotations

import contextlib
import os
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
    """Where the bytes go; None is stdout. A file gets its name when all is in it.

    Raises:
        Failure: it cannot be written; it is named as it was given.
    """
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    aside = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(output)
    except OSError as error:
        if isinstance(error, PoimenError):
            raise
        raise Failure(f"{output}: {error.strerror or error}", kind="OSError") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
