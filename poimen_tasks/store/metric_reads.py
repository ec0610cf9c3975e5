"""What metrics are made of: counts that the store keeps, in a constant number of round trips. None changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from poimen_tasks.model import BatchStatus
from poimen_tasks.store.client import Client
from poimen_tasks.store.keys import LAYOUT, Keys
from poimen_tasks.store.refusals import translate
from poimen_tasks.store.status import read_statuses

__all__ = ["MOST_ACTIVITIES", "MOST_BATCHES", "MOST_QUEUES", "MOST_SCOPES", "Facts", "MetricReads", "QueueLoad"]

#: The oldest open batches, whose counters are read.
MOST_BATCHES = 1_000
#: Names that are looked at, about: the server gives a few more where they share a place in its table.
MOST_QUEUES, MOST_ACTIVITIES, MOST_SCOPES = 1_000, 1_000, 10_000
_COUNTED = (
    "hits", "misses", "coalesced", "saved", "evictions", "expired", "invalidated", "corrupt", "refused", "stale",
    "fenced", "uncacheable",
)  # fmt: skip


class QueueLoad(NamedTuple):
    """Tickets that are out on a queue, and lanes that serve it."""

    tickets: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A namespace in numbers; times are the server's, in seconds since 1970.

    Attributes:
        now: the server's time.
        tick: when a worker last told that it lives; None: never.
        memory: bytes that the server uses.
        memory_limit: how many it may use; 0: any.
        kept: batches within their retention, open ones included.
        open: of them those that are not over.
        callbacks: callbacks that are not over.
        oldest: when the oldest open batch was created; None while there is none.
        batches: the oldest open batches.
        leases: live lanes.
        tickets: tickets that are out.
        queues: by queue, of those that were ever used.
        running_calls: plain calls that run.
        parked_calls: plain calls that a pause holds back.
        paused: scopes that are paused.
        scopes: of them, by the letter of their kind, those that were looked at.
        pauses: how often anything was paused so far.
        resumes: how often anything was resumed.
        totals: what ended, by the names in `counting.lua`.
        cache_entries: results in the cache.
        cache_bytes: their size.
        computations: results that are computed while others may wait for them.
        activities: tasks that have counters in the cache.
    """

    now: float
    tick: float | None
    memory: int
    memory_limit: int
    kept: int
    open: int
    callbacks: int
    oldest: float | None
    batches: Sequence[str]
    leases: int
    tickets: int
    queues: Mapping[str, QueueLoad]
    running_calls: int
    parked_calls: int
    paused: int
    scopes: Mapping[str, int]
    pauses: int
    resumes: int
    totals: Mapping[tuple[str, ...], int]
    cache_entries: int
    cache_bytes: int
    computations: int
    activities: Sequence[str]


class MetricReads:
    """Reads of one namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys = client.keys

    def ping(self) -> None:
        """One round trip that asks for nothing.

        Raises:
            StoreUnavailable: no answer at the first attempt.
        """
        self._client.read(lambda redis: redis.time(), patience=0)

    def facts(self) -> Facts:
        """Everything that takes one look, in one round trip.

        Raises:
            LayoutMismatch: what is stored has another layout.
        """
        asked = _commands(self._keys)

        def ask(redis: Any) -> Any:
            pipeline = redis.pipeline(transaction=False)
            for command in asked.values():
                command(pipeline)
            return pipeline.execute()

        told = dict(zip(asked, self._client.read(ask), strict=True))
        if told["layout"] not in (None, b"%d" % LAYOUT):
            raise translate("LAYOUT", _text(told["layout"]))
        return _facts(told)

    def statuses(self, batches: Sequence[str]) -> list[BatchStatus]:
        """The status of each of these batches that is there; a second round trip only while something is paused."""
        found = read_statuses(self._client, batches) if batches else []
        return [status for status in found if status is not None]

    def cache_counts(self, activities: Sequence[str]) -> dict[str, dict[str, int]]:
        """What is counted of each of these tasks' cached results, in one round trip; `saved` is in microseconds."""

        def ask(redis: Any) -> Any:
            pipeline = redis.pipeline(transaction=False)
            for activity in activities:
                pipeline.hmget(self._keys.build("cache_stats", activity), list(_COUNTED))
            return pipeline.execute()

        rows = self._client.read(ask) if activities else []
        return {
            activity: {name: int(count or 0) for name, count in zip(_COUNTED, row, strict=True)}
            for activity, row in zip(activities, rows, strict=True)
        }


