"""The cache's verbs in the store, one method a script; see `lua/` for what each does.

A key is 32 bytes, labels are `(activity, task, input hash, model, tags)`, with the key's own task
behind them where it is another, a value is an encoded value of the codec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.client import Client
from poimen_tasks.store.scripts import calls_of, new_owner, tickets_of
from poimen_tasks.store.values import Ticket, WaitingCall

__all__ = ["Begun", "CacheScripts", "Labels", "Landed", "Put"]

_MOST_KEYS = 500
_MOST_PUTS = 100
_MOST_BYTES = 1 << 20


class Labels(NamedTuple):
    """What a cached result is filed under; an empty text stands for none.

    `key_task` is the task id in its key, where that is not `task`: None when it is.
    """

    activity: str
    task: str = ""
    input_hash: str = ""
    model: str = ""
    tags: tuple[str, ...] = ()
    key_task: str | None = None

    def pack(self) -> list[Any]:
        """As a script takes it."""
        own = [] if self.key_task in (None, self.task) else [self.key_task]
        return [self.activity, self.task, self.input_hash, self.model, list(self.tags), *own]


class Put(NamedTuple):
    """One value to store: `ttl` seconds (0: never expires), `seconds` that computing it took, `most` bytes or None."""

    key: bytes
    labels: Labels
    value: bytes
    ttl: float
    seconds: float = 0.0
    most: int | None = None

    def pack(self) -> dict[str, Any]:
        """As a script takes it, but for the value."""
        return {"k": self.key, "l": self.labels.pack(), "x": float(self.ttl), "s": self.seconds, "m": self.most}


class Begun(NamedTuple):
    """Reply of `cache_begin`: `how` is hit, lead, wait, parked or alone; `value` of a hit, `clock` to ask again."""

    how: str
    value: bytes | None = None
    clock: int | None = None


class Landed(NamedTuple):
    """What follows of the end of a computation: `put` says what became of the value, the rest is to be published."""

    put: str
    tickets: list[Ticket]
    calls: list[WaitingCall]


def _landed(reply: dict[bytes, Any]) -> Landed:
    return Landed((reply.get(b"put") or b"").decode(), tickets_of(reply), calls_of(reply))


class CacheScripts:
    """The verbs of the cache."""

    def __init__(self, client: Client) -> None:
        self.client = client
        settings = client.settings
        self._unsealed = {
            "unsealed": settings.audit_unsealed_limit,
            "overdue": settings.ticket_overdue,
            "hard": settings.audit_backlog_hard,
        }
        self.limits = {"entries": settings.cache_max_entries, "bytes": settings.cache_max_bytes}

    def _call(self, name: str, request: dict[str, Any], payloads: tuple[bytes, ...] = ()) -> Any:
        return self.client.call(name, request | self._unsealed, owner=new_owner(), sequence=1, payloads=payloads)

    def cache_hit(self, key: bytes, activity: str) -> bytes | None:
        """The value of one key, None for a miss; counted. The same as `cache_get` in less time."""
        value = self.client.lean("cache_hit", key, activity)
        return self.cache_get([key], [activity])[0] if value == b"" else value

    def cache_get(self, keys: Sequence[bytes], activities: Sequence[str], *, log: bool = False) -> list[bytes | None]:
        """The value of each key, None for a miss; counted as hits and misses."""
        found: list[bytes | None] = []
        for at in range(0, len(keys), _MOST_KEYS):
            request = {
                "keys": list(keys[at : at + _MOST_KEYS]),
                "activities": list(activities[at : at + _MOST_KEYS]),
                "log": log,
            }
            found += [None if value is False else value for value in self._call("cache_get", request)]
        return found

    def cache_put(self, puts: Sequence[Put]) -> list[str]:
        """Store values; says of each whether it was `stored` or `refused`."""
        said: list[str] = []
        for some in _portions(puts):
            request = {"entries": [put.pack() for put in some], "limits": self.limits}
            said += [word.decode() for word in self._call("cache_put", request, tuple(put.value for put in some))]
        return said

    def cache_invalidate(
        self, *, scopes: Sequence[str] = (), keys: Sequence[bytes] = (), actor: str = "unknown", reason: str = ""
    ) -> int:
        """Hide at once what is cached under scopes and keys, then remove it. Returns how many entries at most."""
        request = {"scopes": list(scopes), "keys": list(keys), "actor": actor, "reason": reason}
        reply = self._call("cache_invalidate", request)
        if reply[b"sweep"]:
            while self.cache_sweep():
                pass
        return int(reply[b"hidden"])

    def cache_sweep(self) -> bool:
        """Remove some of what is hidden or expired; True when there is more."""
        return bool(self._call("cache_sweep", {"cursor": 0})[b"left"])

    def cache_begin(
        self,
        key: bytes,
        *,
        activity: str,
        owner: str,
        lease: float,
        since: int | None = None,
        alone: bool = False,
        call: WaitingCall | None = None,
    ) -> Begun:
        """Ask for one result: it is there, or the caller computes it, or waits and asks again."""
        request = {"k": key, "activity": activity, "owner": owner, "lease": lease, "alone": alone}
        if since is not None:
            request["since"] = since
        if call is not None:
            request["call"] = list(call)
        reply = self._call("cache_begin", request)
        if b"hit" in reply:
            return Begun("hit", value=reply[b"hit"])
        if b"lead" in reply:
            return Begun("lead", clock=reply[b"lead"])
        if b"wait" in reply:
            return Begun("wait", clock=reply[b"wait"])
        return Begun("parked" if b"parked" in reply else "alone")

    def cache_finish(self, put: Put, *, owner: str) -> Landed:
        """The leader has the result; says whether it was stored, refused, stale or fenced."""
        request = {"k": put.key, "owner": owner, "entry": put.pack(), "limits": self.limits}
        return _landed(self._call("cache_finish", request, (put.value,)))

    def cache_fail(self, key: bytes, *, owner: str) -> Landed:
        """The leader gives up."""
        return _landed(self._call("cache_finish", {"k": key, "owner": owner, "fail": True}))

    def cache_renew(self, key: bytes, *, owner: str, lease: float) -> bool:
        """The leader still computes; False when it leads no more."""
        reply = self._call("cache_finish", {"k": key, "owner": owner, "renew": lease})
        return bool(reply[b"put"] == b"renewed")

    def cache_list(self, *, before: float | None, count: int) -> list[list[Any]]:
        """Entries, the most recently used first: score, expiry, created, seconds, last hit, hits, bytes, labels."""
        request = {"before": "+inf" if before is None else f"({before:.17g}", "count": count}
        return list(self._call("cache_list", request))

    def counters(self, activity: str | None = None) -> dict[str, dict[str, int]]:
        """What is counted, by activity; of all, or of one."""
        keys, names = self.client.keys, [activity] if activity is not None else self.activities()

        def ask(redis: Any) -> Any:
            pipeline = redis.pipeline(transaction=False)
            for name in names:
                pipeline.hgetall(keys.build("cache_stats", name))
            return pipeline.execute()

        rows = self.client.read(ask)
        return {
            name: {field.decode(): int(count) for field, count in row.items()}
            for name, row in zip(names, rows, strict=True)
        }

    def count(self, activity: str, name: str) -> None:
        """One more of something that happened outside of a script."""
        key = self.client.keys.build("cache_stats", activity)
        acts = self.client.keys.build("cache_activities")
        self.client.read(lambda redis: (redis.hincrby(key, name, 1), redis.sadd(acts, activity)))

    def activities(self) -> list[str]:
        """Activities that have counters, in order of their names."""
        key = self.client.keys.build("cache_activities")
        return sorted(name.decode() for name in self.client.read(lambda redis: redis.smembers(key)))

    def settle_flight(self, key: bytes) -> tuple[bool, Landed]:
        """Look at a computation that is due; True when there is more to do at once."""
        reply = self._call("settle_flight", {"k": key})
        return bool(reply[b"left"]), _landed(reply)

    def begin_call(self, message_id: str, *, redelivered: bool) -> bool:
        """A plain call that waited comes back as a message; False when it is a second copy."""
        return bool(self._call("begin_call", {"id": message_id, "redelivered": redelivered})[b"begin"])

    def release_call(self, message_id: str) -> list[WaitingCall]:
        """A plain call that was released but did not begin, to be published once more."""
        return calls_of(self._call("release_call", {"id": message_id}))

    def repair_cache(self, request: dict[str, Any], *, repair: bool, actor: str) -> dict[bytes, Any]:
        """Hold some of the cache's indexes, computations and counters against what is there; see the script."""
        return self._call("repair_cache", request | {"repair": repair, "actor": actor})  # type: ignore[no-any-return]


def _portions(puts: Sequence[Put]) -> Iterator[list[Put]]:
    """At most 100 values and about a megabyte a call."""
    some: list[Put] = []
    size = 0
    for put in puts:
        if some and (len(some) >= _MOST_PUTS or size + len(put.value) > _MOST_BYTES):
            yield some
            some, size = [], 0
        some.append(put)
        size += len(put.value)
    if some:
        yield some
