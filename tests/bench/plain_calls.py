"""Plain Celery calls with the check of pauses before each, beside the same app without Poimen."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds, until
from tests.conftest import Workers

__all__ = ["plain_calls"]

_SIDES = ("none", "off", "on")
_MODULE = "tests.bench.tasks_checked"


def plain_calls(bench: Bench) -> Iterator[Row]:
    """No-op calls of two processes: from the moment that all of them are in the queue until the last has run."""
    bench.stop()
    with tempfile.TemporaryDirectory(prefix="bench-calls-") as directory:
        workers = Workers(Path(directory), {})
        try:
            for side in _SIDES:
                workers.start(_MODULE, queues=side, loglevel="warning", env={"BENCH_CHECK": side}, wait=False)
            yield from _measure(bench, workers)
        finally:
            workers.destroy_all()


def _measure(bench: Bench, workers: Workers) -> Iterator[Row]:
    from tests.bench import tasks_checked as checked

    count, rounds = bench.size(3_000, 100), bench.size(7, 1)
    for side in _SIDES:
        _run(bench, checked.counted, side, 50)  # it is ready, and its processes are warm
    for task, what in ((checked.counted, "without a result"), (checked.stored, "with a stored result")):
        taken = alternating(
            rounds,
            **{side: (lambda side=side, task=task: count / _run(bench, task, side, count)) for side in _SIDES},
        )
        for side, name in (("on", "checked"), ("off", "pause_plain_calls=False")):
            yield Row(
                name=f"plain no-op calls {what}, {name}",
                unit="calls/s",
                ours=middle(taken[side]),
                reference=middle(taken["none"]),
                against="the same app without Poimen",
                target=Target(of="ratio", at_least=0.9),
                samples=taken,
            )
    del workers


def _run(bench: Bench, task: Any, side: str, count: int) -> float:
    """Seconds that a side's worker takes for so many calls, which all come into its queue at once."""
    from tests.bench import tasks_checked as checked

    redis = bench.plain.redis
    redis.delete(checked.COUNTER)
    loading = f"load-{secrets.token_hex(4)}"
    with checked.app.producer_or_acquire() as producer, producer.batch(max_size=1000):
        for number in range(count):
            task.apply_async((number,), queue=loading, producer=producer)

    def drain() -> None:
        redis.rename(loading, side)
        until(lambda: int(redis.get(checked.COUNTER) or 0) >= count, every=0.005)

    return seconds(drain)
