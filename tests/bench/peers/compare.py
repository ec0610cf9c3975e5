"""Poimen beside plain Celery and its peers: all on one server, one after the other, in rounds."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, middle
from tests.bench.peers import measures
from tests.bench.peers.contract import OURS, Peer
from tests.bench.peers.measures import Measure, Measuring

__all__ = ["missing", "peers"]

_ADAPTERS = ("on_poimen", "on_celery", "on_rq", "on_huey", "on_dramatiq", "on_taskiq", "on_saq")
# Without hiredis or uvloop everything would run, only slower than the page says it is measured.
_NEEDED = ("dramatiq", "hiredis", "huey", "orjson", "rq", "saq", "taskiq", "taskiq-redis", "uvloop")
_EACH = f"{OURS}, a signature each"


def missing() -> list[str]:
    """The distributions of the `bench` extra that are not installed."""
    return [name for name in _NEEDED if _version(name) is None]


def peers(bench: Bench) -> Iterator[Row]:
    """Every measure of every side; a row compares ours with the best of the others, or with one by name."""
    bench.stop()
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        sides = _sides(bench)
        taken = Measuring(bench, Path(name))
        queueing = [peer for peer in sides if "enqueue" in peer.parts]
        working = [peer for peer in sides if "workers" in peer.parts]
        taken.enqueueing(queueing)
        taken.queued_bytes(queueing)
        taken.first_round(working)
        for _ in range(bench.size(1, 0)):
            taken.again(working)
        taken.at_info(working)
    bench.stop()
    yield from _rows(taken, {peer.name: _about(peer) for peer in sides})


def _sides(bench: Bench) -> list[Peer]:
    """Import all adapters, which find the server in the environment."""
    os.environ["BENCH_PEERS_URL"] = bench.ours.server.url
    return [peer for name in _ADAPTERS for peer in importlib.import_module(f"tests.bench.peers.{name}").PEERS]


def _rows(taken: Measuring, about: dict[str, Any]) -> Iterator[Row]:
    for measure, beside, ours, target in (
        (measures.E2E, None, OURS, Target(of="ratio", at_least=12)),
        (measures.E2E_INFO, None, OURS, None),
        (measures.DRAINED, None, OURS, Target(of="ratio", at_least=12)),
        (measures.ENQUEUE, "RQ", OURS, Target(of="ratio", at_least=50)),
        (measures.ENQUEUE, "RQ", _EACH, None),
        (measures.ENQUEUE, None, OURS, None),
        (measures.BYTES, None, OURS, Target(of="ratio", at_most=1)),
        (measures.BYTES, None, _EACH, None),
        (measures.START, None, OURS, None),
        (measures.START_INFO, None, OURS, None),
        (measures.IDLE, None, OURS, None),
        (measures.AFTER, None, OURS, None),
        (measures.AFTER_INFO, None, OURS, None),
        (measures.LARGEST, None, OURS, None),
    ):
        other = beside or _best_other(measure, taken)
        of = taken.taken[measure]
        yield Row(
            name=measure.name + ours.removeprefix(OURS) + (f", beside {beside}" if beside else ""),
            unit=measure.unit,
            ours=middle(of[ours]),
            reference=middle(of[other]),
            against=f"{other} {about[other]['version']}" + ("" if beside else ", the best of the others"),
            target=target,
            samples={
                "ours": of[ours],
                "reference": of[other],
                "measure": measure.name,
                "sides": dict(of),
                "about": about,
                **({"runs": dict(taken.runs)} if measure is measures.E2E else {}),
            },
        )


def _best_other(measure: Measure, taken: Measuring) -> str:
    """The side with the best figure, ours left out."""
    of = {name: middle(samples) for name, samples in taken.taken[measure].items() if not name.startswith(OURS)}
    return measure.best(of, key=of.__getitem__)


def _about(peer: Peer) -> dict[str, Any]:
    versions = {name: _version(name) for name in peer.packages}
    return {"version": versions[peer.packages[0]], "versions": versions, "chosen": peer.chosen}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
