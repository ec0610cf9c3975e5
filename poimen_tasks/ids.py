"""The two rules that every identifier of this package obeys.

*Names* (batch, workflow, stage, actor and queue ids) become parts of Redis keys, file names and log lines, so they are
plain ASCII without spaces. *Labels* (item and task ids) are the user's own words, paths and URLs among them: any
printable text, which rules out line breaks and control characters and so forged log records.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from poimen_tasks.errors import InvalidId

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LABEL_RULE", "NAME_RULE", "check_actor", "check_label", "check_labels", "check_name"]

NAME_RULE = "1-128 of A-Z a-z 0-9 _ . : - beginning with a letter or digit"
LABEL_RULE = "1-256 printable characters"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}").fullmatch
_LABEL_LENGTH = 256
_SHOWN = 60
_HARMLESS = frozenset({bool, float, bytes, type(None)})


def check_name(value: object, what: str) -> str:
    """Return a batch, workflow, stage, actor or queue id as a plain `str`.

    Args:
        value: the candidate; a subclass of `str` (an enum member, say) comes back as its text.
        what: names the id in the error, e.g. `batch id`.

    Raises:
        InvalidId: the value is not a string or breaks `NAME_RULE`.
    """
    if isinstance(value, str) and _NAME(value):
        return str.__str__(value)
    raise InvalidId(f"{what}: expected {NAME_RULE}, got {_shown(value)}")


def check_actor(actor: str | None) -> str:
    """Return who acts, for the audit log; `unknown` where nobody says.

    Raises:
        InvalidId: it breaks `NAME_RULE`.
    """
    return "unknown" if actor is None else check_name(actor, "actor")


def check_label(value: object, what: str) -> str:
    """Return an item or task id as a plain `str`.

    Printable is what `str.isprintable` says: letters of any script, punctuation and the plain space, but no line breaks
    and no control or invisible formatting characters.

    Args:
        value: the candidate; a subclass of `str` comes back as its text.
        what: names the id in the error, e.g. `item id`.

    Raises:
        InvalidId: the value is not a string or breaks `LABEL_RULE`.
    """
    if isinstance(value, str) and 0 < len(value) <= _LABEL_LENGTH and value.isprintable():
        return str.__str__(value)
    raise InvalidId(f"{what}: expected {LABEL_RULE}, got {_shown(value)}")


def check_labels(values: Sequence[Any], what: str) -> list[str]:
    """Check many labels at once, in a fraction of the time that `check_label` takes for each.

    Raises:
        InvalidId: naming the first that breaks `LABEL_RULE`.
    """
    if set(map(type, values)) == {str} and _all_labels(values):
        return list(values)
    return [check_label(value, what) for value in values]


def _all_labels(values: Sequence[str]) -> bool:
    return all(values) and max(map(len, values)) <= _LABEL_LENGTH and "".join(values).isprintable()


def _shown(value: object) -> str:
    """A short text of the value on one line; of a foreign type only its name is sure to be harmless."""
    if not isinstance(value, str):
        shown = f" {_cut(repr(value))}" if type(value) in _HARMLESS else ""
        return f"{type(value).__name__}{shown}"
    text = _cut(ascii(str.__str__(value)))
    return f"{text} ({len(value)} characters)" if len(value) > _SHOWN else text


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
