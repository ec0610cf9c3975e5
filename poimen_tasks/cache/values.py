"""What the cache answers: that there is nothing, what an entry is, and what was counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Self

from poimen_tasks.cache_key import CacheKey
from poimen_tasks.model import moment

__all__ = ["MISSING", "CacheEntry", "CacheStats", "Missing"]


class Missing:
    """The type of `MISSING`: what `get` returns for what is not cached, since None is a result like any other."""

    _only: Any = None

    def __new__(cls) -> Self:
        """There is one."""
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counters since the cache began, of one activity or of all.

    `hits + misses + coalesced` is how often a result was asked for; `coalesced` calls waited for an equal one that ran
    already. `evictions` made room, `expired` outlived their lifetime, `invalidated` were called back, `refused` were
    too large, `stale` were computed from before an invalidation, `fenced` came from a leader that had lost its lease,
    `corrupt` were damaged in the store, `uncacheable` calls ran without a key. `seconds_saved` is what hits and
    coalesced calls took when they were computed. `max_entries` and `max_bytes` are this process's settings.
    """

    size: int
    bytes: int
    max_entries: int
    max_bytes: int
    hits: int
    misses: int
    coalesced: int
    puts: int
    evictions: int
    expired: int
    invalidated: int
    refused: int
    stale: int
    fenced: int
    corrupt: int
    uncacheable: int
    seconds_saved: float

    @property
    def usage_ratio(self) -> float:
        """How full the cache is, by entries or by bytes, whichever is more."""
        return max(self.size / self.max_entries, self.bytes / self.max_bytes)

    @property
    def hit_rate(self) -> float:
        """Hits ÷ (hits + misses); 0 before the first call."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    @property
    def hits_per_entry(self) -> float:
        """Hits ÷ entries; 0 while there is none."""
        return self.hits / self.size if self.size else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        rates = {"usage_ratio": self.usage_ratio, "hit_rate": self.hit_rate, "hits_per_entry": self.hits_per_entry}
        return asdict(self) | rates

    @classmethod
    def from_counters(cls, counters: Mapping[str, int], *, max_entries: int, max_bytes: int) -> CacheStats:
        """From what the store counts; `saved` is in microseconds."""
        names = ("size", "bytes", "hits", "misses", "coalesced", "puts", "evictions", "expired", "invalidated",
                 "refused", "stale", "fenced", "corrupt", "uncacheable")  # fmt: skip
        return cls(
            max_entries=max_entries,
            max_bytes=max_bytes,
            seconds_saved=counters.get("saved", 0) / 1e6,
            **{name: counters.get(name, 0) for name in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One cached result, without its value.

    `seconds` is what computing it took, `bytes` what it takes as stored, `expires_at` None for never.
    `task_id` says which task computed it, to invalidate it by; it is in `key` only where it is part of it.
    """

    key: CacheKey
    task_id: str
    tags: tuple[str, ...]
    bytes: int
    hits: int
    seconds: float
    created_at: datetime
    last_hit_at: datetime | None
    expires_at: datetime | None

    @property
    def seconds_saved(self) -> float:
        """What its hits would have taken."""
        return self.hits * self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values; datetimes as ISO 8601 text."""
        data = {**asdict(self), "key": self.key.to_dict(), "tags": list(self.tags), "seconds_saved": self.seconds_saved}
        for name in ("created_at", "last_hit_at", "expires_at"):
            data[name] = data[name].isoformat() if data[name] else None
        return data

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> CacheEntry:
        """From a row of `cache_list`."""
        _, expiry, created, seconds, last, hits, size, labels = row
        activity, task, hashed, model, tags, *own = labels
        made = moment(float(created))
        assert made is not None  # noqa: S101 - it is a number
        return cls(
            key=CacheKey(activity.decode(), (own[0] if own else task).decode(), hashed.decode(), model.decode()),
            task_id=task.decode(),
            tags=tuple(tag.decode() for tag in (tags or ())),
            bytes=size,
            hits=hits,
            seconds=float(seconds),
            created_at=made,
            last_hit_at=moment(float(last)) if last else None,
            expires_at=moment(float(expiry)) if expiry else None,
        )
