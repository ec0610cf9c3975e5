"""One caller's part in a computation that others may wait for: it leads under a lease, which a thread renews."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from poimen_tasks import codec
from poimen_tasks.context import leading
from poimen_tasks.errors import PoimenError, StoreUnavailable
from poimen_tasks.store.cache_scripts import Begun, CacheScripts, Labels, Landed, Put
from poimen_tasks.store.scripts import new_owner
from poimen_tasks.store.values import WaitingCall

__all__ = ["Leader"]

log = logging.getLogger(__name__)


class Leader:
    """Asks for one key under one random owner, which is its fencing token.

    Args:
        scripts: the cache's verbs.
        key: what is computed.
        lease: seconds.
        publish: publishes what follows of the end of a computation.
    """

    def __init__(self, scripts: CacheScripts, key: bytes, *, lease: float, publish: Callable[[Landed], None]) -> None:
        self._publish = publish
        self._scripts = scripts
        self._key = key
        self._owner = new_owner()
        self._lease = lease

    def begin(self, activity: str, *, since: int | None, alone: bool, call: WaitingCall | None = None) -> Begun:
        """Ask; again with the clock of the first answer, and `alone` where waiting could close a circle.

        A plain call that can wait without its process says so with `call`.
        """
        return self._scripts.cache_begin(
            self._key, activity=activity, owner=self._owner, lease=self._lease, since=since, alone=alone, call=call
        )

    def compute(
        self, compute: Callable[[], Any], labels: Labels, *, ttl: float, leads: bool, most: int | None = None
    ) -> Any:
        """Run the computation; as a leader also store its value, and let another lead when it fails."""
        if not leads:
            return compute()
        began = time.perf_counter()
        try:
            with leading(self._key), _Renewing(self._scripts, self._key, self._owner, self._lease):
                value = compute()
            blob = codec.compress(codec.encode(value, what=f"value of {labels.activity}"))
        except BaseException:
            self._give_up()
            raise
        put = Put(self._key, labels, blob, ttl, time.perf_counter() - began, most)
        try:
            landed = self._scripts.cache_finish(put, owner=self._owner)
        except StoreUnavailable as error:
            log.warning("cache: a value of %s was computed, and could not be stored: %s", labels.activity, error)
            return value  # it is paid for; others compute when the lease has ended
        if landed.put == "fenced":
            log.warning("cache: a value of %s came after its lease had ended, and was not stored", labels.activity)
        self._publish(landed)
        return value

    def _give_up(self) -> None:
        try:
            self._publish(self._scripts.cache_fail(self._key, owner=self._owner))
        except PoimenError as error:
            log.warning("cache: others wait until the lease of this computation ends: %s", error)


class _Renewing:
    """Renews the lease of a computation while it lasts; a short one ends before the thread is needed."""

    def __init__(self, scripts: CacheScripts, key: bytes, owner: str, lease: float) -> None:
        self._renew: Callable[[], bool] = lambda: scripts.cache_renew(key, owner=owner, lease=lease)
        self._every = lease / 3
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poimen-cache-lease", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                if not self._renew():
                    return
            except PoimenError as error:
                log.warning("cache: the lease of a computation could not be renewed: %s", error)
