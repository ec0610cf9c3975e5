"""Two hundred seeded kills under load: what was lost, and what happened twice."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.chaos import Chaos
from tests.acceptance.conftest import imported
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target
from tests.conftest import Workers

__all__ = ["kills"]

_SEEDS = (1, 2)


def kills(bench: Bench) -> Iterator[Row]:
    """Children, workers and producers killed at random moments; every count of what must not happen, added up."""
    bench.stop()
    found: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for seed in _SEEDS[: bench.size(len(_SEEDS), 1)]:
        report, killed = _run(seed, bench.size(100, 8))
        found.update(report)
        done.update(killed)
    yield Row(
        name=f"{sum(done.values())} seeded kills: items lost, outcomes or callbacks doubled",
        unit="",
        ours=float(sum(found.values())),
        target=Target(of="ours", at_most=0),
        samples={"kills": dict(done), "found": dict(found)},
    )


def _run(seed: int, count: int) -> tuple[dict[str, int], Counter[str]]:
    with tempfile.TemporaryDirectory(prefix="kills-") as name, EmbeddedServer(Path(name) / "server") as server:
        env = {
            "POIMEN_REDIS_URL": server.url,
            "POIMEN_BROKER_URL": server.url,
            "POIMEN_NAMESPACE": f"k{secrets.token_hex(4)}",
            "POIMEN_LEASE": "1.5",
            "POIMEN_TICK": "0.2",
            "POIMEN_TICKET_OVERDUE": "1.0",
        }
        workers = Workers(Path(name), env)
        try:
            with imported(env) as shop:
                chaos = Chaos(shop, workers, env, Path(name) / "notes.txt", seed=seed)
                chaos.run(kills=count, items=700)
                return chaos.report(), chaos.kills
        finally:
            workers.destroy_all()
