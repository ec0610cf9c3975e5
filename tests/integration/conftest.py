"""A store on the test's own namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from poimen_tasks.store import CacheScripts, Store

if TYPE_CHECKING:
    import redis

    from poimen_tasks.settings import Settings


@pytest.fixture
def store(settings: Settings, redis_client: redis.Redis) -> Iterator[Store]:
    """Connected to the test's own database, which is emptied afterwards."""
    made = Store(settings, str(settings.redis_url))
    yield made
    made.client.close()


@pytest.fixture
def cache(store: Store) -> CacheScripts:
    """The cache's verbs of that store."""
    return store.cache
