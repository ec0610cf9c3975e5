"""What the codec carries, and where and why it refuses a value: the slow, talkative half of `codec.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, NoReturn
from uuid import UUID

from poimen_tasks.errors import PayloadTooLarge, SerializationError

__all__ = ["bad_offset", "explain", "foreign", "step", "too_large"]

MAX_BYTES = 512 * 1024 * 1024
"""Bytes in one encoded value: what a Redis string holds."""
MAX_DEPTH = 128
"""Containers inside one another."""
MAX_VALUES = 2_000_000
"""Parts of containers that hold containers, in one call, counted once for each place they stand in: what keeps a small
structure that repeats itself from growing without end. A list of plain values may be longer."""

FIXED = frozenset({type(None), bool, int, float})
EXTENDED = frozenset({datetime, date, timedelta, Decimal, UUID})
LEAVES = FIXED | {str, bytes} | EXTENDED
SEQUENCES = frozenset({list, tuple})
CARRIED = LEAVES | SEQUENCES | {dict}
ALLOWED = (
    "allowed are None, bool, int, float, str, bytes, list, tuple, dict with str keys, aware datetime, date, timedelta, "
    "Decimal, UUID"
)

_HINTS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Enum, "use its .value"),
    (time, "use its isoformat()"),
    (complex, "use [value.real, value.imag]"),
    (PurePath, "use str(value)"),
    ((bytearray, memoryview), "use bytes(value)"),
    ((set, frozenset), "use a list"),
    (Iterator, "use list(value)"),
    (BaseException, "use its text"),
)
_BASES = (bool, int, float, str, bytes, list, tuple, dict, datetime, date, timedelta, Decimal, UUID)
_INT_BITS = 64
_SHOWN = 60
_STEPS_SHOWN = 12


def explain(value: object, what: Callable[[], str]) -> None:
    """Raise the error that says which part of the value is not carried; return when all of it is.

    Args:
        value: the value.
        what: names the value; called only for an error.

    Raises:
        SerializationError: a part is not carried.
        PayloadTooLarge: there are more than `MAX_VALUES` parts.
    """
    search = _Search()
    try:
        search.visit(value)
    except SerializationError as error:
        raise type(error)(f"{what()}{_route(search.path)}: {error}") from None


def foreign(value: object) -> str:
    """Say that the type is not carried, and what to use instead. Never shows the value: it may be secret or huge."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    hint = _hint(value)
    return f"{name} is not carried; {hint + '; ' if hint else ''}{ALLOWED}"


def bad_offset(value: datetime) -> str | None:
    """Say why a datetime is refused for its UTC offset; None when it is not."""
    offset = value.utcoffset()
    if offset is None:
        return (
            f"datetime {value.isoformat()} is naive: which moment it means depends on the machine that reads it; "
            "use one with a tzinfo, such as datetime.now(timezone.utc)"
        )
    if offset.microseconds:  # Python 3.11 itself reads some of them back as UTC
        return f"datetime {value.isoformat()} has a UTC offset with a fraction of a second; allowed are whole seconds"
    return None


def step(key: str) -> str:
    """The path from a dict to the value under a key."""
    return f".{key}" if key.isidentifier() and key.isascii() else f"[{shorten(ascii(key))}]"


def too_large(what: str, size: int, limit: int | None) -> PayloadTooLarge:
    """The error for a value over the limit in bytes."""
    allowed = MAX_BYTES if limit is None else limit
    return PayloadTooLarge(
        f"{what}: {size:,} bytes encoded, allowed are at most {allowed:,}; store it elsewhere and pass its place"
    )


