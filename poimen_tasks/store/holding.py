"""What live lanes hold at this instant, for whoever wants to look; two round trips for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from poimen_tasks.store.client import Client
from poimen_tasks.store.ranges import expand_ranges

__all__ = ["Holding", "read_holdings"]


class Holding(NamedTuple):
    """A lane's claim.

    Attributes:
        since: when it was claimed, seconds since 1970 by the server's clock.
        attempts: which run of each item this is, from 1.
        more: items of the claim beyond those that were asked for.
    """

    batch: str
    slot: int
    part: int
    since: float
    positions: list[int]
    attempts: list[int]
    more: int


def read_holdings(
    client: Client, lanes: Sequence[tuple[str, int, int]], *, most: int, patience: float
) -> list[Holding]:
    """What these lanes (batch, slot, generation) hold, at most so many items of each; a lane that is over is left out.

    Raises:
        StoreUnavailable: no answer within `patience` seconds.
    """
    slots = _pipeline(client, patience, [("hget", "slots", batch, str(slot)) for batch, slot, _ in lanes])
    tokens = [_token(value, generation) for value, (_, _, generation) in zip(slots, lanes, strict=True)]
    live = [(lane, token) for lane, token in zip(lanes, tokens, strict=True) if token is not None]
    claims = _pipeline(client, patience, [("hget", "running", lane[0], token) for lane, token in live])
    found = []
    for ((batch, slot, _), _), packed in zip(live, claims, strict=True):
        if packed is None:
            continue
        claim = msgpack.unpackb(packed, raw=True)
        positions = list(expand_ranges(claim[b"r"]))
        shown = positions[:most]
        attempts = _attempts(client, batch, shown, patience) if claim[b"k"] == b"b" else [1] * len(shown)
        since = float(claim.get(b"t") or 0.0)
        found.append(Holding(batch, slot, claim[b"p"], since, shown, attempts, len(positions) - len(shown)))
    return found


def _token(value: bytes | None, generation: int) -> str | None:
    state, number, token = (*(value or b"").decode().split("|"), "", "", "")[:3]
    return token if state == "L" and number == str(generation) else None


def _attempts(client: Client, batch: str, positions: list[int], patience: float) -> list[int]:
    key, fields = client.keys.build("attempts", batch), [str(position) for position in positions]
    entries = client.read(lambda redis: redis.hmget(key, fields), patience=patience)
    return [int(msgpack.unpackb(entry, raw=True)[b"a"]) + 1 if entry else 1 for entry in entries]


def _pipeline(client: Client, patience: float, commands: list[tuple[str, str, str, str]]) -> list[Any]:
    if not commands:
        return []

    def run(redis: Any) -> list[Any]:
        pipeline = redis.pipeline(transaction=False)
        for command, key, batch, field in commands:
            getattr(pipeline, command)(client.keys.build(key, batch), field)
        return list(pipeline.execute())

    found: list[Any] = client.read(run, patience=patience)
    return found
