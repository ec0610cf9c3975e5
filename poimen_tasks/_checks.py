"""Checks of arguments that several values share; each raises `InvalidArgument` in the same words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poimen_tasks.errors import InvalidArgument, InvalidId
from poimen_tasks.ids import check_label, check_labels

__all__ = [
    "MOST_SECONDS",
    "check_classes",
    "check_count",
    "check_flag",
    "check_list",
    "check_number",
    "check_tags",
    "check_text",
    "expected",
    "words",
]

_SHOWN = 80
_MOST_COUNT = 2**53
_MOST_TAGS = 32

#: The longest time that means one: 31 years. More has no date, and sums of it no number.
MOST_SECONDS = 1e9


def expected(what: str, allowed: str, value: object) -> InvalidArgument:
    """The error for an argument, in words: what it is, what is allowed, what came."""
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - nested too deep, or a repr of its own that fails
        shown = f"a {type(value).__name__}"
    return InvalidArgument(
        f"{what}: expected {allowed}, got {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}"
    )


def check_count(what: str, value: object, *, least: int = 1) -> None:
    """Refuse what is not a whole number from `least`, or too large to be exact in the store.

    True and False are not numbers here.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise expected(what, f"a whole number from {least}", value)
    if value > _MOST_COUNT:
        raise expected(what, f"a whole number from {least} to {_MOST_COUNT}", value)


def check_number(what: str, value: object, *, least: float, most: float = sys.float_info.max) -> None:
    """Refuse what is not a finite number from `least` to `most`; a whole number may be too large for a float."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        upto = "" if most == sys.float_info.max else f" to {most:g}"
        raise expected(what, f"a number from {least:g}{upto}", value)


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


def check_list(what: str, of: str, values: object) -> list[Any]:
    """The members of a list, a tuple or another iterable: a text, bytes and a dict have other members than is meant.

    Args:
        what: names the argument.
        of: what its members are, in words.
        values: the candidate.

    Raises:
        InvalidArgument: it is none.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(values, Iterable):
        raise expected(what, f"a list of {of}", values)
    return list(values)


def check_tags(what: str, tags: Sequence[Any]) -> list[str]:
    """Tags as a list of labels; few enough that the head of a cached result holds them, and one script looks at them.

    Raises:
        InvalidArgument: they are no list, such as one text or a dict, or too many.
        InvalidId: one breaks the rule of labels.
    """
    listed = check_list(f"{what}s", "texts", tags)
    if len(listed) > _MOST_TAGS:
        raise expected(f"{what}s", f"at most {_MOST_TAGS}", len(listed))
    return check_labels(listed, what) if listed else []


def check_classes(what: str, value: object) -> tuple[type[Exception], ...]:
    """Exception classes as a tuple, from one of them, a list or a tuple."""
    classes = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise expected(what, "subclasses of Exception", one)
    return classes


def words(value: object, most: int = 1000) -> str:
    """Free words, such as a reason, as a text that any store takes; half of a character becomes six of them."""
    return str(value)[:most].encode("utf-8", "backslashreplace").decode()