def shorten(text: str) -> str:
    """The text, cut to a length that suits an error."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _route(path: list[str]) -> str:
    """The steps in one text; a path too deep to be read is cut."""
    return "".join(path[:_STEPS_SHOWN]) + ("..." if len(path) > _STEPS_SHOWN else "")


def _hint(value: object) -> str:
    for kinds, hint in _HINTS:
        if isinstance(value, kinds):
            return hint
    for base in _BASES:
        if isinstance(value, base):
            return f"use {base.__name__}(value)" if base in {bool, int, float, str, bytes, list, tuple, dict} else ""
    if isinstance(value, Mapping):
        return "use dict(value)"
    if hasattr(type(value), "__dataclass_fields__"):
        return "use dataclasses.asdict(value)"
    return "use value.model_dump()" if hasattr(type(value), "model_dump") else ""


class _Search:
    """Depth-first search for the first part that is not carried; `path` then leads to it.

    A container that was found sound is not entered again, so the search takes no longer than the structure is large,
    however often it repeats itself.
    """

    def __init__(self) -> None:
        self.path: list[str] = []
        self._above: dict[int, int] = {}
        self._sound: dict[int, tuple[int, int]] = {}
        self._left = MAX_VALUES

    def visit(self, value: Any) -> int:
        """Raise, or return how many containers deep the value is."""
        if type(value) is not dict and type(value) not in SEQUENCES:
            _check_leaf(value)
            return 0
        depth, parts = self._sound.get(id(value), (MAX_DEPTH, 0))
        if len(self._above) + depth <= MAX_DEPTH and id(value) in self._sound:
            self._spend(parts)
            return depth
        before = self._left
        depth = 1 + self._visit_parts(value)
        self._sound[id(value)] = depth, before - self._left
        return depth

    def _visit_parts(self, container: Any) -> int:
        self._enter(container)
        depth = 0
        for key, part in container.items() if type(container) is dict else enumerate(container):
            if type(container) is dict:
                self._check_key(key)
            self.path.append(step(key) if isinstance(key, str) else f"[{key}]")
            depth = max(depth, self.visit(part))
            self.path.pop()
        self._above.popitem()
        return depth

    def _enter(self, container: Any) -> None:
        name = type(container).__name__
        if id(container) in self._above:
            above = _route(self.path[: self._above[id(container)]])
            raise SerializationError(f"{name} contains itself (it is also at {above or 'the top'}); no cycles allowed")
        if len(self._above) >= MAX_DEPTH:
            raise SerializationError(f"{name} nested deeper than {MAX_DEPTH}, the most allowed")
        self._above[id(container)] = len(self.path)
        parts = container.values() if type(container) is dict else container
        if not LEAVES.issuperset(map(type, parts)):
            self._spend(len(container))

    def _spend(self, parts: int) -> None:
        self._left -= parts
        if self._left < 0:
            raise PayloadTooLarge(
                f"over {MAX_VALUES:,} values inside one another, the most allowed; store it elsewhere"
            )

    def _check_key(self, key: Any) -> None:
        if type(key) is not str:
            shown = f" {shorten(repr(key))}" if type(key) in LEAVES - {int} or _is_carried_int(key) else ""
            raise SerializationError(f"dict key{shown} is of type {type(key).__name__}; allowed are str keys")
        _check_text(key, "dict key")


def _check_leaf(value: Any) -> None:
    kind = type(value)
    if kind not in LEAVES:
        raise SerializationError(foreign(value))
    if kind is int and not _is_carried_int(value):
        _refuse_int(value)
    if kind is str:
        _check_text(value, "str")
    if kind is datetime and (reason := bad_offset(value)):
        raise SerializationError(reason)


def _is_carried_int(value: Any) -> bool:
    return type(value) is int and -(2 ** (_INT_BITS - 1)) <= value < 2**_INT_BITS


def _refuse_int(value: int) -> NoReturn:
    bits = value.bit_length()
    raise SerializationError(f"int of {bits} bits; allowed are -2**63 to 2**64-1; use a str or a Decimal")


def _check_text(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = ascii(text[error.start])
        raise SerializationError(
            f"{what} holds the lone surrogate {bad} at index {error.start}, which is no character; use bytes"
        ) from None
