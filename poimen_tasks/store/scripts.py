"""One method a script, named as its file: requests packed, replies as values. See `lua/` for what each does."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgpack

from poimen_tasks.store.client import Client
from poimen_tasks.store.ranges import expand_ranges
from poimen_tasks.store.values import Appended, Opened, Part, Reaped, Revoked, Sealed, Slice, Ticket, WaitingCall

__all__ = ["Scripts", "calls_of", "pack_parts", "tickets_of", "unpack_parts"]


_PORTION = 1 << 20
_INLINE = 1 << 18


def new_owner() -> str:
    """A random id for one caller of scripts."""
    return secrets.token_hex(8)


def pack_parts(parts: Iterable[Part]) -> bytes:
    """The partitions of a batch as its record stores them."""
    # Without the last field where it says nothing: a short record stays in its compact form.
    return bytes(msgpack.packb([list(part) if part.cached else list(part[:-1]) for part in parts]))


def unpack_parts(blob: bytes) -> list[Part]:
    """The partitions of a batch from its record."""
    return [Part(*row) for row in msgpack.unpackb(blob)]


def tickets_of(reply: dict[bytes, Any]) -> list[Ticket]:
    """The tickets that a script returned, for its caller to publish."""
    return [
        Ticket(batch.decode(), slot, generation, queue.decode(), part)
        for batch, slot, generation, queue, part in reply.get(b"tickets") or ()
    ]


def calls_of(reply: dict[bytes, Any]) -> list[WaitingCall]:
    """The plain calls that a script released, for its caller to publish."""
    return [WaitingCall(name.decode(), message) for name, message in reply.get(b"calls") or ()]


def _slice_request(offset: int, piece: Slice, parts: Sequence[Part]) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    request = {
        "offset": offset,
        "count": piece.count,
        "parts": pack_parts(parts),
        "runs": [list(run) for run in piece.runs],
        "delayed": [list(item) for item in piece.delayed],
        "ids": piece.ids or [],
        "big": [position for position, _ in piece.big],
    }
    if piece.digests:
        request["digests"] = [list(pair) for pair in piece.digests]
    if piece.labels:
        # Packed here: the script passes them on unread.
        request["labels"] = [[number, msgpack.packb(tasks, use_bin_type=False)] for number, tasks in piece.labels]
    return request, (*piece.chunks, *(data for _, data in piece.big))


def _portions(big: Sequence[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Large calls in portions of about a megabyte."""
    portion: list[tuple[int, bytes]] = []
    size = 0
    for position, data in big:
        if portion and size + len(data) > _PORTION:
            yield portion
            portion, size = [], 0
        portion.append((position, data))
        size += len(data)
    if portion:
        yield portion


