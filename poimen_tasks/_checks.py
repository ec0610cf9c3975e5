"""Checks of arguments that several values share; each raises `InvalidArgument` in the same words."""

from __future__ import annotations

import math

from poimen_tasks.errors import InvalidArgument, InvalidId
from poimen_tasks.ids import check_label

__all__ = ["check_classes", "check_count", "check_flag", "check_number", "check_text", "expected"]

_SHOWN = 80


def expected(what: str, allowed: str, value: object) -> InvalidArgument:
    """The error for an argument, in words: what it is, what is allowed, what came."""
    shown = repr(value)
    return InvalidArgument(
        f"{what}: expected {allowed}, got {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}"
    )


def check_count(what: str, value: object, *, least: int = 1) -> None:
    """Refuse what is not a whole number from `least`; True and False are not numbers here."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise expected(what, f"a whole number from {least}", value)


def check_number(what: str, value: object, *, least: float) -> None:
    """Refuse what is not a finite number from `least`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value < math.inf:
        raise expected(what, f"a number from {least:g}", value)


def check_flag(what: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise expected(what, "True or False", value)


def check_text(what: str, value: object) -> None:
    """Refuse what breaks the rule of labels."""
    try:
        check_label(value, what)
    except InvalidId as error:
        raise InvalidArgument(str(error)) from None


def check_classes(what: str, value: object) -> tuple[type[Exception], ...]:
    """Exception classes as a tuple, from one of them, a list or a tuple."""
    classes = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise expected(what, "subclasses of Exception", one)
    return classes
