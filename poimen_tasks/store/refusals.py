"""What a script or the server refuses, in our words."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, NoPermissionError, ReadOnlyError

from poimen_tasks.errors import (
    AuditBacklog,
    BatchNotFound,
    DuplicateItem,
    InvalidArgument,
    LayoutMismatch,
    NotPaused,
    PoimenError,
    SnapshotConflict,
    StaleEpoch,
    StoreRefused,
)
from poimen_tasks.store.keys import LAYOUT

__all__ = ["Refusal", "is_passing", "is_refusal", "translate"]


class Refusal(PoimenError):
    """A script refused: `code` says why, `detail` what."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"the store refused: {code} {detail}")
        self.code = code
        self.detail = detail


_TRANSLATIONS: dict[str, tuple[type[PoimenError], str]] = {
    "NOT_FOUND": (BatchNotFound, "batch {!r} is not known: it was never dispatched, or its retention is over"),
    "DUPLICATE": (DuplicateItem, "item id {!r} is used twice in the batch: ids are unique within a batch"),
    "LAYOUT": (
        LayoutMismatch,
        f"the stored data has layout {{}}, this version reads layout {LAYOUT}: upgrade workers before producers",
    ),
    "BACKLOG": (
        AuditBacklog,
        (
            "{} audit entries wait to be sealed, more than POIMEN_AUDIT_BACKLOG allows: start the sealer "
            "(`poimen audit seal`) and dispatch again when it has caught up, or do without it "
            "(`poimen audit seal --unregister`)"
        ),
    ),
    "CANCELLED": (InvalidArgument, "batch {!r} was cancelled: dispatch its failed items as a new batch"),
    "CALLBACKS": (
        InvalidArgument,
        "{} callbacks of the batch are still running: wait for them, then retry the failed items",
    ),
    "NOT_PAUSED": (NotPaused, "{} is not paused"),
    "PAUSED": (InvalidArgument, "{} is paused: resume it first"),
    "STALE_EPOCH": (StaleEpoch, "{} is not paused under the epoch that was given: somebody paused it anew"),
    "LIVE": (
        SnapshotConflict,
        "batch {!r} is there already: a snapshot is restored where its batches are not, as into an empty Redis",
    ),
    "RESTORED": (SnapshotConflict, "the snapshot of workflow {!r} was restored here already; it is not restored twice"),
    "RESTORING": (SnapshotConflict, "{!r}: somebody else is restoring this snapshot here; wait for it"),
    "DAMAGED": (
        StoreRefused,
        "the state of task {!r} cannot be read: somebody wrote over it. `poimen doctor --repair` removes it",
    ),
    "FOREIGN": (
        StoreRefused,
        (
            "key {!r} holds something that this package did not write: somebody wrote over it, or uses this namespace "
            "for something else. Rename or delete it (RENAME, DEL), or set POIMEN_NAMESPACE to a name that is free"
        ),
    ),
    "TOO_MANY": (InvalidArgument, "{} items at once are too many: at most 500 a call"),
    "PARTS": (
        InvalidArgument,
        "batch {!r} has more than 1,000 combinations of route, activity and limits: dispatch several batches",
    ),
}


def translate(code: str, detail: str) -> PoimenError:
    """A script's refusal as one of our errors; where there is none for it, as `Refusal`."""
    kind, text = _TRANSLATIONS.get(code, (None, ""))
    return Refusal(code, detail) if kind is None else kind(text.format(detail))


#: The server's role or state forbids writes for now.
_PASSING = (
    "READONLY", "MISCONF", "LOADING", "BUSY", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED",
)  # fmt: skip
#: No right to it; the last two are how a command within a script is refused, the last one by Redis 7.0.
_FORBIDDEN = ("NOPERM", "NOAUTH", "WRONGPASS", "ACL failure in script", "The user executing the script can't")


def is_passing(error: Exception) -> bool:
    """True for a refusal that ends by itself."""
    return isinstance(error, ReadOnlyError) or str(error).startswith(_PASSING)


def is_refusal(error: Exception) -> bool:
    """True where the server refuses a command for now, or for want of a right."""
    # The client library cuts the code off the errors that it has a class for.
    known = isinstance(error, AuthenticationError | NoPermissionError)
    return known or is_passing(error) or str(error).startswith(_FORBIDDEN)
