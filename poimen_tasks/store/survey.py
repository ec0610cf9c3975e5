"""Reads for `doctor`: facts about the server, and what a namespace holds. None changes anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from poimen_tasks.store.client import Client
from poimen_tasks.store.keys import TABLE

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["Leftover", "ServerFacts", "Survey", "glob"]

_SECTIONS = ("server", "memory", "persistence", "replication")
_SLICE = 500
_SCAN = 1000
_RECORD = TABLE["record"].form
#: What follows the batch's id in its other keys, as a pattern; its groups are numbers of partitions.
_TAIL = re.compile(
    "(?:"
    + "|".join(
        re.escape(key.form.removeprefix(_RECORD)).replace(r"\{part\}", r"(\d+)")
        for key in TABLE.values()
        if key.form.startswith(f"{_RECORD}/")
    )
    + r")\Z"
)
_KINDS = ("success", "failure", "complete")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server tells about itself.

    Attributes:
        info: the fields of `INFO`.
        config: `bind` and `protected-mode`; empty where the server does not tell.
        open: whether anybody may log in without a password; None where the server does not tell.
        layout: the number of the stored layout; None while nothing is stored.
    """

    info: dict[str, Any]
    config: dict[str, str]
    open: bool | None
    layout: str | None


@dataclass(frozen=True, slots=True)
class Leftover:
    """Keys of a batch that has no record: how many, and the partitions among them."""

    batch: str
    keys: int
    parts: tuple[int, ...]