class Scripts:
    """The verbs of the store."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._bounds = {
            "overdue": client.settings.ticket_overdue,
            "unsealed": client.settings.audit_unsealed_limit,
            "hard": client.settings.audit_backlog_hard,
        }
        # What a lane's results may take in the cache goes with every step: it costs less than asking.
        self._limits = {"entries": client.settings.cache_max_entries, "bytes": client.settings.cache_max_bytes}
        self._producer = max(15.0, 3 * client.settings.lease)

    def _once(self, name: str, request: dict[str, Any], payloads: tuple[bytes, ...] = (), **options: Any) -> Any:
        """Call a script under an owner of its own: our retries are safe, and threads do not meet."""
        request |= self._bounds
        return self.client.call(name, request, owner=new_owner(), sequence=1, payloads=payloads, **options)

    def put_big(self, batch: str, piece: Slice) -> Slice:
        """Write the large calls of a slice ahead of it, when they are too much for one write. Returns the rest."""
        if sum(len(data) for _, data in piece.big) <= _INLINE:
            return piece
        for portion in _portions(piece.big):
            request = {"b": batch, "positions": [position for position, _ in portion]}
            self._once("put_big", request, tuple(data for _, data in portion))
        return piece._replace(big=[])

    def open_batch(
        self,
        batch: str,
        *,
        record: dict[str, Any],
        parts: Sequence[Part],
        piece: Slice,
        seal: bool,
        callbacks: Sequence[tuple[str, bytes]] = (),
    ) -> tuple[Opened, list[Part] | None, bool]:
        """Create a batch with its first slice; an existing one is described, with partitions and cancel flag."""
        request, payloads = _slice_request(0, self.put_big(batch, piece), parts)
        request |= record | {
            "b": batch,
            "seal": seal,
            "producer": self._producer,
            "soft": self.client.settings.audit_backlog,
            "callbacks": [list(c) for c in callbacks],
        }
        reply = self._once("open_batch", request, payloads)
        if b"now" in reply:
            self.client.clock.set(float(reply[b"now"]))
        opened = Opened(
            bool(reply[b"existed"]),
            reply[b"total"],
            reply[b"sealed"] == 1,
            reply[b"over"] == 1,
            reply[b"workflow"].decode(),
            reply[b"stage"].decode(),
            tickets_of(reply),
        )
        known = unpack_parts(reply[b"parts"]) if opened.existed else None
        return opened, known, reply.get(b"cancel") == 1

    def append_items(
        self, batch: str, *, offset: int, piece: Slice, parts: Sequence[Part], seal: bool = False
    ) -> tuple[Appended, bool]:
        """Write the next slice; the flag says that the batch was cancelled and nothing was written."""
        request, payloads = _slice_request(offset, self.put_big(batch, piece), parts)
        request |= {"b": batch, "producer": self._producer, "seal": seal}
        reply = self._once("append_items", request, payloads)
        return Appended(reply[b"total"], tickets_of(reply)), bool(reply.get(b"cancelled"))

    def seal_batch(self, batch: str) -> Sealed:
        """No more items will come."""
        reply = self._once("seal_batch", {"b": batch})
        return Sealed(reply[b"over"] == 1, tickets_of(reply))

    def touch_producer(self, batch: str) -> None:
        """The producer of an unsealed batch lives."""
        self._once("touch_producer", {"b": batch, "producer": self._producer})

    def cancel_batch(self, batch: str, *, reason: str, actor: str, terminate: bool) -> dict[bytes, Any]:
        """One step of a cancellation; `left` says how many items still wait for their outcome."""
        request = {"b": batch, "reason": reason, "actor": actor, "terminate": terminate}
        return self._once("cancel_batch", request)  # type: ignore[no-any-return]

    def cancel_items(
        self, batch: str, positions: Sequence[int], *, reason: str, actor: str, signal: int = 0
    ) -> Revoked:
        """Revoke single items, at most 500 a call; `signal` (a number, 0: none) is for the process of a running one."""
        request = {"b": batch, "positions": list(positions), "reason": reason, "actor": actor, "signal": signal}
        reply = self._once("cancel_items", request)
        return Revoked(list(reply[b"settled"]), list(reply[b"running"]), reply[b"over"] == 1, tickets_of(reply))

    def set_concurrency(self, batch: str, limit: int, *, actor: str) -> list[Ticket]:
        """Another limit (0: none)."""
        return tickets_of(self._once("set_concurrency", {"b": batch, "limit": limit, "actor": actor}))

    def retry_failed(
        self, batch: str, items: Sequence[tuple[int, int, int]], *, round_: int, actor: str, more: bool = False
    ) -> tuple[int, list[Ticket]]:
        """Put failed items `(position, partition, ordinal)` back for another round; `more`: another call follows."""
        request = {
            "b": batch,
            "items": [list(item) for item in items],
            "round": round_,
            "actor": actor,
            "more": more,
            "producer": self._producer,
        }
        reply = self._once("retry_failed", request)
        return reply[b"retried"], tickets_of(reply)

    def renew_leases(self, lanes: Sequence[tuple[str, int, int]], *, lease: float) -> list[str]:
        """Renew; one of `ok`, `cancel`, `kill`, `signal:<number>:<position>`, `gone` for each lane."""
        request = {"lanes": [list(lane) for lane in lanes], "lease": lease}
        return [answer.decode() for answer in self._once("renew_leases", request, patience=1.0)]

    def reap_lane(
        self, batch: str, slot: int, generation: int, *, why: str, detail: str = "", overdue_only: bool = False
    ) -> Reaped:
        """Settle a lost lane."""
        request = {"b": batch, "s": slot, "g": generation, "why": why, "detail": detail, "overdue_only": overdue_only}
        reply = self._once("reap_lane", request)
        revoked = list(expand_ranges(list(reply.get(b"revoked") or ())))
        return Reaped(
            bool(reply[b"reaped"]), tickets_of(reply), list(reply.get(b"lost") or ()), revoked, calls_of(reply)
        )

    def promote_batch(self, batch: str) -> list[Ticket]:
        """Make due items claimable and issue what tickets are missing."""
        return tickets_of(self._once("promote_batch", {"b": batch}))

    def reissue_ticket(self, batch: str, slot: int, *, reissue: bool) -> list[Ticket]:
        """Replace an overdue ticket, or look at it again later."""
        return tickets_of(self._once("reissue_ticket", {"b": batch, "s": slot, "reissue": reissue}))

    def tick(
        self,
        worker: str,
        *,
        offers: Sequence[tuple[str, int]],
        payload: bytes,
        period: float,
        lease: float,
        leave: bool = False,
    ) -> dict[bytes, Any]:
        """A worker's sign of life, and the fleet's chores when it leads."""
        request = {
            "worker": worker,
            "info": [list(offer) for offer in offers],
            "payload": payload,
            "period": period,
            "lease": lease,
            "leave": leave,
        }
        return self._once("tick", request, patience=1.0)  # type: ignore[no-any-return]

    def drain_workers(self, workers: Sequence[str], *, actor: str, reason: str) -> list[str]:
        """Ask these workers (by the names under which they tick) to leave; returns those that are there."""
        asked: list[str] = []
        for at in range(0, len(workers), 500):
            request = {"workers": list(workers[at : at + 500]), "actor": actor, "reason": reason}
            asked += [name.decode() for name in self._once("drain_workers", request) or ()]
        return asked

    def check_batch(self, batch: str, *, repair: bool = False) -> dict[bytes, Any]:
        """Hold the counters against the lists."""
        return self._once("check_batch", {"b": batch, "repair": repair})  # type: ignore[no-any-return]

    def repair_slots(self, batch: str, *, repair: bool, lease: float, actor: str) -> dict[bytes, Any]:
        """Hold a batch's slots against leases, tickets and counters."""
        request = {"b": batch, "repair": repair, "lease": lease, "actor": actor}
        return self._once("repair_slots", request)  # type: ignore[no-any-return]

    def repair_fleet(self, *, repair: bool, most: int, actor: str) -> dict[bytes, Any]:
        """Hold all leases, tickets and counters by queue against the slots; looks at nothing past `most` slots."""
        return self._once("repair_fleet", {"repair": repair, "most": most, "actor": actor})  # type: ignore[no-any-return]

    def repair_keys(self, batch: str, *, parts: Sequence[int], actor: str) -> int:
        """Remove what is left of a batch without a record. Returns how many keys and index entries."""
        request = {"b": batch, "parts": list(parts), "actor": actor}
        return int(self._once("repair_keys", request)[b"removed"])

    def step(
        self,
        name: str,
        request: dict[str, Any],
        *,
        token: str,
        sequence: int,
        payloads: tuple[bytes, ...],
        patience: float,
        give_up: Callable[[], bool] = lambda: False,
    ) -> dict[bytes, Any]:
        """A lane's step (`step`), or its report without a claim (`finish`)."""
        request |= self._bounds
        if "f" in request and request["f"].get("c"):
            request["limits"] = self._limits
        return self.client.call(  # type: ignore[no-any-return]
            name, request, owner=token, sequence=sequence, payloads=payloads, patience=patience, wait_out=True,
            give_up=give_up,
        )  # fmt: skip
