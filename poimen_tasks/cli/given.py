"""Options that every command takes alike: an empty value is no default, and who is not asked says yes beforehand.

An empty value comes from a variable of the shell that is not set.
"""

from __future__ import annotations

from typing import Any

import click

__all__ = ["refuse_empty", "refuse_to_ask"]


#: Types that take an empty text: a path becomes the directory where one is.
_TYPES = (click.Path, click.types.StringParamType, click.types.FuncParamType)


class _Given(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer versions of Click only
    """A type that takes all but nothing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, as the type itself has it."""
        if value == "":
            self.fail("it is empty; leave the option out, or give it a value", param, ctx)
        return self._inner.convert(value, param, ctx)


def refuse_empty(command: click.Command) -> None:
    """Let no option of a command, or of those below it, take an empty text, unless that is its default."""
    for param in command.params:
        if isinstance(param, click.Option) and isinstance(param.type, _TYPES) and param.default != "":
            param.type = _Given(param.type)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            refuse_empty(below)


def refuse_to_ask(*, as_json: bool, yes: bool) -> None:
    """Ask no program whether it is sure.

    Raises:
        UsageError: --json was given without --yes.
    """
    if as_json and not yes:
        raise click.UsageError("--json is for programs, which are not asked: give --yes too")
