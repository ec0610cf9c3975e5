"""The audit stream's verbs in the store, one method a script; see `lua/` for what each does.

The fields that are kept about the stream and its sealer are explained in `lua/include/sealer.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from poimen_tasks.errors import SealerConflict
from poimen_tasks.store.ahead import Ahead
from poimen_tasks.store.client import Client
from poimen_tasks.store.refusals import Refusal
from poimen_tasks.store.scripts import new_owner

__all__ = ["AuditScripts", "Entry", "RawEntry", "StreamChanged", "StreamState"]


class StreamChanged(Exception):
    """The stream is not what the sealer knew: it began anew, lost entries, or somebody else is its sealer by now."""


class Entry(NamedTuple):
    """One entry of the stream."""

    id: str
    fields: dict[bytes, bytes]


class RawEntry(NamedTuple):
    """One entry of the stream, as a sealer reads it: of most it wants each field once.

    Attributes:
        id: its id.
        flat: names and values of its fields in turn.
    """

    id: str
    flat: Sequence[bytes]

    @property
    def fields(self) -> dict[bytes, bytes]:
        """Its fields; of a name that stands twice the last one counts."""
        return dict(zip(self.flat[::2], self.flat[1::2], strict=True))


class StreamState(NamedTuple):
    """The stream and what is known of its sealer; times are the server's, in seconds since 1970.

    Attributes:
        epoch: random, another one whenever the stream began anew; empty while there was no entry and no sealer.
        sealer: the fencing token; empty means that no sealer is registered.
        who: the sealer in words.
        home: the sealer's directory, as an id.
        since: when it registered.
        beat: when it was last heard of; 0: it left in order.
        lease: for how many seconds that counts.
        sealed: lines on disk, as published.
        root: the Merkle root over them; empty while nothing was published.
        cursor: the id of the last entry among them.
        gone: entries that had left the stream when that was published.
        dropped: entries dropped while nobody was registered.
        counted: how many of them are in `gone`.
        dropped_told: how many of them an event was sealed of.
        vanished: entries that somebody else took away before they were sealed.
        vanished_told: how many of them an event was sealed of.
        vanished_at: when that was last noticed; 0: never.
        now: the server's time.
        alive: whether the registered sealer is.
        length: entries in the stream.
        added: entries that were ever added to it.
        last: the id of the last of them.
        oldest: the id of the first that is in the stream; empty when there is none.
        behind: entries that the stream is short of; only after publishing.
    """

    epoch: str = ""
    sealer: str = ""
    who: str = ""
    home: str = ""
    since: float = 0.0
    beat: float = 0.0
    lease: float = 0.0
    sealed: int = 0
    root: str = ""
    cursor: str = ""
    gone: int = 0
    dropped: int = 0
    counted: int = 0
    dropped_told: int = 0
    vanished: int = 0
    vanished_told: int = 0
    vanished_at: float = 0.0
    now: float = 0.0
    alive: bool = False
    length: int = 0
    added: int = 0
    last: str = "0-0"
    oldest: str = ""
    behind: int = 0

    @property
    def lag(self) -> float:
        """Seconds for which the oldest entry has waited; 0 when there is none. An entry's id is when it was written."""
        if not self.oldest:
            return 0.0
        return max(0.0, self.now - int(self.oldest.partition("-")[0]) / 1000)

    @classmethod
    def of(cls, reply: dict[bytes, Any]) -> StreamState:
        """From a script's reply."""
        values: dict[str, Any] = {
            name.decode(): value.decode() if isinstance(value, bytes) else value for name, value in reply.items()
        }
        return cls(**values)


