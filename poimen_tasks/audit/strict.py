"""Whether many lines are strict JSON, faster than one by one: SQLite's parser looks at a thousand of them in one call.

The lines become the elements of one array with a random text between any two of them. When the array has exactly the
elements that it should have, objects and those texts in equal places, then each text stands at the top of the array,
since nobody can have known it, and so what is between two of them is one JSON value: every line is an object by itself.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence

from poimen_tasks.audit.lines import head_of, read_event

__all__ = ["first_invalid"]

_AT_ONCE = 1_000
# Since 3.42 SQLite also takes JSON5, but for json_valid.
_STRICT = "json_valid(?1)" if sqlite3.sqlite_version_info >= (3, 42) else "1"
_COUNT = f"SELECT count(*), sum(type = 'object'), sum(atom = ?2), {_STRICT} FROM json_each(?1)"  # noqa: S608 - our own text


def first_invalid(lines: Sequence[bytes]) -> tuple[int, str] | None:
    """The first line that is no object in strict JSON, and why; None: all are.

    Args:
        lines: printable ASCII, each of the form of a line.
    """
    for at in range(0, len(lines), _AT_ONCE):
        some = lines[at : at + _AT_ONCE]
        text = b"\n".join(some)
        # Half of a character is JSON for SQLite: lines that may hold one are looked at one by one.
        if not _valid(some) or b"\\ud" in text or b"\\uD" in text:
            for place, line in enumerate(some, at):
                try:
                    read_event(head_of(line).event)
                except ValueError as error:
                    return place, str(error)
    return None


def _valid(lines: Sequence[bytes]) -> bool:
    between = secrets.token_hex(16)
    text = (b"[" + (b',"%b",' % between.encode()).join(lines) + b"]").decode("ascii")
    try:
        connection = sqlite3.connect(":memory:")
        try:
            found = connection.execute(_COUNT, (text, between)).fetchone()
        finally:
            connection.close()
    except sqlite3.Error:
        return False  # malformed, nested too deep, or a SQLite without JSON: looked at one by one
    elements, objects, texts, strict = found
    return bool(strict) and (elements, objects, texts or 0) == (2 * len(lines) - 1, len(lines), len(lines) - 1)
