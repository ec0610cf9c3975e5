"""Finds the key that somebody put another type of value in place of: the server's own error does not name it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from poimen_tasks.store.keys import TABLE, Key, Keys

__all__ = ["WrongType", "find_wrong_type", "is_wrong_type"]

#: What asks a key as its type without reading much: commands that `config/users.acl` grants with the key.
_PROBES = {
    "hash": ("HEXISTS", ""),
    "list": ("LLEN",),
    "set": ("SCARD",),
    "stream": ("XLEN",),
    "string": ("GET",),
    "zset": ("ZCARD",),
}
#: Seconds, and keys a step, of looking through the namespace.
_PATIENCE, _STEP = 1.0, 500


class WrongType(NamedTuple):
    """A key, what it is (empty: the server does not say), and what it should be."""

    key: str
    found: str
    wanted: str

    def __str__(self) -> str:
        found = f"of type {self.found}" if self.found else "of another type"
        return (
            f"key {self.key!r} is {found}, where {'an' if self.wanted[0] in 'aeiou' else 'a'} {self.wanted} belongs: "
            "somebody wrote over it, or uses this namespace for something else. Rename or delete it (RENAME, DEL) and "
            "run `poimen doctor`: what was kept there is lost. Or set POIMEN_NAMESPACE to a name that is free"
        )


def is_wrong_type(text: str) -> bool:
    """Whether an error of the server says that a key is of another type than the command takes."""
    return "WRONGTYPE Operation" in text


def find_wrong_type(redis: Any, keys: Keys) -> WrongType | None:
    """The first key of the namespace that is of another type than it should be.

    Args:
        redis: the connection of redis-py.
        keys: those of the namespace.

    Returns:
        None where there is none, or it was not found within a second, or the server does not answer.
    """
    try:
        return next(chain(_fixed(redis, keys), _named(redis, keys)), None)
    except RedisError:
        return None


def _fixed(redis: Any, keys: Keys) -> Iterator[WrongType]:
    """Keys of which there is one. Each is asked as its type: the rights to a key may not include TYPE."""
    pipeline = redis.pipeline(transaction=False)
    asked = [(keys.build(name), key.type) for name, key in TABLE.items() if not key.holes]
    for name, wanted in asked:
        command, *rest = _PROBES[wanted]
        pipeline.execute_command(command, name, *rest)
        pipeline.type(name)
    replies = pipeline.execute(raise_on_error=False)
    for at, (name, wanted) in enumerate(asked):
        probe, found = replies[2 * at : 2 * at + 2]
        if isinstance(probe, Exception) and is_wrong_type(str(probe)):
            yield WrongType(name, found.decode() if isinstance(found, bytes) else "", wanted)


def _named(redis: Any, keys: Keys) -> Iterator[WrongType]:
    """Keys of which there may be many: those of a batch, a pause, a cached result."""
    forms = [(re.compile(_pattern(keys.root, key)), key.type) for key in TABLE.values()]
    deadline, cursor = time.monotonic() + _PATIENCE, None
    while cursor != 0 and time.monotonic() < deadline:
        cursor, page = redis.scan(cursor or 0, match=f"{keys.root}*", count=_STEP)
        pipeline = redis.pipeline(transaction=False)
        for name in page:
            pipeline.type(name)
        for name, found in zip(page, pipeline.execute(raise_on_error=False), strict=True):
            text = name.decode(errors="replace")
            wanted = {kind for form, kind in forms if form.fullmatch(text)}
            if wanted and isinstance(found, bytes) and found.decode() not in (*wanted, "none"):
                yield WrongType(text, found.decode(), " or ".join(sorted(wanted)))


def _pattern(root: str, key: Key) -> str:
    """What the names of such keys look like; no slash stands in a batch's id or a tracker's name."""
    before, *pieces = key.form.split("{")
    made = re.escape(root + before)
    for piece in pieces:
        hole, _, rest = piece.partition("}")
        made += ("[^/]+" if hole in ("batch", "tracker") else ".+") + re.escape(rest)
    return made
