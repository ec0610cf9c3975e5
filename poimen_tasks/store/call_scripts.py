"""The verbs of plain Celery calls in the store, one method a script; see `lua/` for what each does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from poimen_tasks.store.call_lines import CallLines
from poimen_tasks.store.client import Client
from poimen_tasks.store.loader import load_script
from poimen_tasks.store.scripts import calls_of, new_owner
from poimen_tasks.store.values import WaitingCall

__all__ = ["CallScripts", "PlainCall"]

_PARK_PATIENCE = 600.0
_MOST_RENEWED = 500
#: How much longer than a ticket the message behind a batch may take: nobody can tell it from one that is lost.
_COLLECT_PATIENCE, _LONGEST_PATIENCE = 5, 600.0


class PlainCall(NamedTuple):
    """A plain Celery call at its start.

    Attributes:
        id: its message id.
        runner: worker and process, with a tab between.
        activity: the name of its task.
        workflow, batch: what its message says that it belongs to; empty for none.
        redelivered: the broker says so.
        returned: the key that it was parked under when it comes back, else None.
        waited: it comes back from waiting for the result of an equal call.
    """

    id: str
    runner: str
    activity: str
    queue: str
    workflow: str
    batch: str
    redelivered: bool = False
    returned: str | None = None
    waited: bool = False

    @property
    def field(self) -> str:
        """What a run is registered under."""
        return f"{self.id}\t{self.runner}"


class CallScripts:
    """The verbs of plain calls."""

    def __init__(self, client: Client) -> None:
        self.client = client
        settings = client.settings
        self._bounds = {"unsealed": settings.audit_unsealed_limit, "overdue": settings.ticket_overdue}
        self._lease = settings.lease
        pool = client.redis.connection_pool
        self._lines = CallLines(
            lambda: pool.connection_class(**pool.connection_kwargs), client.keys.build("running_calls")
        )
        self._prefix = (client.keys.build("layout"), client.keys.root)

    def _once(self, name: str, request: dict[str, Any], payloads: tuple[bytes, ...] = (), **options: Any) -> Any:
        return self.client.call(
            name, request | self._bounds, owner=new_owner(), sequence=1, payloads=payloads, **options
        )

    def start_call(self, call: PlainCall, *, patience: float | None = None) -> str:
        """Register that it runs. Returns "" for that, else the scope of the pause that covers it.

        Raises:
            StoreUnavailable: no answer within `patience` seconds (default: the connect timeout).
        """
        script = load_script("start_call")
        arguments = (
            *self._prefix,
            call.field,
            f"{self._lease:.3f}",
            call.activity,
            call.queue,
            call.workflow,
            call.batch,
        )
        reply: bytes = self.client.read(lambda _: self._lines.ask(script, *arguments), patience=patience)
        return reply.decode()

    def end_call(self, field: str) -> None:
        """It runs no more; not waited for."""
        self._lines.remove(field)

    def park_call(
        self, call: PlainCall, message: bytes | None = None, *, groups: Sequence[str] = (), keep: float = 0.0
    ) -> tuple[str, str]:
        """Park it or begin it; says how, and the scope.

        How is `begin`, `parked`, `refused` (a copy), `revoked` (while it was parked) or `message` (ask with it).

        Args:
            call: what comes.
            message: its whole message.
            groups: groups of the result backend that wait for it.
            keep: seconds until their results are refreshed for the first time; 0: never.
        """
        request = {name: value for name, value in call._asdict().items() if value is not None and name != "runner"}
        request |= {"field": call.field, "lease": self._lease, "groups": list(groups), "keep": keep}
        payloads: tuple[bytes, ...] = ()
        patience = None
        if message is not None:
            # A pause covers it: it waits here rather than starts, as long as a lane waits to report.
            request["message"], payloads, patience = True, (message,), _PARK_PATIENCE
        reply = self._once("park_call", request, payloads, patience=patience, wait_out=message is not None)
        return reply[b"how"].decode(), reply.get(b"scope", b"").decode()

    def release_parked(self, key: str, *, waits: bool = False) -> list[WaitingCall]:
        """A parked call that was released but did not begin, to be published once more.

        Args:
            key: what it was parked under.
            waits: its queue has messages, so it is likely among them: published again only if that lasts.
        """
        return calls_of(self._once("release_parked", {"key": key, "waits": waits}))

    def drop_call(self, key: str, *, why: str) -> bool:
        """A parked call was discarded where it came back; False when it is not parked."""
        return bool(self._once("drop_call", {"key": key, "why": why})[b"dropped"])

    def revoke_calls(self, ids: Sequence[str]) -> int:
        """Calls that were revoked do not begin when they come back. Returns how many of these are parked."""
        found = 0
        for at in range(0, len(ids), _MOST_RENEWED):
            found += self._once("revoke_calls", {"ids": list(ids[at : at + _MOST_RENEWED])})[b"parked"]
        return found

    def await_collect(self, batch: str, *, sent: bool = False) -> tuple[str, bool]:
        """What is to be done about the message behind a batch that is a step of a canvas.

        Args:
            batch: its id.
            sent: the message was published just now.

        Returns:
            `over`, `due` (publish it) or `sent` (wait), and whether it was published before.
        """
        patience = min(_LONGEST_PATIENCE, _COLLECT_PATIENCE * self.client.settings.ticket_overdue)
        request = {"b": batch, "sent": sent, "patience": patience, "longest": _LONGEST_PATIENCE}
        reply = self._once("await_collect", request)
        return reply[b"state"].decode(), bool(reply.get(b"again"))

    def claim_collect(self, batch: str, *, patience: float) -> bool:
        """One copy of the message behind a batch wants to go on. False when another one is at it.

        Args:
            batch: its id.
            patience: seconds after which the other one has died.
        """
        return not self._once("claim_collect", {"b": batch, "patience": patience})[b"taken"]

    def settle_collect(self, batch: str, *, how: str = "collected") -> bool:
        """The canvas behind a batch has gone on, or was `revoked`. False when that was known, or there is no batch."""
        return bool(self._once("settle_collect", {"b": batch, "how": how})[b"first"])

    def renew_calls(self, fields: Sequence[str], *, lease: float) -> int:
        """Plain calls run still. Returns how many were registered."""
        renewed = 0
        for at in range(0, len(fields), _MOST_RENEWED):
            request = {"fields": list(fields[at : at + _MOST_RENEWED]), "lease": lease}
            renewed += self._once("renew_calls", request, patience=1.0)
        return renewed

    def end_calls(self, fields: Sequence[str]) -> None:
        """Plain calls whose process is gone."""
        key = self.client.keys.build("running_calls")
        self.client.read(lambda redis: redis.hdel(key, *fields))

    def keep_calls(self, *, period: float, most: int = 100) -> list[tuple[str, list[str]]]:
        """Parked calls whose groups are due to be refreshed: message id and groups of each."""
        reply = self._once("keep_calls", {"period": period, "most": most})
        return [(name.decode(), [group.decode() for group in groups or ()]) for name, groups in reply or ()]

    def close(self) -> None:
        """Close the connections of its own."""
        self._lines.close()
