"""Processes that claim and finish at full speed while somebody pauses: what they claimed is held against the receipt.

`python -m tests.integration.claimers URL NAMESPACE` reads a line `{"ticket": [...], "k": 3}` for each lane that it is
to run, and prints what that lane claimed and why it ended.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.ranges import expand_ranges
from poimen_tasks.store.values import Ticket
from tests.conftest import ROOT
from tests.integration import lanes

__all__ = ["Claimers", "Trial"]

_MOST_WAIT = 0.025
_ITEMS = 4000


class Trial(NamedTuple):
    """What one pause found.

    Attributes:
        late: positions that were claimed after the pause.
        missing: positions that were claimed before it, and neither finished by then nor in the receipt.
        surplus: positions in the receipt that no lane held.
        claimed, running: how many were claimed in all, and how many are in the receipt.
    """

    late: list[int]
    missing: list[int]
    surplus: list[int]
    claimed: int
    running: int


class Claimers:
    """So many processes, each with a store of its own."""

    def __init__(self, count: int, url: str, namespace: str) -> None:
        self._url, self._namespace = url, namespace
        words = [sys.executable, "-m", "tests.integration.claimers", url, namespace]
        self._processes = [
            subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.communicate(timeout=20)

    def trial(self, store: Store, seed: int) -> Trial:
        """A new batch, a lane a process, and a pause of some scope that covers it, at some moment."""
        dice = random.Random(seed)
        _clear(store)
        count = len(self._processes)
        lanes.offer(store, count)
        tickets = lanes.open_batch(store, "b", _ITEMS, limit=count)
        assert len(tickets) == count
        for process, ticket in zip(self._processes, tickets, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps({"ticket": ticket, "k": dice.randint(1, 4)}) + "\n")
            process.stdin.flush()
        time.sleep(dice.uniform(0, _MOST_WAIT))  # the pause falls into any moment of the claims
        scope = dice.choice(["*", "w:w", "b:b", "q:q", "a:acts.work"])
        receipt = store.pauses.pause_scope(scope, reason="", actor="trial")
        return _judge(receipt, [self._told(process) for process in self._processes])

    @staticmethod
    def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        told: dict[str, Any] = json.loads(process.stdout.readline())
        return told


def _judge(receipt: Any, told: Sequence[dict[str, Any]]) -> Trial:
    """A lane that ended because of the pause held until then what it had claimed last; the server's clock orders."""
    claims = [claim for lane in told for claim in lane["claims"]]
    held = {
        position for lane in told if lane["why"] == "paused" and lane["claims"] for position in lane["claims"][-1][1]
    }
    named = {position for lane in receipt.running for position in expand_ranges(lane.ranges)}
    return Trial(
        late=[position for at, positions in claims if at > receipt.at for position in positions],
        missing=sorted(held - named),
        surplus=sorted(named - held),
        claimed=sum(len(positions) for _, positions in claims),
        running=len(named),
    )


def _clear(store: Store) -> None:
    keys = list(store.client.redis.scan_iter(match=f"{store.keys.root}*", count=1000))
    if keys:
        store.client.redis.delete(*keys)


def _run_lane(store: Store, ticket: Ticket, k: int) -> dict[str, Any]:
    """Claim, finish and claim until the lane is sent away."""
    lane = lanes.Lane(store, ticket)
    reply, claims = lane.begin(k), []
    while reply.state == "go":
        claims.append([float(reply.raw[b"now"]), reply.positions])
        reply = lane.claim(k, ok=reply.positions)
    return {"claims": claims, "why": reply.why}


def main(url: str, namespace: str) -> None:
    """Run lanes until stdin ends."""
    store = Store(Settings(redis_url=url, namespace=namespace), url)
    print("ready", flush=True)  # noqa: T201 - the other process reads it
    for line in sys.stdin:
        wanted = json.loads(line)
        print(json.dumps(_run_lane(store, Ticket(*wanted["ticket"]), wanted["k"])), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
