"""How long a command waits for what it asked for: `--wait SECONDS`, or `--wait` alone or with `--timeout SECONDS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from poimen_tasks._checks import MOST_SECONDS, check_number

__all__ = ["wait_options"]

_FOREVER = "forever"

F = TypeVar("F", bound=Callable[..., Any])


def seconds_of(value: str | float) -> str | float:
    """The type of `--wait`: seconds, from 0; where no number is given, what stands for that.

    Raises:
        BadParameter: it is none.
    """
    if value == _FOREVER:
        return value
    number: Any = click.FloatRange(min=0).convert(value, None, None)  # type: ignore[arg-type, unused-ignore]
    return float(number)


def wait_options(until: str) -> Callable[[F], F]:
    """The two options, as one argument `wait`: None: not at all; infinity: as long as it takes; else seconds.

    Args:
        until: what is waited for, in words.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def merged(*, wait: str | float | None, timeout: float | None, **arguments: Any) -> Any:
            return command(wait=_merged(wait, timeout), **arguments)

        timeout = click.option(
            "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="With --wait: no longer than that."
        )
        wait = click.option(
            "--wait", is_flag=False, flag_value=_FOREVER, type=seconds_of, metavar="[SECONDS]",
            help=f"Wait until {until}, for so long if it is given; exits 124 when that is over.",
        )  # fmt: skip
        return wait(timeout(merged))  # type: ignore[return-value]

    return decorate


def _merged(wait: str | float | None, timeout: float | None) -> float | None:
    if timeout is not None and wait is None:
        raise click.UsageError("--timeout is for --wait: give both")
    if timeout is not None and wait != _FOREVER:
        raise click.UsageError("--wait and --timeout both say how long: give the number once")
    if wait is None or (wait == _FOREVER and timeout is None):
        return None if wait is None else math.inf
    name, seconds = ("wait", float(wait)) if timeout is None else ("timeout", timeout)
    check_number(name, seconds, least=0, most=MOST_SECONDS)
    return seconds
