"""Speaks the store's protocol as producers and lanes do: real scripts on a real server, but no worker and no task."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack
import pytest

from poimen_tasks import TaskStatus, codec
from poimen_tasks.errors import BatchNotFound, LayoutMismatch
from poimen_tasks.store import Refusal, Store
from poimen_tasks.store.cache_scripts import Labels, Put
from poimen_tasks.store.chunk_blob import CHUNK, KIND_SINGLE, encode_chunk
from poimen_tasks.store.outcome_blob import OutcomeColumns, decode_outcomes, encode_outcomes
from poimen_tasks.store.ranges import expand_ranges, ranges_of
from poimen_tasks.store.scripts import new_owner, pack_parts, tickets_of
from poimen_tasks.store.tracker_scripts import Given, Updated, Who
from poimen_tasks.store.values import Part, Slice, Ticket

QUEUE = "q"
STATUSES = ("ok", "failed", "cancelled", "skipped")


def part(
    queue: str = QUEUE,
    activity: str = "acts.work",
    *,
    prefetch: int | None = None,
    max_lost: int = 3,
    cached: bool = False,
) -> Part:
    """A partition."""
    return Part(queue, queue, queue, None, activity, None, None, prefetch, max_lost, cached)


PART = part()


# ------------------------------------------------------------------------------------------- producing
def make_slice(
    offset: int,
    count: int,
    *,
    parts: int | Callable[[int], int] = 0,
    ids: Sequence[str] | None = None,
    delayed: Mapping[int, float] | None = None,
    big: Iterable[tuple[int, bytes]] = (),
    keys: Sequence[object] | None = None,
    labels: Sequence[str] | None = None,
) -> Slice:
    """A slice whose items are called with their own position; `delayed` maps positions to due times."""
    stop, delayed = offset + count, delayed or {}
    of = parts if callable(parts) else lambda _position: parts
    chunks = []
    for lo in range(offset, stop, CHUNK):
        hi = min(lo + CHUNK, stop)
        names = None if ids is None else list(ids[lo - offset : hi - offset])
        numbers = [of(position) for position in range(lo, hi)]
        chunks.append(
            encode_chunk(
                enqueued=1.0,
                parts=numbers[0] if len(set(numbers)) == 1 else numbers,
                kind=KIND_SINGLE,
                calls=codec.encode(list(range(lo, hi))),
                ids=names,
            )
        )
    runs: list[tuple[int, int, int]] = []
    for position in range(offset, stop):
        if position in delayed:
            continue
        if runs and runs[-1][0] == of(position) and runs[-1][2] == position:
            runs[-1] = (runs[-1][0], runs[-1][1], position + 1)
        else:
            runs.append((of(position), position, position + 1))
    waits = [(position, of(position), due) for position, due in delayed.items()]
    digests = [] if keys is None else [(offset // CHUNK, b"".join(map(digest, keys)))]
    tasks = (
        []
        if labels is None
        else [(lo // CHUNK, list(labels[lo - offset : lo - offset + CHUNK])) for lo in range(offset, stop, CHUNK)]
    )
    return Slice(count, chunks, runs, waits, None if ids is None else list(ids), list(big), digests, tasks)


def digest(value: object) -> bytes:
    """The cache key of a made-up call; None has none."""
    return bytes(32) if value is None else hashlib.sha256(repr(value).encode()).digest()


def callback(queue: str = QUEUE) -> bytes:
    """A callback as its batch stores it."""
    chunk = encode_chunk(enqueued=1.0, parts=0, kind=KIND_SINGLE, calls=codec.encode(["called"]))
    return msgpack.packb({"parts": pack_parts([part(queue, "acts.callback")]), "chunk": chunk}, use_bin_type=False)


def record(*, limit: int = 0, retention: float = 60.0, workflow: str = "w", stage: str = "s") -> dict[str, Any]:
    """What `open_batch` writes into a record."""
    return {
        "workflow": workflow,
        "stage": stage,
        "actor": "tester",
        "metadata": b"\x80",
        "limit": limit,
        "retention": retention,
    }


def open_batch(
    store: Store,
    batch: str = "b",
    count: int = 4,
    *,
    parts: Sequence[Part] = (PART,),
    seal: bool = True,
    limit: int = 0,
    retention: float = 60.0,
    callbacks: Sequence[str] = (),
    of: int | Callable[[int], int] = 0,
    ids: Sequence[str] | None = None,
    delayed: Mapping[int, float] | None = None,
    keys: Sequence[object] | None = None,
    labels: Sequence[str] | None = None,
) -> list[Ticket]:
    """Open a batch with one slice; returns its tickets."""
    opened, _, _ = store.scripts.open_batch(
        batch,
        record=record(limit=limit, retention=retention),
        parts=parts,
        piece=make_slice(0, count, parts=of, ids=ids, delayed=delayed, keys=keys, labels=labels),
        seal=seal,
        callbacks=[(kind, callback()) for kind in callbacks],
    )
    return opened.tickets


def append(
    store: Store, offset: int, count: int, batch: str = "b", *, seal: bool = False, **options: Any
) -> list[Ticket]:
    """Append a slice; returns its tickets."""
    parts = options.pop("all_parts", [PART])
    piece = make_slice(offset, count, **options)
    return store.scripts.append_items(batch, offset=offset, piece=piece, parts=parts, seal=seal)[0].tickets


def offer(store: Store, slots: int, *queues: str, worker: str = "w1") -> dict[bytes, Any]:
    """A worker's tick: it offers that many slots on each queue."""
    offers = [(queue, slots) for queue in queues or (QUEUE,)]
    return store.scripts.tick(worker, offers=offers, payload=msgpack.packb({"pid": 1}), period=60.0, lease=60.0)


