"""Reads for `doctor`: which names the cache holds. None changes anything; each asks for at most 500."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack

from poimen_tasks.store.client import Client

__all__ = ["CacheNames", "CacheSurvey"]

_SLICE = 500


@dataclass(slots=True)
class CacheNames:
    """What was seen while looking; on a live system some of it is gone already, or new names are missing.

    Attributes:
        keys: of entries.
        listed: members of the indexes by use and by expiry.
        scopes: names of the indexes by scope.
        flights: keys that are computed, waited for, or in an index of computations.
        activities: that have counters.
        whole: whether all keys of the server were looked at.
    """

    keys: set[bytes] = field(default_factory=set)
    listed: set[bytes] = field(default_factory=set)
    scopes: set[bytes] = field(default_factory=set)
    flights: set[bytes] = field(default_factory=set)
    activities: set[bytes] = field(default_factory=set)
    whole: bool = True


class CacheSurvey:
    """Looks at the cache of one namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys = client.keys

    def changes(self) -> int:
        """How often an entry came or went."""
        meta = self._keys.build("cache_meta")
        return int(self._client.read(lambda redis: redis.hget(meta, "changes")) or 0)

    def names(self, *, most: int, progress: Callable[[int], None]) -> CacheNames:
        """Look at up to `most` keys of the server, and at the cache's indexes."""
        seen = CacheNames()
        kinds = {
            "cache_entry": seen.keys,
            "cache_index": seen.scopes,
            "cache_stats": seen.activities,
            "flight": seen.flights,
            "followers": seen.flights,
        }
        prefixes = [(self._keys.build(name, "").encode(), into) for name, into in kinds.items()]
        cursor, looked = 0, 0
        while True:
            cursor, found = self._scan(cursor)
            for key in found:
                for prefix, into in prefixes:
                    if key.startswith(prefix):
                        into.add(key[len(prefix) :])
            looked += _SLICE
            progress(looked)
            if cursor == 0 or looked >= most:
                break
        seen.whole = cursor == 0
        seen.listed.update(self._members("zscan", "cache_lru"), self._members("zscan", "cache_expiry"))
        seen.flights.update(self._members("zscan", "flights"))
        seen.activities.update(self._members("sscan", "cache_activities"))
        return seen

    def members(self, scope: bytes) -> Iterator[bytes]:
        """The keys in the index of a scope."""
        yield from self._cursor("sscan", self._keys.build("cache_index", "").encode() + scope)

    def lost_calls(self, flights: set[bytes]) -> set[bytes]:
        """Plain calls that wait and are in no list of followers. One that was released meanwhile may be among them."""
        waiting = set(self._members("hscan", "waiting_calls"))
        prefix = self._keys.build("followers", "").encode()
        for key in flights if waiting else ():
            waiting.difference_update(self._followers(prefix + key))
        return waiting

    def _followers(self, key: bytes) -> Iterator[bytes]:
        """Ids of plain calls in a list. It is read from its end: what leaves at its head shifts nothing there."""
        end = -1
        while rows := self._client.read(lambda redis, last=end: redis.lrange(key, last - _SLICE + 1, last)):  # type: ignore[misc]
            for row in rows:
                entry = msgpack.unpackb(row, raw=True)
                if len(entry) == 1:
                    yield entry[0]
            end -= _SLICE

    def _members(self, command: str, name: str) -> Iterator[bytes]:
        yield from self._cursor(command, self._keys.build(name).encode())

    def _cursor(self, command: str, key: bytes) -> Iterator[bytes]:
        cursor = 0
        while True:
            cursor, rows = self._client.read(lambda redis, at=cursor: getattr(redis, command)(key, at, count=_SLICE))  # type: ignore[misc]
            for row in rows:
                yield row[0] if isinstance(row, tuple) else row
            if cursor == 0:
                return

    def _scan(self, cursor: int) -> tuple[int, list[bytes]]:
        pattern = re.sub(r"([\[\]*?^\\])", r"\\\1", self._keys.root) + "c:*"
        found: Any = self._client.read(lambda redis: redis.scan(cursor, match=pattern, count=_SLICE))
        return int(found[0]), list(found[1])
