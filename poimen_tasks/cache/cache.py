"""Look up, put, compute once, invalidate: every step is one script in the store, so any number of processes may."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from poimen_tasks import codec
from poimen_tasks._checks import MOST_SECONDS, check_count, check_number, check_tags, expected, words
from poimen_tasks.cache.leader import Leader
from poimen_tasks.cache.values import MISSING, CacheEntry, CacheStats
from poimen_tasks.cache_key import CacheKey, key_of, key_of_call
from poimen_tasks.context import may_wait_for
from poimen_tasks.errors import CacheTimeout, InvalidArgument, SerializationError
from poimen_tasks.ids import check_actor, check_label
from poimen_tasks.policy import policy_of
from poimen_tasks.store.cache_scripts import CacheScripts, Labels, Landed, Put

if TYPE_CHECKING:
    from poimen_tasks.settings import Settings
    from poimen_tasks.store import Store

__all__ = ["Cache"]

log = logging.getLogger(__name__)
T = TypeVar("T")
_ASK_FIRST, _ASK = 0.005, 0.05


class Cache:
    """Results of expensive calls, shared by every process of a namespace.

    Bounded by entries and by bytes: the least recently used leave first. Values go through the package's codec.
    """

    input_hash = staticmethod(codec.input_hash)

    def __init__(
        self, load_settings: Callable[[], Settings], store: Callable[[], Store], publish: Callable[[Landed], None]
    ) -> None:
        self._load_settings = load_settings
        self._store = store
        self._publish = publish

    @property
    def _scripts(self) -> CacheScripts:
        return self._store().cache

    # --- single results ------------------------------------------------------------------------------------------

    def get(self, key: CacheKey) -> Any:
        """The value under a key, or `MISSING`. Counts as a hit or a miss.

        Raises:
            InvalidArgument: not a `CacheKey`.
        """
        wanted = key_of(key)
        if self._load_settings().audit_cache_hits:
            return self.get_many([wanted])[0]
        blob = self._scripts.cache_hit(wanted.digest, wanted.activity)
        return MISSING if blob is None else self._open(wanted, blob)

    def get_many(self, keys: Iterable[CacheKey]) -> list[Any]:
        """The value under each key, or `MISSING`, in their order; 500 a round trip."""
        wanted, settings = [key_of(key) for key in keys], self._load_settings()
        found = self._scripts.cache_get(
            [key.digest for key in wanted], [key.activity for key in wanted], log=settings.audit_cache_hits
        )
        return [MISSING if blob is None else self._open(key, blob) for key, blob in zip(wanted, found, strict=True)]

    def _open(self, key: CacheKey, blob: bytes) -> Any:
        """The value in a blob; what cannot be read is no error of whoever asked."""
        try:
            return codec.decode(blob)
        except SerializationError as error:
            log.warning("cache: the value of %s cannot be read, it is computed again: %s", key, error)
            self._scripts.cache_invalidate(keys=[key.digest], actor="cache", reason="unreadable")
            return MISSING

    def put(
        self,
        key: CacheKey,
        value: Any,
        *,
        ttl: float | None = None,
        tags: Sequence[str] = (),
        seconds: float = 0.0,
        max_bytes: int | None = None,
    ) -> bool:
        """Store a value. False when it is too large for the cache; that is counted.

        Args:
            key: what it is filed under.
            value: anything the codec carries; None is a value.
            ttl: seconds that it is served; 0 is for ever, None the setting `cache_ttl`.
            tags: labels to invalidate it by.
            seconds: what computing it took, for `seconds_saved`; at most 1e9.
            max_bytes: most encoded bytes; None is no limit but the cache's own.

        Raises:
            InvalidArgument: an argument is out of its range.
            SerializationError: the codec does not carry the value.
        """
        put = self._put(key, value, ttl=ttl, tags=tags, seconds=seconds, max_bytes=max_bytes)
        return self._scripts.cache_put([put]) == ["stored"]

    def put_many(self, values: Mapping[CacheKey, Any], *, ttl: float | None = None, tags: Sequence[str] = ()) -> int:
        """Store many values, 100 a round trip. Returns how many were not too large."""
        puts = [self._put(key, value, ttl=ttl, tags=tags) for key, value in values.items()]
        return self._scripts.cache_put(puts).count("stored")

    def _put(
        self,
        key: CacheKey,
        value: Any,
        *,
        ttl: float | None,
        tags: Sequence[str],
        seconds: float = 0.0,
        max_bytes: int | None = None,
    ) -> Put:
        labels = _labels(key_of(key), tags)
        if ttl is not None:
            check_number("ttl", ttl, least=0, most=MOST_SECONDS)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        check_number("seconds", seconds, least=0, most=MOST_SECONDS)
        blob = codec.compress(codec.encode(value, what=f"value of {key}"))
        return Put(key.digest, labels, blob, self._ttl(ttl), seconds, max_bytes)

    def _ttl(self, ttl: float | None) -> float:
        return self._load_settings().cache_ttl if ttl is None else float(ttl)

    # --- compute once --------------------------------------------------------------------------------------------

    def get_or_compute(
        self,
        key: CacheKey,
        compute: Callable[[], T],
        *,
        ttl: float | None = None,
        tags: Sequence[str] = (),
        timeout: float | None = None,
    ) -> T:
        """The value under a key; computed here when nobody has it and nobody else computes it.

        Equal calls anywhere wait for the one that computes. When that one dies, another goes on after its lease
        (`POIMEN_LEASE`); when two have failed, each computes for itself. Inside of another computation it waits only
        where no circle of waiting calls can close, and computes otherwise.

        Args:
            key: what it is filed under.
            compute: called without arguments; what it raises passes on, and is not cached.
            ttl: seconds that a computed value is served; 0 is for ever, None the setting `cache_ttl`.
            tags: labels to invalidate it by.
            timeout: most seconds to wait for another's computation; None waits as long as it takes.

        Raises:
            CacheTimeout: another call still computes it.
            InvalidArgument: an argument is out of its range.
            SerializationError: the codec does not carry the value.
            StoreUnavailable: Redis does not answer.
        """
        labels = _labels(key_of(key), tags)
        if not callable(compute):
            raise expected("compute", "a callable", compute)
        seconds = self._ttl(ttl if ttl is None else _checked("ttl", ttl))
        deadline = math.inf if timeout is None else time.monotonic() + _checked("timeout", timeout)
        leader = Leader(self._scripts, key.digest, lease=self._load_settings().lease, publish=self._publish)
        since, pause = None, _ASK_FIRST
        while True:
            begun = leader.begin(key.activity, since=since, alone=not may_wait_for(key.digest))
            if begun.how == "hit":
                value = self._open(key, begun.value or b"")
                if value is not MISSING:
                    return value  # type: ignore[no-any-return]
                since = None  # the value on its way is the one that cannot be read
                continue
            if begun.how != "wait":
                return leader.compute(compute, labels, ttl=seconds, leads=begun.how == "lead")  # type: ignore[no-any-return]
            since = begun.clock
            if time.monotonic() + pause > deadline:
                raise CacheTimeout(f"the value of {key} is still being computed elsewhere after {timeout} s")
            time.sleep(pause)
            pause = min(2 * pause, _ASK)

    # --- invalidating --------------------------------------------------------------------------------------------

    def invalidate(
        self,
        *,
        key: CacheKey | None = None,
        activity: str | None = None,
        task_id: str | None = None,
        model_id: str | None = None,
        tag: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> int:
        """Call back what is cached under a key, or with a label. Nobody is served it from the moment this is written.

        A computation under way, which may have read what is outdated now, cannot store its value any more.

        Returns:
            How many entries there were, those included that had expired.

        Raises:
            InvalidArgument: none or several of key, activity, task_id, model_id and tag are given.
        """
        given = {"key": key, "activity": activity, "task_id": task_id, "model_id": model_id, "tag": tag}
        named = {name: value for name, value in given.items() if value is not None}
        if len(named) != 1:
            raise InvalidArgument(
                f"invalidate: expected one of {', '.join(given)}, got {', '.join(named) or 'none'}; "
                "use clear() for everything"
            )
        who = check_actor(actor)
        ((name, value),) = named.items()
        if name == "key":
            return self._scripts.cache_invalidate(keys=[key_of(value).digest], actor=who, reason=words(reason))
        scope = f"{_SCOPES[name]}:{check_label(value, name)}"
        return self._scripts.cache_invalidate(scopes=[scope], actor=who, reason=words(reason))

    def clear(self, *, actor: str | None = None, reason: str = "") -> int:
        """Call back everything. Returns how many entries there were."""
        who = check_actor(actor)
        return self._scripts.cache_invalidate(scopes=["*"], actor=who, reason=words(reason))

    # --- looking inside ------------------------------------------------------------------------------------------

    def stats(self, activity: str | None = None) -> CacheStats:
        """Size, hits, misses and what else is counted, of all or of one activity (zeros for an unknown one)."""
        if activity is not None:
            check_label(activity, "activity")
        sums: dict[str, int] = {}
        for counters in self._scripts.counters(activity).values():
            for name, count in counters.items():
                sums[name] = sums.get(name, 0) + count
        settings = self._load_settings()
        return CacheStats.from_counters(
            sums, max_entries=settings.cache_max_entries, max_bytes=settings.cache_max_bytes
        )

    def activities(self) -> list[str]:
        """The activities that have ever used the cache."""
        return self._scripts.activities()

    def entries(self, limit: int = 100, cursor: float | None = None) -> tuple[list[CacheEntry], float | None]:
        """What is cached, the most recently used first.

        Args:
            limit: most entries to return, up to 500.
            cursor: where the page before ended; None for the first.

        Returns:
            The entries, and the cursor of the next page or None when this was the last.
        """
        check_count("limit", limit)
        count = min(limit, 500)
        rows = self._scripts.cache_list(before=cursor, count=count)
        return [CacheEntry.from_row(row) for row in rows if row[7]], (rows[-1][0] if len(rows) == count else None)

    def key_for(self, task: Any, *args: Any, **kwargs: Any) -> CacheKey:
        """The key under which a cached task's call is filed, to look it up or to invalidate it.

        Raises:
            InvalidArgument: the task has no cache policy.
            UncacheableArguments: an argument has no canonical form.
        """
        policy = policy_of(task).cache
        if policy is None:
            raise expected("task", "one with policy(cache=...)", getattr(task, "name", task))
        key = key_of_call(policy, task, args, kwargs, what=f"call of {task.name}")
        if key is None:
            raise InvalidArgument(f"call of {task.name}: its arguments have no canonical form, so it runs uncached")
        return key


_SCOPES = {"activity": "a", "task_id": "t", "model_id": "m", "tag": "g"}


def _checked(name: str, value: float) -> float:
    check_number(name, value, least=0, most=MOST_SECONDS)
    return float(value)


def _labels(key: CacheKey, tags: Sequence[str]) -> Labels:
    return Labels(key.activity, key.task_id, key.input_hash, key.model_id, tuple(check_tags("tag", tags)))