class Survey:
    """Looks at one server and namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys = client.keys

    def server(self) -> ServerFacts:
        """The server's facts.

        Raises:
            StoreUnavailable: it does not answer.
            StoreRefused: it refuses us.
        """
        read = self._client.read
        info: dict[str, Any] = {}
        for section in _SECTIONS:
            info |= read(lambda redis, section=section: redis.info(section))  # type: ignore[misc]
        layout = read(lambda redis: redis.get(self._keys.build("layout")))
        return ServerFacts(info, read(_config), read(_is_open), None if layout is None else _text(layout))

    def open_batches(self) -> Iterator[str]:
        """Batches that are not over, newest first, and the hidden ones of callbacks that are not."""
        at = 0
        while found := self._listed(at):
            rows = self._records(found, "parts", "over", "callbacks", "round")
            for batch, (parts, over, callbacks, round_) in zip(found, rows, strict=True):
                if parts is not None and over != b"1":
                    yield batch
                elif int(callbacks or 0):
                    yield from self._open_callbacks(batch, int(round_ or 0))
            at += _SLICE

    def untaken(self, *, tries: int) -> dict[str, int]:
        """Tickets that nobody takes though nothing runs: how many a queue; empty while any lane or plain call runs.

        Args:
            tries: as often must a ticket have been looked for in vain, each time after twice as long.
        """
        build = self._keys.build
        tickets = self._client.read(lambda redis: _taken(redis, build))
        slots = [(build("slots", batch), slot) for batch, slot in (_text(one).split("\t") for one in tickets)]
        found = dict[str, int]()
        for value in self._client.read(lambda redis: _values(redis, slots)) if slots else ():
            state, _, looked, queue = (*_text(value or b"").split("|", 3), "", "", "", "")[:4]
            if state == "T" and looked.isdecimal() and int(looked) >= tries:
                found[queue] = found.get(queue, 0) + 1
        return found

    def unrecorded(self) -> list[str]:
        """Batches that are listed, callbacks among the open ones, and have no record: expired, or lost."""
        missing = dict[str, None]()
        for name in ("batches", "open"):
            at = 0
            while found := self._listed(at, name):
                rows = self._records(found, "parts")
                missing |= {batch: None for batch, (parts,) in zip(found, rows, strict=True) if parts is None}
                at += _SLICE
        return list(missing)

    def leftovers(self, *, most: int, progress: Callable[[int], None]) -> tuple[list[Leftover], bool]:
        """Look for keys without an expiry that belong to batches without a record.

        Args:
            most: keys of the server to look at.
            progress: told now and then how many were looked at.

        Returns:
            The leftovers, and whether all keys were looked at.
        """
        seen, cursor, found = 0, 0, dict[str, list[int | None]]()
        while True:
            cursor, keys = self._client.read(lambda redis, at=cursor: _scan(redis, at, f"{glob(self._keys.root)}b:*"))  # type: ignore[misc]
            for batch, part in self._without_record([_text(key) for key in keys]):
                found.setdefault(batch, []).append(part)
            seen += _SCAN
            progress(seen)
            if cursor == 0 or seen >= most:
                break
        rows = [
            Leftover(batch, len(parts), tuple({p for p in parts if p is not None})) for batch, parts in found.items()
        ]
        return sorted(rows, key=lambda row: row.batch), cursor == 0

    def _without_record(self, keys: list[str]) -> Iterator[tuple[str, int | None]]:
        start = len(self._keys.root) + len("b:")
        tails = [(key, _TAIL.search(key)) for key in keys]
        owned = [(key, key[start : tail.start()], tail[tail.lastindex or 0]) for key, tail in tails if tail]
        if not owned:
            return
        answers = self._client.read(
            lambda redis: _look(redis, [(key, self._keys.record(batch)) for key, batch, _ in owned])
        )
        for (_, batch, part), (lifetime, has_record) in zip(owned, answers, strict=True):
            if lifetime == -1 and not has_record:  # -1: it would stay for ever
                yield batch, int(part) if part.isdecimal() else None

    def _listed(self, at: int, name: str = "batches") -> list[str]:
        key = self._keys.build(name)
        return [_text(name) for name in self._client.read(lambda redis: redis.zrevrange(key, at, at + _SLICE - 1))]

    def _records(self, batches: list[str], *fields: str) -> list[list[bytes | None]]:
        def ask(redis: Redis) -> list[Any]:
            pipeline = redis.pipeline(transaction=False)
            for batch in batches:
                pipeline.hmget(self._keys.record(batch), list(fields))
            return pipeline.execute()

        rows: list[list[bytes | None]] = self._client.read(ask)
        return rows

    def _open_callbacks(self, batch: str, round_: int) -> list[str]:
        hidden = [f"{batch}@{kind}.{round_}" for kind in _KINDS]
        rows = self._records(hidden, "parts", "over")
        return [name for name, (parts, over) in zip(hidden, rows, strict=True) if parts is not None and over != b"1"]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def glob(text: str) -> str:
    """A pattern that matches exactly this text."""
    return re.sub(r"([\[\]*?^\\])", r"\\\1", text)


def _scan(redis: Redis, cursor: int, pattern: str) -> tuple[int, list[bytes]]:
    return redis.scan(cursor, match=pattern, count=_SCAN)  # type: ignore[return-value]


def _taken(redis: Redis, build: Callable[[str], str]) -> list[bytes]:
    """Tickets that are out, of which there is time to look at some; none where anything runs."""
    pipeline = redis.pipeline(transaction=False)
    pipeline.zcard(build("leases"))
    pipeline.hlen(build("running_calls"))
    pipeline.zrange(build("tickets"), 0, _SLICE - 1)
    lanes, calls, tickets = pipeline.execute()
    return [] if lanes or calls else tickets


def _values(redis: Redis, fields: list[tuple[str, str]]) -> list[bytes | None]:
    pipeline = redis.pipeline(transaction=False)
    for key, field in fields:
        pipeline.hget(key, field)
    return pipeline.execute()


def _look(redis: Redis, pairs: list[tuple[str, str]]) -> list[tuple[int, bool]]:
    """Of each key: seconds to live (-1: for ever), and whether its batch has a record."""
    pipeline = redis.pipeline(transaction=False)
    for key, record in pairs:
        pipeline.ttl(key)
        pipeline.exists(record)
    flat = pipeline.execute()
    return [(flat[at], bool(flat[at + 1])) for at in range(0, len(flat), 2)]


def _config(redis: Redis) -> dict[str, str]:
    try:
        return {_text(k): _text(v) for name in ("bind", "protected-mode") for k, v in redis.config_get(name).items()}
    except ResponseError:  # a managed server, or one whose ACL keeps this from us
        return {}


def _is_open(redis: Redis) -> bool | None:
    try:
        flags = redis.execute_command("ACL", "GETUSER", "default")  # type: ignore[no-untyped-call]
    except ResponseError:
        return None
    if isinstance(flags, dict):
        words = {_text(flag) for flag in flags.get("flags", ())}
    else:
        words = {_text(flag) for flag in flags[1]} if flags else set[str]()
    return {"on", "nopass"} <= words