def _commands(keys: Keys) -> dict[str, Callable[[Any], Any]]:
    """What is asked for at once, by name."""
    build = keys.build
    asked: dict[str, Callable[[Any], Any]] = {
        "layout": lambda pipe: pipe.get(build("layout")),
        "clock": lambda pipe: pipe.time(),
        "tick": lambda pipe: pipe.hget(build("clock"), "tick"),
        "memory": lambda pipe: pipe.info("memory"),
        # Callbacks stand below zero, batches by their creation above it.
        "callbacks": lambda pipe: pipe.zcount(build("open"), "-inf", "(0"),
        "open": lambda pipe: pipe.zcount(build("open"), 0, "+inf"),
        "page": lambda pipe: pipe.zrangebyscore(build("open"), 0, "+inf", start=0, num=MOST_BATCHES, withscores=True),
        "queues": lambda pipe: pipe.hscan(build("queues"), count=2 * MOST_QUEUES),
        "scopes": lambda pipe: pipe.hscan(build("pauses"), count=MOST_SCOPES),
        "pause_meta": lambda pipe: pipe.hmget(build("pause_meta"), ["pauses", "resumes"]),
        "totals": lambda pipe: pipe.hgetall(build("totals")),
        "cache_bytes": lambda pipe: pipe.hget(build("cache_meta"), "bytes"),
        "activities": lambda pipe: pipe.sscan(build("cache_activities"), count=MOST_ACTIVITIES),
    }
    for name in ("batches", "leases", "tickets", "cache_lru", "flights"):
        asked[name] = partial(_count, "zcard", build(name))
    for name in ("running_calls", "paused_calls", "pauses"):
        asked[name] = partial(_count, "hlen", build(name))
    return asked


def _count(command: str, key: str, pipe: Any) -> Any:
    return getattr(pipe, command)(key)


def _facts(told: Mapping[str, Any]) -> Facts:
    """From the replies, by name."""
    seconds, micros = told["clock"]
    kinds = [_text(scope)[:1] for scope in told["scopes"][1]]
    pauses, resumes = told["pause_meta"]
    return Facts(
        now=seconds + micros / 1e6,
        tick=None if told["tick"] is None else float(told["tick"]),
        memory=int(told["memory"].get("used_memory", 0)),
        memory_limit=int(told["memory"].get("maxmemory", 0)),
        kept=told["batches"],
        open=told["open"],
        callbacks=told["callbacks"],
        oldest=told["page"][0][1] if told["page"] else None,
        batches=[_text(batch) for batch, _ in told["page"]],
        leases=told["leases"],
        tickets=told["tickets"],
        queues=_loads({_text(field): int(value) for field, value in told["queues"][1].items()}),
        running_calls=told["running_calls"],
        parked_calls=told["paused_calls"],
        paused=told["pauses"],
        scopes={kind: kinds.count(kind) for kind in set(kinds)},
        pauses=int(pauses or 0),
        resumes=int(resumes or 0),
        totals={_total(_text(field)): int(value) for field, value in told["totals"].items()},
        cache_entries=told["cache_lru"],
        cache_bytes=int(told["cache_bytes"] or 0),
        computations=told["flights"],
        activities=sorted(map(_text, told["activities"][1])),
    )


def _total(field: str) -> tuple[str, ...]:
    """The parts of a total's name; only the last one may have a tab in it."""
    return tuple(field.split("\t", 2 if field.startswith("i\t") else 1))


def _loads(fields: Mapping[str, int]) -> dict[str, QueueLoad]:
    """From the fields `t:` and `l:` of each queue."""
    names = {field[2:] for field in fields}
    return {name: QueueLoad(fields.get(f"t:{name}", 0), fields.get(f"l:{name}", 0)) for name in names}


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
