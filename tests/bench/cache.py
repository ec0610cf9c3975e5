"""The result cache beside bare Redis commands on the same server, and what it promises under load, over long runs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from poimen_tasks.cache_key import CacheKey
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.cache_scripts import Labels, Put
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds, until
from tests.conftest import ROOT

__all__ = ["cache", "cache_callers", "cache_order"]

_VALUE = b"\xc4\x64" + b"v" * 100
_ACTIVITY = "bench.work"


def _store(bench: Bench, namespace: str, **changes: Any) -> Store:
    return Store(Settings(redis_url=bench.ours.server.url, namespace=namespace, **changes), bench.ours.server.url)


def _key(number: int) -> bytes:
    return CacheKey(_ACTIVITY, "", str(number)).digest


def _puts(numbers: Sequence[int], *, ttl: float = 60.0) -> list[Put]:
    return [Put(_key(number), Labels(_ACTIVITY, "", str(number)), _VALUE, ttl, 0.5) for number in numbers]


def cache(bench: Bench) -> Iterator[Row]:
    """Hits one by one and in bulk, puts that drive others out, and an invalidation of many."""
    bench.stop()
    store, redis = _store(bench, "cache"), bench.ours.redis
    count = bench.size(1000, 200)
    store.cache.cache_put(_puts(range(count)))
    redis.set("bare", _VALUE)
    keys = [_key(number) for number in range(count)]

    def one_by_one(ask: Callable[[int], Any]) -> float:
        samples = sorted(seconds(lambda at=at: ask(at)) for at in range(count))  # type: ignore[misc]
        return samples[count // 2] * 1e6

    taken = alternating(
        bench.size(7, 2),
        ours=lambda: one_by_one(lambda at: store.cache.cache_hit(keys[at], _ACTIVITY)),
        bare=lambda: one_by_one(lambda _at: redis.get("bare")),
    )
    yield Row(
        name="cache: one hit through the client, p50",
        unit="us",
        ours=middle(taken["ours"]),
        reference=middle(taken["bare"]),
        against="GET of the same value",
        target=Target(of="ratio", at_most=1.4),
        samples=taken,
    )

    def pipelined(name: str, *arguments: Sequence[Any]) -> float:
        pipeline = redis.pipeline(transaction=False)
        for row in zip(*arguments, strict=True):
            getattr(pipeline, name)(*row)
        return count / seconds(pipeline.execute)

    taken = alternating(
        bench.size(7, 2),
        ours=lambda: count / seconds(lambda: store.cache.cache_get(keys, [_ACTIVITY] * count)),
        bare=lambda: pipelined("get", ["bare"] * count),
    )
    yield Row(
        name="cache: hits in bulk",
        unit="1/s",
        ours=middle(taken["ours"]),
        reference=middle(taken["bare"]),
        against="pipelined GET",
        target=Target(of="ratio", at_least=0.25),
        samples=taken,
    )

    full = _store(bench, "cachefull", cache_max_entries=count)
    full.cache.cache_put(_puts(range(count)))
    fresh = iter(range(10**6, 10**9, count))

    def put_more() -> float:
        puts = _puts(range(first := next(fresh), first + count))
        return count / seconds(lambda: full.cache.cache_put(puts))

    taken = alternating(
        bench.size(7, 2),
        ours=put_more,
        bare=lambda: pipelined("set", [f"bare:{at}" for at in range(count)], [_VALUE] * count),
    )
    yield Row(
        name="cache: puts, each driving another out",
        unit="1/s",
        ours=middle(taken["ours"]),
        reference=middle(taken["bare"]),
        against="pipelined SET",
        target=Target(of="ratio", at_least=0.1),
        samples=taken,
    )
    yield _invalidating(bench)


def _invalidating(bench: Bench) -> Row:
    count = bench.size(100_000, 5_000)
    store = _store(bench, "cachemany")
    samples = []
    for _ in range(bench.size(3, 1)):
        store.cache.cache_put(_puts(range(count)))
        request = {"scopes": [f"a:{_ACTIVITY}"], "keys": [], "actor": "bench", "reason": ""}
        began = time.perf_counter()
        store.client.call("cache_invalidate", request, owner=os.urandom(8).hex(), sequence=1)
        assert store.cache.cache_hit(_key(count // 2), _ACTIVITY) is None
        samples.append((time.perf_counter() - began) * 1e3)
        while store.cache.cache_sweep():
            pass
    return Row(
        name=f"cache: {count:,} entries invalidated, until one is not served any more",
        unit="ms",
        ours=middle(samples),
        target=Target(of="ours", at_most=5),
        samples={"ours": samples},
    )


# --- order ---------------------------------------------------------------------------------------------------------


class _Model:
    """What an ordered dict does. An expired entry is a miss, and leaves when it is asked for or at the next put."""

    def __init__(self, entries: int, limit: int) -> None:
        self.kept: OrderedDict[int, bytes] = OrderedDict()
        self.size = 0
        self._entries, self._limit = entries, limit
        self._brief: set[int] = set()
        self._expired: set[int] = set()

    def get(self, call: int) -> bytes | None:
        if call in self._expired:
            self.drop(call)
        if call in self.kept:
            self.kept.move_to_end(call)
        return self.kept.get(call)

    def put(self, call: int, value: bytes, *, brief: bool) -> None:
        self.drop(call)
        while len(self.kept) >= self._entries or self.size + len(value) > self._limit:
            self.drop(next(iter(self.kept)))
        self.kept[call] = value
        self.size += len(value)
        if brief:
            self._brief.add(call)

    def drop(self, call: int) -> None:
        self.size -= len(self.kept.pop(call, b""))
        self._brief.discard(call)
        self._expired.discard(call)

    def expire(self) -> None:
        """Another call comes: what was to live for a moment is over."""
        self._expired |= self._brief
        self._brief.clear()

    def drop_expired(self) -> None:
        for call in list(self._expired):
            self.drop(call)


def cache_order(bench: Bench) -> Iterator[Row]:
    """A million random operations beside an ordered dict that does the same: how often the two disagree."""
    bench.stop()
    steps, entries, limit = bench.size(1_000_000, 20_000), 500, 60_000
    store = _store(bench, "cacheorder", cache_max_entries=entries, cache_max_bytes=limit)
    rnd, model, wrong = random.Random(7), _Model(entries, limit), 0
    for _ in range(steps // 50):
        kind, calls = rnd.random(), [rnd.randrange(1500) for _ in range(50)]
        if kind < 0.5:
            found = store.cache.cache_get([_key(call) for call in calls], [_ACTIVITY] * 50)
            wrong += sum(value != model.get(call) for call, value in zip(calls, found, strict=True))
        elif kind < 0.98:
            # One in five is over before the next call comes.
            values = {call: (bytes(rnd.randrange(1, 300)), rnd.random() < 0.2) for call in calls}
            store.cache.cache_put(
                [
                    Put(_key(call), Labels(_ACTIVITY, "", str(call)), value, 1e-6 if brief else 0.0)
                    for call, (value, brief) in values.items()
                ]
            )
            model.drop_expired()
            for call, (value, brief) in values.items():
                model.put(call, value, brief=brief)
        else:
            store.cache.cache_invalidate(keys=[_key(call) for call in calls])
            for call in calls:
                model.drop(call)
        model.expire()
    order: list[bytes] = store.client.redis.zrange(store.keys.build("cache_lru"), 0, -1)
    wrong += order != [_key(call) for call in model.kept]
    wrong += int(store.client.redis.hget(store.keys.build("cache_meta"), "bytes") or 0) != model.size
    yield Row(
        name=f"cache: differences from an ordered dict in {steps:,} operations",
        unit="",
        ours=wrong,
        target=Target(of="ours", at_most=0),
        samples={"entries": len(model.kept), "bytes": model.size},
    )


# --- callers -------------------------------------------------------------------------------------------------------


def cache_callers(bench: Bench) -> Iterator[Row]:
    """Many callers in several processes for the same keys; leaders that are killed while they compute."""
    bench.stop()
    keys, processes, threads = bench.size(1000, 50), 4, 16
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "POIMEN_REDIS_URL": bench.ours.server.url,
        "POIMEN_NAMESPACE": "cachecallers",
        "POIMEN_LEASE": "2",
    }
    command = [sys.executable, "-m", "tests.bench.cache_caller"]
    began = time.perf_counter()
    running = [subprocess.Popen([*command, "many", str(keys), str(threads)], env=environment) for _ in range(processes)]
    for process in running:
        process.wait()
    executions = int(bench.ours.redis.get("executions") or 0)
    store = Store(Settings(redis_url=bench.ours.server.url, namespace="cachecallers"), bench.ours.server.url)
    counters = store.cache.counters("bench.call")["bench.call"]
    calls = sum(counters.get(name, 0) for name in ("hits", "misses", "coalesced"))
    yield Row(
        name=f"cache: executions for {processes * threads} callers of {keys:,} keys, ÷ keys",
        unit="x",
        ours=executions / keys,
        target=Target(of="ours", at_most=1),
        samples={"executions": executions, "seconds": time.perf_counter() - began},
    )
    yield Row(
        name="cache: (hits + misses + coalesced) ÷ calls",
        unit="x",
        ours=calls / (keys * processes * threads),
        target=Target(of="ours", at_most=1),
        samples=counters,
    )
    yield _takeover(bench, command, environment)


def _takeover(bench: Bench, command: list[str], environment: dict[str, str]) -> Row:
    """Seconds beyond the lease until another caller computes, when the one that did was killed."""
    samples = []
    for number in range(bench.size(5, 1)):
        key = f"takeover-{number}"
        leader = subprocess.Popen([*command, "hold", key, "60"], env=environment)
        until(lambda: bench.ours.redis.get(f"started:{key}"), timeout=60)  # noqa: B023
        follower = subprocess.Popen([*command, "wait", key, "0"], env=environment)
        until(lambda: bench.ours.redis.get(f"waiting:{key}") is not None, timeout=60)  # noqa: B023
        leader.kill()
        leader.wait()
        killed = time.time()
        follower.wait()
        samples.append(float(bench.ours.redis.get(f"computed:{key}") or 0) - killed - 2.0)
    return Row(
        name="cache: a killed leader is taken over after its lease and",
        unit="s",
        ours=middle(samples),
        target=Target(of="ours", at_most=0.1),
        samples={"ours": samples},
    )
