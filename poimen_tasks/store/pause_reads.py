"""What is only read about pauses: states, totals, signals. A scope is a text as in `pause_scripts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.client import Client
from poimen_tasks.store.survey import glob

__all__ = ["PauseReads", "PauseTotals"]

_SLICE = 500
_SCAN = 1000


class PauseTotals(NamedTuple):
    """Scopes with a state, those of them that are paused, and how often anything was paused and resumed so far."""

    total: int
    paused: int
    pauses: int
    resumes: int
    epoch: int


class PauseReads:
    """Reads of one namespace."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.keys = client.keys

    def is_paused(self, scope: str) -> bool:
        """Whether exactly this scope is paused."""
        return bool(self.client.read(lambda redis: redis.hexists(self.keys.build("pauses"), scope)))

    def state(self, scope: str) -> dict[str, bytes] | None:
        """The stored fields of a scope's state, and `held`, how much it holds back; None for one that has none."""
        (found,) = self.states([scope])
        return found

    def states(self, scopes: Sequence[str]) -> list[dict[str, bytes] | None]:
        """The same of several, in one round trip."""
        build = self.keys.build

        def ask(redis: Any) -> Any:
            pipeline = redis.pipeline(transaction=False)
            for scope in scopes:
                pipeline.hgetall(build("pause_state", scope))
                pipeline.scard(build("held", scope))
            return pipeline.execute()

        replies = self.client.read(ask)
        return [
            _fields(row) | {"held": b"%d" % held} if row else None
            for row, held in zip(replies[::2], replies[1::2], strict=True)
        ]

    def scopes(self, *, paused: bool = False) -> Iterator[list[str]]:
        """Scopes that have a state, some at a time; `paused`: only those that are paused now."""
        key, at = self.keys.build("pause_index"), 0
        low = "+inf" if paused else "-inf"

        def some(redis: Any) -> Any:
            return redis.zrangebyscore(key, low, "+inf", start=at, num=_SLICE)

        while found := self.client.read(some):
            yield [scope.decode() for scope in found]
            at += len(found)

    def mentioned(self, *, most: int) -> tuple[list[str], bool]:
        """Every scope that any key speaks of, and whether all keys of the server, up to `most`, were looked at."""
        build = self.keys.build

        def ask(redis: Any) -> Any:
            pipeline = redis.pipeline(transaction=False)
            pipeline.hkeys(build("pauses"))
            for name in ("pause_index", "pause_due", "keeping", "releasing"):
                pipeline.zrange(build(name), 0, -1)
            return pipeline.execute()

        found = {scope.decode() for reply in self.client.read(ask) for scope in reply}
        begins = tuple(build(name, "") for name in ("pause_state", "held"))
        seen, cursor, pattern = 0, 0, f"{glob(build('pause_meta').removesuffix('meta'))}*"
        while True:
            cursor, keys = self.client.read(lambda redis, at=cursor: redis.scan(at, match=pattern, count=_SCAN))  # type: ignore[misc]
            names = [key.decode() for key in keys]
            found |= {name.removeprefix(begin) for begin in begins for name in names if name.startswith(begin)}
            seen += _SCAN
            if cursor == 0 or seen >= most:
                return sorted(found), cursor == 0

    def totals(self) -> PauseTotals:
        """How many scopes there are, and what happened so far."""
        build = self.keys.build

        def ask(redis: Any) -> Any:
            pipeline = redis.pipeline(transaction=False)
            pipeline.zcard(build("pause_index"))
            pipeline.hlen(build("pauses"))
            pipeline.hmget(build("pause_meta"), ["pauses", "resumes", "epoch"])
            return pipeline.execute()

        total, paused, counts = self.client.read(ask)
        return PauseTotals(total, paused, *(int(count or 0) for count in counts))

    def covering(self, scopes: Sequence[str]) -> list[str]:
        """Which of these scopes are paused."""
        flags = self.client.read(lambda redis: redis.hmget(self.keys.build("pauses"), list(scopes)))
        return [scope for scope, flag in zip(scopes, flags, strict=True) if flag is not None]

    def held(self, scope: str, *, most: int = _SLICE) -> list[str]:
        """Some of what a scope holds back: `b`, tab, batch, or `c`, tab, message id of a plain call."""
        key = self.keys.build("held", scope)
        return sorted(one.decode() for one in self.client.read(lambda redis: redis.srandmember(key, most)) or ())

    def last_signal(self, scope: str) -> str:
        """Where the stream of a scope's signals ends now: what comes behind it is new."""
        key = self.keys.build("pause_signals", scope)
        rows = self.client.read(lambda redis: redis.xrevrange(key, count=1))
        return str(rows[0][0].decode()) if rows else "0-0"

    def next_signal(
        self, scope: str, *, after: str, block: float, patience: float | None = None
    ) -> tuple[str, bool] | None:
        """The first signal behind a place: its place, and True for a pause; waits `block` seconds for it.

        While the server does not answer it is asked again, for `patience` seconds.
        """
        key = self.keys.build("pause_signals", scope)
        # A wait longer than the socket's patience would look like a server that does not answer.
        wait = max(1, round(min(block, self.client.settings.socket_timeout / 2) * 1000))
        reply = self.client.read(lambda redis: redis.xread({key: after}, count=1, block=wait), patience=patience)
        if not reply:
            return None
        place, fields = reply[0][1][0]
        return place.decode(), fields[b"s"] == b"paused"


def _fields(row: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in row.items() if not name.startswith(b"r:")}
