"""The audit stream as its sealer reads it: a registration under a token, and a position."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path

from poimen_tasks.store.ahead import Ahead
from poimen_tasks.store.audit_scripts import AuditScripts, RawEntry, StreamState

__all__ = ["BEGIN", "Source", "home_of", "number_of", "text_of"]

#: The id before the first entry.
BEGIN = "0-0"
#: Entries of one reading, which is one step of the server, and about how many bytes.
MOST_ENTRIES = 500
MOST_BYTES = 1 << 20


def number_of(entry_id: str) -> int:
    """An id as a number: as ids are ordered, and small to keep."""
    first, _, second = entry_id.partition("-")
    return (int(first) << 64) | int(second)


def text_of(number: int) -> str:
    """The id that a number stands for."""
    return f"{number >> 64}-{number & (1 << 64) - 1}"


def home_of(directory: Path) -> tuple[str, str]:
    """The directory in words and as an id that a copy of it does not have: by machine, file system, inode and path."""
    place, host = directory.resolve(), socket.gethostname()
    found = place.stat()
    identity = f"{host}|{found.st_dev}|{found.st_ino}|{place}"
    return f"{host}:{place} (process {os.getpid()})", hashlib.sha256(identity.encode()).hexdigest()[:32]


class Source:
    """One registration on the stream. It raises what `AuditScripts` raises.

    Args:
        audit: the store's verbs.
        directory: where the log is.
        lease: seconds after which a silent sealer counts as dead.

    Attributes:
        state: the stream as it was at the last step.
        position: the id of the last entry that was read.
        told: how many dropped and how many vanished entries an event tells of.
    """

    def __init__(self, audit: AuditScripts, directory: Path, *, lease: float) -> None:
        self._audit = audit
        self._ahead = Ahead(audit.client)
        self._token = secrets.token_hex(16)
        self.who, self._home = home_of(directory)
        self._lease = lease
        self.state = StreamState()
        self.position = BEGIN
        self.told = (0, 0)

    def look(self) -> StreamState:
        """The stream as it is, without registering."""
        return self._audit.describe_audit()

    def register(self) -> StreamState:
        """Become the sealer, or stay it.

        Raises:
            SealerConflict: another one lives.
            StoreUnavailable: the server does not answer.
        """
        self._ahead.close()  # what was asked of the stream as it was
        self.state = self._audit.register_sealer(self._token, who=self.who, home=self._home, lease=self._lease)
        return self.state

    def read(self, *, after: str, most: str | None = None) -> tuple[list[RawEntry], bool]:
        """Entries behind an id; the flag says that there may be more. Those are on their way then."""
        return self._audit.read_audit(
            self._token,
            self.state.epoch,
            after=after,
            count=MOST_ENTRIES,
            size=MOST_BYTES,
            most=most,
            ahead=self._ahead,
        )

    def wait(self, seconds: float) -> None:
        """Return when there is an entry behind the position, or after that time."""
        self._audit.await_audit(self.position, seconds=seconds)

    def publish(self, *, size: int, root: str, count: int, look: bool = False, removed: bool = False) -> StreamState:
        """Say what is on disk; see `AuditScripts.publish_sealed`."""
        self.state = self._audit.publish_sealed(
            self._token,
            self.state.epoch,
            was=self.state.sealed,
            size=size,
            root=root,
            cursor=self.position,
            count=count,
            told=self.told,
            look=look,
            removed=removed,
        )
        return self.state

    def rewind(self, above: str) -> None:
        """No entry gets an id up to this one."""
        self._ahead.close()
        self.state = self._audit.rewind_stream(self._token, self.state.epoch, above=above)

    def leave(self) -> None:
        """Stop in order: the next sealer need not wait."""
        self._ahead.close()
        self._audit.leave_sealer(self._token)
