"""Leaders that are killed, frozen past their lease, or overtaken by an invalidation: none may store its value."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from poimen_tasks import codec
from poimen_tasks.cache_key import CacheKey
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.cache_scripts import Labels, Put
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target
from tests.conftest import ROOT

__all__ = ["cache_kills"]

_NAMESPACE = "cachekills"
_ACTIVITY = "bench.takeover"
_LEASE = 1.0
_PATIENCE = 60.0


def cache_kills(bench: Bench) -> Iterator[Row]:
    """Seeded rounds, one in ten with processes and real signals, the others with leases that are made to end."""
    bench.stop()
    url = bench.ours.server.url
    store = Store(Settings(redis_url=url, namespace=_NAMESPACE, lease=_LEASE), url)
    rounds = bench.size(1000, 30)
    kinds = Counter[str]()
    began = time.perf_counter()
    for number in range(rounds):
        if number % 10:
            kinds.update(_round(store, random.Random(number), f"round-{number}"))
    with ThreadPoolExecutor(2) as pool:
        processes = _Processes(bench, store)
        for told in pool.map(processes.round, range(0, rounds, 10)):
            kinds.update(told)
    yield Row(
        name=f"cache: values of replaced or outdated leaders that were stored, {rounds:,} rounds",
        unit="",
        ours=kinds["wrong"],
        target=Target(of="ours", at_most=0),
        samples={**kinds, "seconds": time.perf_counter() - began},
    )
    yield Row(
        name="cache: executions in those rounds, ÷ those that the kills and invalidations call for",
        unit="x",
        ours=kinds["executions"] / kinds["expected"],
        target=Target(of="ours", at_most=1),
        samples={"executions": kinds["executions"], "expected": kinds["expected"]},
    )


# --- leases that are made to end -----------------------------------------------------------------------------------


def _round(store: Store, rnd: random.Random, name: str) -> Counter[str]:
    """Callers lead one after the other, each overtaken by something; then all of them come with their values."""
    key, tag = CacheKey(_ACTIVITY, "", name), f"tag-{name}"
    told, leaders, good = Counter[str](rounds=1), list[str](), None
    for _ in range(rnd.randint(1, 2)):
        owner = f"{name}-{len(leaders)}"
        begun = store.cache.cache_begin(key.digest, activity=_ACTIVITY, owner=owner, lease=60.0)
        told["executions"] += begun.how == "lead"
        told["expected"] += 1
        leaders.append(owner)
        what = rnd.choice(["expire", "key", "tag", "activity", "clear"])
        told[what] += 1
        _overtake(store, key, tag, what)
        if what != "expire" and rnd.random() < 0.5:
            told["wrong"] += _finish(store, key, tag, owner) == "stored"
            leaders.pop()
    heir = f"{name}-heir"
    if store.cache.cache_begin(key.digest, activity=_ACTIVITY, owner=heir, lease=60.0).how == "wait":
        _overtake(store, key, tag, "expire")
        store.cache.cache_begin(key.digest, activity=_ACTIVITY, owner=heir, lease=60.0)
    came = [*leaders, heir] if rnd.random() < 0.5 else [heir, *leaders]
    for owner in came:
        put = _finish(store, key, tag, owner)
        told["wrong"] += put == "stored" and owner != heir
        good = owner if put == "stored" else good
    found = store.cache.cache_hit(key.digest, _ACTIVITY)
    told["wrong"] += found is not None and codec.decode(found) != good
    told["wrong"] += good not in (None, heir)
    return told


def _overtake(store: Store, key: CacheKey, tag: str, what: str) -> None:
    if what == "expire":
        flight = store.keys.build("flight", "").encode() + key.digest
        store.client.redis.hset(flight, "d", 1)
        store.client.redis.zadd(store.keys.build("flight_due"), {key.digest: 1.0})
        store.cache.settle_flight(key.digest)
    elif what == "key":
        store.cache.cache_invalidate(keys=[key.digest])
    else:
        scope = {"tag": f"g:{tag}", "activity": f"a:{_ACTIVITY}", "clear": "*"}[what]
        store.cache.cache_invalidate(scopes=[scope])


def _finish(store: Store, key: CacheKey, tag: str, owner: str) -> str:
    labels = Labels(key.activity, key.task_id, key.input_hash, key.model_id, (tag,))
    return store.cache.cache_finish(Put(key.digest, labels, codec.encode(owner), 0.0, 0.5), owner=owner).put


# --- processes and signals -----------------------------------------------------------------------------------------


class _Processes:
    def __init__(self, bench: Bench, store: Store) -> None:
        self._store = store
        self._redis: Any = bench.ours.redis
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "POIMEN_REDIS_URL": bench.ours.server.url,
            "POIMEN_NAMESPACE": _NAMESPACE,
            "POIMEN_LEASE": str(_LEASE),
        }

    def round(self, number: int) -> Counter[str]:
        """A leader computes, something happens to it, and another caller asks for the same."""
        what = random.Random(number).choice(["kill", "freeze", "invalidate"])
        name, told = f"process-{number}", Counter[str]({"rounds": 1, "expected": 2, what: 1})
        key = CacheKey(_ACTIVITY, "", name)
        leader = self._start("hold", name, 0.5)
        self._await(f"started:{name}")
        if what == "kill":
            leader.kill()
        elif what == "freeze":
            leader.send_signal(signal.SIGSTOP)
        else:
            self._store.cache.cache_invalidate(keys=[key.digest])
        try:
            if what == "invalidate":
                leader.wait(_PATIENCE)
                told["wrong"] += self._store.cache.cache_hit(key.digest, _ACTIVITY) is not None
            self._start("wait", name, 0).wait(_PATIENCE)
        finally:
            leader.send_signal(signal.SIGCONT)
            leader.wait(_PATIENCE)
        first, second = (self._redis.get(f"{word}:{name}") for word in ("started", "computed"))
        told["executions"] += (first is not None) + (second is not None)
        found = self._store.cache.cache_hit(key.digest, _ACTIVITY)
        told["wrong"] += found is None or second is None or codec.decode(found) != float(second)
        return told

    def _start(self, how: str, name: str, seconds: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.bench.cache_caller", how, name, str(seconds)]
        return subprocess.Popen(command, env=self._environment)

    def _await(self, key: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while self._redis.get(key) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{key} was not written within {_PATIENCE} s")
            time.sleep(0.005)
