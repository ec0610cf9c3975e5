"""Redis memory per no-op item, key by key: the embedded server has no allocator that reports it as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.bench.apps import Bench, Side
from tests.bench.measure import Row, Target

__all__ = ["memory", "namespace_bytes"]


def memory(bench: Bench) -> Iterator[Row]:
    """Bytes queued, and finished in bulk or one by one; audit entries are counted as part of the items."""
    from tests.bench import tasks_poimen as ours

    bulk, single = bench.size(100_000, 5_000), bench.size(10_000, 500)
    (worker,) = bench.workers()
    before = namespace_bytes(bench.ours)
    worker.pause()  # a stopped worker takes nothing
    batch = ours.poimen.dispatch(ours.poimen.map(ours.noop, range(bulk)))
    queued = _growth(before, namespace_bytes(bench.ours))
    worker.resume()
    batch.wait(timeout=120)
    finished = _growth(before, namespace_bytes(bench.ours))

    before = namespace_bytes(bench.ours)
    ours.poimen.dispatch(ours.poimen.map(ours.noop_single, range(single))).wait(timeout=120)
    one_by_one = _growth(before, namespace_bytes(bench.ours))
    for name, count, limit, growth in (
        ("Redis bytes per item: queued", bulk, 10, queued),
        ("Redis bytes per item: finished, claimed in bulk", bulk, 40, finished),
        ("Redis bytes per item: finished, claimed one by one", single, 300, one_by_one),
    ):
        yield Row(
            name=name,
            unit="B",
            ours=sum(growth.values()) / count,
            target=Target(of="ours", at_most=limit),
            samples={"items": count, "bytes_by_key": growth},
        )


def namespace_bytes(side: Side) -> dict[str, int]:
    """Bytes of each key of the namespace, every element counted."""
    from tests.bench import tasks_poimen as ours

    keys: list[Any] = list(side.redis.scan_iter(match=f"{ours.poimen.store.keys.root}*", count=1000))
    pipeline = side.redis.pipeline(transaction=False)
    for key in keys:
        pipeline.memory_usage(key, samples=0)
    return {key.decode(): size or 0 for key, size in zip(keys, pipeline.execute(), strict=True)}


def _growth(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Growth by key, the largest first."""
    grown = {key: size - before.get(key, 0) for key, size in after.items()}
    return {key: size for key, size in sorted(grown.items(), key=lambda one: -one[1]) if size}