# ------------------------------------------------------------------------------------------- lanes
@dataclass
class Reply:
    """A step's reply, read."""

    raw: dict[bytes, Any]
    positions: list[int] = field(default_factory=list)
    entries: dict[int, list[Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: dict[bytes, Any]) -> Reply:
        """Open what the server answered."""
        claim = raw.get(b"claim") or {}
        return cls(raw, list(expand_ranges(claim.get(b"r", []))), {row[0]: row for row in claim.get(b"e") or ()})

    @property
    def state(self) -> str:
        """`go`, `end` or `late`."""
        return self.raw[b"s"].decode()

    @property
    def why(self) -> str:
        """Why the lane ends."""
        return self.raw.get(b"why", b"").decode()

    @property
    def tickets(self) -> list[Ticket]:
        """What the lane must publish."""
        return tickets_of(self.raw)

    @property
    def late(self) -> list[int]:
        """What a lost lane may report again."""
        return list(self.raw.get(b"late") or ())


class Lane:
    """One run of a ticket.

    `holds` maps the positions it holds to their claim numbers (0: never came back); `claims` remembers all of them.
    """

    def __init__(self, store: Store, ticket: Ticket, *, lease: float = 60.0) -> None:
        self.store = store
        self.ticket = ticket
        self.token = new_owner()
        self.sequence = 0
        self.holds: dict[int, int] = {}
        self.claims: dict[int, int] = {}
        self.slot = {
            "b": ticket.batch,
            "s": ticket.slot,
            "g": ticket.generation,
            "q": ticket.queue,
            "p": ticket.partition,
            "lease": lease,
        }

    def send(self, name: str, request: dict[str, Any], payloads: tuple[bytes, ...] = ()) -> Reply:
        """The next request."""
        self.sequence += 1
        self.last = (name, request, payloads)
        reply = self.repeat()
        if reply.positions:
            self.holds = {position: reply.entries.get(position, [0, 0, 0])[2] for position in reply.positions}
            self.claims |= self.holds
        return reply

    def repeat(self, *, behind: int = 0) -> Reply:
        """The last request again, word for word, as after a lost reply; or under a sequence further behind."""
        name, request, payloads = self.last
        reply = self.store.scripts.step(
            name, dict(request), token=self.token, sequence=self.sequence - behind, payloads=payloads, patience=5.0
        )
        return Reply.read(reply)

    def begin(self, k: int = 1) -> Reply:
        """The first step."""
        return self.send("step", {**self.slot, "begin": True, "k": k, "t": "free"})

    def claim(self, k: int = 1, *, late: bool = False, **told: Any) -> Reply:
        """Report and claim."""
        return self._report("step", {"k": k, "t": "free"}, late=late, **told)

    def finish(self, then: str = "stay", *, late: bool = False, **told: Any) -> Reply:
        """Report without a claim."""
        return self._report("finish", {"k": 0, "t": then}, late=late, **told)

    def settle(self, then: str = "free", **told: Any) -> Reply:
        """Report as a lane does that may have been reaped: what still counts is sent again."""
        reply = self.finish(then, **told)
        while reply.state == "late":
            kept = {name: [p for p in told.get(name, ()) if p in reply.late] for name in STATUSES}
            reply = self.finish(then, late=True, **kept)
        return reply

    def _report(
        self,
        name: str,
        request: dict[str, Any],
        *,
        late: bool,
        retry: Mapping[int, float] | None = None,
        give: Sequence[int] = (),
        values: Mapping[int, bytes] | None = None,
        call: bytes | None = None,
        **told: Sequence[int],
    ) -> Reply:
        statuses = {position: number for number, kind in enumerate(STATUSES) for position in told.get(kind, ())}
        request = {**self.slot, **request}
        payloads: tuple[bytes, ...] = ()
        if statuses or retry or give:
            request["f"], payloads = self._pack(statuses, retry or {}, give, late=late)
            for row in request["f"]["y"] if call else ():
                row[3] = call
            if values:
                request["f"]["c"] = [[at, ["acts.work", "", "", "", []], 0.0, 0.5, None] for at in values]
                payloads = (*payloads, *values.values())
            for position in (*statuses, *(retry or {}), *give):
                self.holds.pop(position, None)
        return self.send(name, request, payloads)

    def _pack(
        self, statuses: dict[int, int], retry: Mapping[int, float], give: Sequence[int], *, late: bool
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        positions = list(statuses)
        blob = encode_outcomes(
            positions=positions,
            started=[10.0] * len(positions),
            durations=[0.5] * len(positions),
            statuses=[*statuses.values()],
            results=[f"{self.token}:{position}" if not statuses[position] else None for position in positions],
            errors=[
                (at, "ValueError", "no", "trace") for at, position in enumerate(positions) if statuses[position] == 1
            ],
            worker="w1",
        )
        told = {
            "r": ranges_of(positions),
            "n": [[position, self.claims[position]] for position in positions if self.claims.get(position)],
            "y": [[position, delay, 1, False] for position, delay in retry.items()],
            "g": ranges_of(list(give)),
            "m": {"worker": "w1"},
            "late": late,
        }
        counts = {kind: sum(status == number for status in statuses.values()) for number, kind in enumerate(STATUSES)}
        return told | {kind: count for kind, count in counts.items() if count}, (blob, b"details")


def begin(store: Store, ticket: Ticket, k: int = 1, *, lease: float = 60.0) -> Lane:
    """A lane that holds its first claim."""
    lane = Lane(store, ticket, lease=lease)
    reply = lane.begin(k)
    assert reply.state == "go", reply.raw
    return lane


def run_all(store: Store, tickets: Iterable[Ticket], *, status: str = "ok") -> list[Ticket]:
    """Run these tickets, and those that come of them, until none is left; returns those that were begun."""
    waiting, begun = list(tickets), []
    while waiting:
        ticket = waiting.pop()
        lane = Lane(store, ticket)
        reply = lane.begin(64)
        begun.append(ticket)
        while reply.state == "go":
            reply = lane.claim(64, **{status: list(lane.holds)})
        waiting += reply.tickets
    return begun


def reap(store: Store, lane: Lane, why: str = "lost") -> list[Ticket]:
    """Settle a lane as its worker's parent does when the process died."""
    reaped, tickets, *_ = store.scripts.reap_lane(
        lane.ticket.batch, lane.ticket.slot, lane.ticket.generation, why=why, detail="gone"
    )
    assert reaped
    return tickets


# ------------------------------------------------------------------------------------------- looking
class Told(NamedTuple):
    """One audit entry."""

    kind: str
    header: dict[str, Any]
    payload: bytes

    @property
    def positions(self) -> list[int]:
        """The items it is about."""
        return list(expand_ranges(self.header.get("r") or []))


def audit(store: Store, *kinds: str, batch: str | None = None) -> list[Told]:
    """Audit entries of these kinds (all without one), oldest first."""
    found = []
    for _, row in store.client.redis.xrange(store.keys.build("audit")):
        told = Told(row[b"t"].decode(), msgpack.unpackb(row[b"h"], raw=True, strict_map_key=False), row[b"d"])
        header = {
            name.decode(): value.decode() if isinstance(value, bytes) and name != b"metadata" else value
            for name, value in told.header.items()
        }
        if (not kinds or told.kind in kinds) and batch in (None, header.get("b")):
            found.append(Told(told.kind, header, told.payload))
    return found


def field_of(store: Store, name: str, batch: str = "b") -> int:
    """A number of a batch's record."""
    return int(store.reads.field(batch, name)[0] or 0)


def outcomes(store: Store, batch: str = "b") -> list[OutcomeColumns]:
    """The outcome blobs of a batch that hold items."""
    blobs = [decode_outcomes(entry.blob) for found in store.reads.entries(batch) for entry in found]
    return [columns for columns in blobs if columns is not None]


def statuses_of(store: Store, batch: str = "b") -> dict[int, list[str]]:
    """Position to the statuses of its outcomes, oldest first."""
    found: dict[int, list[str]] = {}
    for columns in outcomes(store, batch):
        positions = expand_ranges(columns.ranges)
        for position, status in zip(positions, columns.statuses or [0] * len(positions), strict=True):
            found.setdefault(position, []).append(STATUSES[status])
    return found


def ends(store: Store, batch: str = "b") -> list[int]:
    """The ordinals of the entries that end the batch, or a round of it."""
    return [entry.ordinal for found in store.reads.entries(batch) for entry in found if entry.ends]


def counters(store: Store) -> dict[str, int]:
    """Tickets out (`t:queue`) and live lanes (`l:queue`) of the fleet, zeros left out."""
    stored = store.client.redis.hgetall(store.keys.build("queues"))
    return {name.decode(): int(count) for name, count in stored.items() if int(count)}


def totals(store: Store) -> dict[tuple[str, ...], int]:
    """What ended so far, by the names in `counting.lua`."""
    stored = store.client.redis.hgetall(store.keys.build("totals"))
    return {tuple(name.decode().split("\t")): int(count) for name, count in stored.items()}


def listed(store: Store) -> list[str]:
    """Batches that are listed as open, callbacks first."""
    return [name.decode() for name in store.client.redis.zrange(store.keys.build("open"), 0, -1)]


def snapshot(store: Store) -> dict[bytes, bytes]:
    """Everything stored in the namespace but the remembered replies, as bytes to compare."""
    redis = store.client.redis
    memory = store.keys.build("owner", "").encode()
    found = redis.scan_iter(match=f"{store.keys.root}*", count=1000)
    keys = sorted(key for key in found if not key.startswith(memory))
    with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
        kinds = pipe.execute()
        for key, kind in zip(keys, kinds, strict=True):
            _read(pipe, key, kind)
        return {key: _bytes(value) for key, value in zip(keys, pipe.execute(), strict=True)}


def _read(pipe: Any, key: bytes, kind: bytes) -> None:
    """What has no order is read, not dumped: a server may move its members when it is asked."""
    {b"set": pipe.smembers, b"hash": pipe.hgetall}.get(kind, pipe.dump)(key)


def _bytes(value: Any) -> bytes:
    if isinstance(value, (set, dict)):
        return repr(sorted(value.items() if isinstance(value, dict) else value)).encode()
    return bytes(value or b"")


def holds_together(store: Store, batch: str = "b") -> bool:
    """Invariant I3, by the store's own check."""
    return bool(store.scripts.check_batch(batch)[b"good"])


# ------------------------------------------------------------------------------------------- what every script owes
class Call(NamedTuple):
    """A request as it went to the server."""

    name: str
    request: dict[str, Any]
    options: dict[str, Any]
    reply: Any

    def again(self, store: Store, *, behind: int = 0) -> Any:
        """The same request under the same owner and sequence, or one behind it."""
        options = {**self.options, "sequence": self.options["sequence"] - behind}
        return store.client.call(self.name, dict(self.request), **options)


@contextlib.contextmanager
def listening(store: Store) -> Iterator[list[Call]]:
    """Collect the requests that are sent meanwhile."""
    calls: list[Call] = []
    send = store.client.call

    def call(name: str, request: dict[str, Any], **options: Any) -> Any:
        reply = send(name, request, **options)
        calls.append(Call(name, dict(request), options, reply))
        return reply

    store.client.call = call  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        del store.client.call


def assert_once(store: Store, verb: Callable[[], Any]) -> None:
    """A request that is sent twice changes things once, and an older one is refused."""
    with listening(store) as calls:
        verb()
    (call,) = calls
    after = snapshot(store)
    assert call.again(store) == call.reply
    with pytest.raises(Refusal, match="STALE"):
        call.again(store, behind=1)
    assert snapshot(store) == after


def assert_layout(store: Store, verb: Callable[[], Any]) -> None:
    """Data of another layout is not touched."""
    store.client.redis.set(store.keys.build("layout"), "999")
    before = snapshot(store)
    with pytest.raises(LayoutMismatch, match="layout 999"):
        verb()
    assert snapshot(store) == before
    store.client.redis.set(store.keys.build("layout"), "1")


def assert_unknown(store: Store, verb: Callable[[], Any]) -> None:
    """A batch that is not known is named, and nothing is written."""
    before = snapshot(store)
    with pytest.raises(BatchNotFound, match="is not known"):
        verb()
    assert snapshot(store) == before


# ------------------------------------------------------------------------------------------- trackers
def update(
    store: Store,
    task: str = "T1",
    status: TaskStatus | None = None,
    *,
    tracker: str = "v",
    actor: str = "me",
    reason: str = "",
    workflow: str | None = None,
    expected: int | None = None,
    request_id: str = "",
    **texts: str,
) -> Updated:
    """Update one task of a tracker."""
    given = Given(task, status and str(status), status and status.rank, **texts)
    return store.trackers.tracker_update(
        tracker,
        [given],
        begin=("pending", 0),
        who=Who(actor, reason, workflow),
        expected=expected,
        request_id=request_id,
    )


# ------------------------------------------------------------------------------------------- the cache
def entry(call: object, value: bytes = b"\x01", *, activity: str = "acts.work", ttl: float = 0.0, **more: Any) -> Put:
    """A value to put under the key of a made-up call."""
    labels = Labels(activity, more.pop("task", ""), more.pop("hashed", ""), more.pop("model", ""), more.pop("tags", ()))
    return Put(digest(call), labels, value, ttl, **more)


def look(store: Store, *calls: object) -> list[bytes | None]:
    """What the cache has for made-up calls."""
    return store.cache.cache_get([digest(call) for call in calls], ["acts.work"] * len(calls))


def cached_bytes(store: Store) -> int:
    """What the cache believes that its values take."""
    return int(store.client.redis.hget(store.keys.build("cache_meta"), "bytes") or 0)


def cache_counts(store: Store, activity: str = "acts.work") -> dict[str, int]:
    """The counters of an activity, zeros left out."""
    return {name: count for name, count in store.cache.counters(activity)[activity].items() if count}
