"""A process that asks the cache, for `cache.py`: `many KEYS THREADS`, `hold KEY SECONDS` or `wait KEY SECONDS`."""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import redis

from poimen_tasks import CacheKey, Poimen

poimen = Poimen("cachecaller")
bare = redis.Redis.from_url(os.environ["POIMEN_REDIS_URL"], protocol=2)


def many(keys: int, threads: int) -> None:
    """Each thread asks for every key once, in an order of its own."""

    def ask(seed: int) -> None:
        order = list(range(keys))
        random.Random(seed).shuffle(order)
        for number in order:
            poimen.cache.get_or_compute(CacheKey("bench.call", "", str(number)), lambda: compute(number))  # noqa: B023

    def compute(number: int) -> int:
        bare.incr("executions")
        time.sleep(0.005)
        return number

    running = [threading.Thread(target=ask, args=(os.getpid() * 100 + at,)) for at in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def one(how: str, name: str, seconds: float) -> None:
    """One key: note when the computation begins; `wait` notes that it is about to ask."""

    def compute() -> float:
        at = time.time()
        bare.set(f"started:{name}" if how == "hold" else f"computed:{name}", at)
        time.sleep(seconds)
        return at

    if how == "wait":
        bare.set(f"waiting:{name}", 1)
    poimen.cache.get_or_compute(CacheKey("bench.takeover", "", name), compute)


if __name__ == "__main__":
    if sys.argv[1] == "many":
        many(int(sys.argv[2]), int(sys.argv[3]))
    else:
        one(sys.argv[1], sys.argv[2], float(sys.argv[3]))
