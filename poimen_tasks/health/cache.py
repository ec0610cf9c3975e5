"""A check of the result cache: its entries are recounted, its indexes and computations held against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from poimen_tasks.health.batches import MOST_KEYS
from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.health.repairs import REPAIR, Repairs
from poimen_tasks.store.cache_survey import CacheNames, CacheSurvey

if TYPE_CHECKING:
    from poimen_tasks.store import Store

__all__ = ["check_cache"]

T = TypeVar("T")
_SLICE = 250
_LOOKS = 3

_KINDS = {
    "damaged": "entries that cannot be read",
    "dead": "index members without an entry",
    "unlisted": "entries that are missing in an index",
    "flights": "computations that nobody looks at",
    "calls": "calls that nobody releases",
}


def check_cache(store: Store, repairs: Repairs | None, progress: Callable[[str], None]) -> Finding:
    """Recount the cache, again when entries came or went meanwhile.

    Args:
        store: the store.
        repairs: put right what is not; None only looks.
        progress: told how far it is.
    """
    recount = _Recount(store, repairs, progress)
    for _ in range(_LOOKS):
        if recount.look():
            break
    return recount.finding()


class _Recount:
    """One recount. What is judged by its name is exact at any time; sums are compared only if nothing changed."""

    def __init__(self, store: Store, repairs: Repairs | None, progress: Callable[[str], None]) -> None:
        self._cache = store.cache
        self._survey = CacheSurvey(store.client)
        self._repairs = repairs
        self._progress = progress
        self._found: Counter[str] = Counter()
        self._drift: list[str] = []
        self._fixed_drift: list[str] = []
        self._entries = self._bytes = 0
        self._fixed: Counter[str] = Counter()
        self._busy = False
        self._whole = True
        self._repaired = False

    def look(self) -> bool:
        """Look once; False when the sums moved meanwhile."""
        changes = self._survey.changes()
        names = self._survey.names(most=MOST_KEYS, progress=lambda seen: self._progress(f"cache, keys about {seen:,}"))
        # What was repaired at the look before is not there any more, and still is what was found.
        self._whole, self._drift, self._found = names.whole, [*self._fixed_drift], Counter(self._fixed)
        entries, sizes = self._names(names)
        self._entries, self._bytes = sum(entries.values()), sum(sizes.values())
        if not names.whole:
            return True
        activities = sorted({*names.activities, *entries})
        self._busy = False
        for some in _slices(activities or [b""]):
            rows = [[name, entries[name], sizes[name]] for name in some if name]
            reply = self._judge({"sums": rows, "bytes": self._bytes, "changes": changes})
            self._busy = self._busy or bool(reply[b"busy"])
            self._drift += _in_words(reply)
            if reply[b"repaired"]:
                self._fixed_drift += _in_words(reply)
        return not self._busy

    def _names(self, names: CacheNames) -> tuple[Counter[bytes], Counter[bytes]]:
        """Judge all that is judged by its name; returns entries and bytes by activity."""
        entries, sizes = Counter[bytes](), Counter[bytes]()
        for keys in _slices(sorted(names.keys | names.listed)):
            reply = self._judge({"keys": keys})
            names.keys.difference_update(reply[b"gone"])
            for activity, count, size in reply[b"sums"]:
                entries[activity] += count
                sizes[activity] += size
        dead = ((scope, key) for scope in names.scopes for key in self._survey.members(scope) if key not in names.keys)
        for members in _slices(dead):
            self._judge({"members": members})
        for flights in _slices(sorted(names.flights)):
            self._judge({"flights": flights})
        for calls in _slices(sorted(self._survey.lost_calls(names.flights))):
            self._judge({"calls": calls})
        return entries, sizes

    def _judge(self, request: dict[str, Any]) -> dict[bytes, Any]:
        actor = self._repairs.actor if self._repairs else "doctor"
        reply = self._cache.repair_cache(request, repair=self._repairs is not None, actor=actor)
        found = {kind: reply[kind.encode()] for kind in ("dead", "unlisted", "flights", "calls")}
        self._found.update(found | {"damaged": len(reply[b"gone"])})
        if reply[b"repaired"]:
            self._repaired = True
            self._fixed.update(found | {"damaged": len(reply[b"gone"])})
        return reply

    def finding(self) -> Finding:
        """What all looks came to."""
        words = [f"{text}: {self._found[kind]}" for kind, text in _KINDS.items() if self._found[kind]] + self._drift
        if words:
            return Finding(
                Level.ERROR, "cache", "results", "; ".join(words), REPAIR, repairable=True, repaired=self._repaired
            )  # fmt: skip
        if not self._whole:
            text = f"only about {MOST_KEYS:,} keys were looked at, so its entries were not recounted"
            return Finding(Level.WARNING, "cache", "results", text, "give Poimen a database or server of its own")
        if self._busy:
            text = f"busy: entries came and went at each of {_LOOKS} looks, so its bytes were not recounted"
            return Finding(Level.OK, "cache", "results", text)
        text = f"{self._entries:,} entries of {self._bytes:,} bytes agree with its counters and indexes"
        return Finding(Level.OK, "cache", "results", text)


def _in_words(reply: dict[bytes, Any]) -> list[str]:
    words = [
        f"activity {name.decode(errors='replace')}: "
        f"counted are {size} entries of {held} bytes, there are {found} of {total}"
        for name, size, found, held, total in reply[b"drift"]
    ]
    if reply[b"bytes"]:
        counted, found = reply[b"bytes"]
        words.append(f"bytes: counted are {counted}, there are {found}")
    return words


def _slices(things: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(things)
    while some := list(islice(rest, _SLICE)):
        yield some