class AuditScripts:
    """The verbs of the audit stream. Whoever takes entries off it names its token and the epoch that it knows.

    They raise `StreamChanged` when the stream is not what the caller knew, or no longer the caller's; registering
    raises `SealerConflict` while another sealer lives. None is tried again by itself when the server does not answer:
    it may come back with an older state, so the sealer has to look anew.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def _call(self, name: str, request: dict[str, Any], *, patience: float | None = 0.0) -> Any:
        try:
            return self.client.call(name, request, owner=new_owner(), sequence=1, patience=patience)
        except Refusal as refusal:
            _translate(refusal)

    def describe_audit(self, *, patience: float | None = None) -> StreamState:
        """The stream as it is now; changes nothing."""
        return StreamState.of(self._call("describe_audit", {}, patience=patience))

    def register_sealer(self, token: str, *, who: str, home: str, lease: float) -> StreamState:
        """Become the sealer."""
        request = {"token": token, "who": who, "home": home, "lease": lease}
        return StreamState.of(self._call("register_sealer", request, patience=None))

    def read_audit(
        self,
        token: str,
        epoch: str,
        *,
        after: str,
        count: int,
        size: int,
        most: str | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[list[RawEntry], bool]:
        """Entries behind an id, at most `count` and about `size` bytes; the flag says that there may be more.

        With `ahead` the entries behind those are asked for at once, for the next call.
        """
        request: dict[str, Any] = {"token": token, "epoch": epoch, "after": after, "count": count, "bytes": size}
        if most is not None:
            request["most"] = most
        reply = ahead.take("read_audit", request) if ahead else None
        if reply is None or not reply[b"entries"]:  # that none was there when it was asked says nothing of now
            reply = self._call("read_audit", request)
        rows, full = reply[b"entries"], bool(reply[b"full"])
        if ahead and full and rows:
            ahead.ask("read_audit", {**request, "after": rows[-1][0].decode()})
        return [RawEntry(ident.decode(), flat) for ident, flat in rows], full

    def await_audit(self, after: str, *, seconds: float) -> bool:
        """Wait until there is an entry behind an id; False when there is none after that time."""
        key = self.client.keys.build("audit")
        block = max(1, int(seconds * 1000))
        return bool(self.client.read(lambda redis: redis.xread({key: after}, count=1, block=block), patience=0.0))

    def publish_sealed(
        self,
        token: str,
        epoch: str,
        *,
        was: int,
        size: int,
        root: str,
        cursor: str,
        count: int,
        told: tuple[int, int],
        look: bool = False,
        removed: bool = False,
    ) -> StreamState:
        """Say what is on disk, and take it off the stream.

        Args:
            token: of the registered sealer.
            epoch: of the stream.
            was: lines that were published before.
            size: lines that are on disk now.
            root: the Merkle root over them, in hex.
            cursor: the id of the last entry among them.
            count: entries that are on disk since `was`, and were still in the stream.
            told: how many dropped and how many vanished entries events tell of.
            look: the sealer did look at everything anew.
            removed: and found that somebody deleted the stream.
        """
        request = {"token": token, "epoch": epoch, "was": was, "size": size, "root": root, "cursor": cursor}
        request |= {"count": count, "dropped_told": told[0], "vanished_told": told[1], "look": look, "removed": removed}
        return StreamState.of(self._call("publish_sealed", request))

    def rewind_stream(self, token: str, epoch: str, *, above: str) -> StreamState:
        """Make the next id larger than this one."""
        return StreamState.of(self._call("rewind_stream", {"token": token, "epoch": epoch, "above": above}))

    def leave_sealer(self, token: str, *, forget: bool = False) -> bool:
        """The sealer stops; with `forget` there is none any more. True when there was one to leave."""
        return bool(self._call("leave_sealer", {"token": token, "forget": forget}, patience=1.0)[b"left"])


def _translate(refusal: Refusal) -> NoReturn:
    who, _, since = refusal.detail.partition("\t")
    if refusal.code == "SEALER":
        raise SealerConflict(
            f"the audit stream has a living sealer: {who}, since {_at(since)}; stop that one first"
        ) from None
    if refusal.code in ("FENCED", "EPOCH", "MOVED", "BEHIND"):
        raise StreamChanged(f"{refusal.code} {refusal.detail}") from None
    raise refusal


def _at(seconds: str) -> str:
    return datetime.fromtimestamp(float(seconds or 0), UTC).isoformat(timespec="seconds")
