"""Dramatiq on Redis, without a result backend: one thread a process, and its default of eight."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.bench.peers import counting
from tests.bench.peers.contract import PROCESSES, Peer, module

__all__ = ["PEERS", "broker"]

broker = RedisBroker(url=os.environ["BENCH_PEERS_URL"])
noop = dramatiq.actor(broker=broker)(counting.noop)


def _send(items: int) -> None:
    # A `group` enqueues its messages one by one, too.
    for i in range(items):
        noop.send(i)


def _command(threads: int, level: str) -> list[str]:
    # Info is its lowest level; with --skip-logging it leaves Python's default, which is warning.
    options = ("--processes", str(PROCESSES), "--threads", str(threads))
    return module("dramatiq", f"{__name__}:broker", *options, *(["--skip-logging"] if level == "warning" else []))


def _peer(threads: int) -> Peer:
    return Peer(
        name="Dramatiq" if threads == 1 else f"Dramatiq, {threads} threads",
        packages=("dramatiq",),
        chosen=f"send, no results, --threads {threads}, dramatiq_queue_prefetch=100",
        command=lambda level: _command(threads, level),
        enqueue=_send,
        # Its default of two messages a thread is for long tasks: with it, one thread is four times slower.
        env={"dramatiq_queue_prefetch": "100"},
        parts=("enqueue", "workers") if threads == 1 else ("workers",),
    )


PEERS = (_peer(1), _peer(8))
