"""The result cache as users see it: look up, put, compute once, invalidate, look inside."""

from __future__ import annotations

from poimen_tasks.cache.cache import Cache
from poimen_tasks.cache.values import MISSING, CacheEntry, CacheStats, Missing
from poimen_tasks.cache_key import CacheKey

__all__ = ["MISSING", "Cache", "CacheEntry", "CacheKey", "CacheStats", "Missing"]
