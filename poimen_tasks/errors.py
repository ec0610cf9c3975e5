"""Every exception Poimen raises, in one tree.

```
PoimenError
├── SettingsError            (ValueError)   a setting is missing, malformed or in conflict
├── InvalidId                (ValueError)   an id breaks its rule
├── InvalidArgument          (ValueError)   an option is out of its range
├── UnsupportedWork          (TypeError)    a kind of work, canvas or option that a batch does not take
├── UnknownTask              (LookupError)  a task that is not of this Celery app
├── SerializationError       (TypeError)    a value that the wire format does not carry
│   ├── PayloadTooLarge                     a value over the size limit
│   └── UncacheableArguments                a cached task's arguments have no canonical form
├── DuplicateItem            (ValueError)   two items of a batch share an id
├── BatchNotFound            (LookupError)  no such batch
├── WorkflowNotFound         (LookupError)  nothing was dispatched under this workflow id
├── ItemNotFound             (LookupError)  no such item in the batch
├── BatchExists              (ValueError)   on_existing="raise" met an existing batch
├── BatchFailed                             wait(raise_on_error=True): items failed
├── BatchTimeout             (TimeoutError) the deadline passed; the batch goes on
├── CacheTimeout             (TimeoutError) the deadline passed; another call still computes the value
├── NotPaused                (ValueError)   resume of a scope that is not paused
├── StaleEpoch               (ValueError)   resume of a pause that a newer one has replaced
├── PauseTimeout             (TimeoutError) the deadline passed; a pause that was waited for goes on
├── WouldDeadlock            (RuntimeError) waiting inside a task for a batch that is not over
├── DispatchAborted                         a later slice was bad; what was pending is cancelled
├── StoreUnavailable         (ConnectionError) the Redis server does not answer
├── StoreRefused                            the Redis server refuses (memory, read-only, rights, a key of another type)
├── LayoutMismatch                          the stored data has another layout number
├── SnapshotNotFound         (LookupError)  no snapshot of this workflow
├── SnapshotConflict         (ValueError)   restored here already, or over a batch that is there
├── SnapshotCorrupt                         a snapshot's file is torn, altered or not a snapshot
├── SnapshotTooNew                          a newer version wrote the snapshot
├── SnapshotFailed           (OSError)      a snapshot could not be written; what was there before is untouched
├── SignatureMismatch        (TypeError)    a call that the worker's function does not take
├── WorkerLost                              the worker died while it ran the item
├── Paused                                  raised inside a running task whose scope is paused: it runs again later
├── AuditUnavailable         (OSError)      there is no audit log in the directory, or it cannot be read
├── AuditCorrupt                            what was sealed is damaged or was changed
├── AuditBacklog                            too many audit entries wait to be sealed
├── AuditDiskError           (OSError)      the disk did not keep what was written; the sealer ends
├── SealerConflict                          another sealer has the directory or the stream
├── MetricsUnavailable       (ImportError)  the package that metrics need is not installed
├── BoardInvalid             (ValueError)   a task board is not valid
├── TrackerConflict          (ValueError)   a tracked task has another version than was expected
└── Cancelled                               raised inside a running task that was asked to stop
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poimen_tasks.model import BoardProblem

__all__ = [
    "AuditBacklog",
    "AuditCorrupt",
    "AuditDiskError",
    "AuditUnavailable",
    "BatchExists",
    "BatchFailed",
    "BatchNotFound",
    "BatchTimeout",
    "BoardInvalid",
    "CacheTimeout",
    "Cancelled",
    "DispatchAborted",
    "DuplicateItem",
    "InvalidArgument",
    "InvalidId",
    "ItemNotFound",
    "LayoutMismatch",
    "MetricsUnavailable",
    "NotPaused",
    "PauseTimeout",
    "Paused",
    "PayloadTooLarge",
    "PoimenError",
    "SealerConflict",
    "SerializationError",
    "SettingsError",
    "SignatureMismatch",
    "SnapshotConflict",
    "SnapshotCorrupt",
    "SnapshotFailed",
    "SnapshotNotFound",
    "SnapshotTooNew",
    "StaleEpoch",
    "StoreRefused",
    "StoreUnavailable",
    "TrackerConflict",
    "UncacheableArguments",
    "UnknownTask",
    "UnsupportedWork",
    "WorkerLost",
    "WorkflowNotFound",
    "WouldDeadlock",
]


class PoimenError(Exception):
    """Base of every error of this package; the class docstring is its default message.

    Attributes:
        batch_id: the batch it is about, where a dispatch had begun to write one.
    """

    batch_id: str | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])


class SettingsError(PoimenError, ValueError):
    """A setting is missing, malformed or in conflict with another."""


class InvalidId(PoimenError, ValueError):
    """An id breaks its rule."""


class InvalidArgument(PoimenError, ValueError):
    """An option is out of its range."""


class UnsupportedWork(PoimenError, TypeError):
    """A kind of work, canvas or option that a batch does not take."""


class UnknownTask(PoimenError, LookupError):
    """The task is not registered with this Celery app."""


class SerializationError(PoimenError, TypeError):
    """A value that the wire format does not carry."""


class PayloadTooLarge(SerializationError):
    """A value is over the size limit."""


class UncacheableArguments(SerializationError):
    """The arguments of a cached task have no canonical form, so there is nothing to file its result under."""


class DuplicateItem(PoimenError, ValueError):
    """Two items of a batch share an id."""


class BatchNotFound(PoimenError, LookupError):
    """No such batch."""


class WorkflowNotFound(PoimenError, LookupError):
    """Nothing was dispatched under this workflow id."""


class ItemNotFound(PoimenError, LookupError):
    """No such item in the batch."""


class BatchExists(PoimenError, ValueError):
    """The batch exists already."""


class BatchFailed(PoimenError):
    """Items of the batch did not succeed.

    Attributes:
        batch_id: the batch.
        failed: how many items failed.
        errors: item id → a short text, for the first of them.
    """

    def __init__(self, message: str, *, batch_id: str = "", failed: int = 0, errors: dict[str, str] | None = None):
        super().__init__(message)
        self.batch_id = batch_id
        self.failed = failed
        self.errors = errors or {}


class BatchTimeout(PoimenError, TimeoutError):
    """The deadline passed before the batch was over; the batch goes on."""


class CacheTimeout(PoimenError, TimeoutError):
    """The deadline passed while another call still computes the value."""


class NotPaused(PoimenError, ValueError):
    """The scope is not paused."""


class StaleEpoch(PoimenError, ValueError):
    """The pause was replaced by a newer one."""


class PauseTimeout(PoimenError, TimeoutError):
    """The deadline passed: a scope was not quiet yet, or was neither paused nor resumed."""


class WouldDeadlock(PoimenError, RuntimeError):
    """Waiting inside a task for a batch that is not over would hold the slot it may need."""


class DispatchAborted(PoimenError):
    """A later slice of the work was bad; the items already written are cancelled.

    Attributes:
        batch_id: the batch that was cancelled.
    """

    def __init__(self, message: str, *, batch_id: str = "") -> None:
        super().__init__(message)
        self.batch_id = batch_id


class StoreUnavailable(PoimenError, ConnectionError):
    """The Redis server does not answer."""


class StoreRefused(PoimenError):
    """Redis refuses a command (no memory, read-only, no right to it, a key of another type), or has damaged data."""


class LayoutMismatch(PoimenError):
    """The stored data has another layout number; upgrade workers before producers."""


class SnapshotNotFound(PoimenError, LookupError):
    """There is no snapshot of this workflow."""


class SnapshotConflict(PoimenError, ValueError):
    """The snapshot was restored here already, or would go over a batch that is there."""


class SnapshotCorrupt(PoimenError):
    """The snapshot's file is torn, was altered, or is no snapshot."""


class SnapshotTooNew(PoimenError):
    """A newer version of this package wrote the snapshot."""


class SnapshotFailed(PoimenError, OSError):
    """The snapshot could not be written; the one before it is untouched."""


class SignatureMismatch(PoimenError, TypeError):
    """The call does not fit the function that the worker has; never retried."""


class WorkerLost(PoimenError):
    """The worker died while it ran the item."""


class Paused(PoimenError):
    """The running item was asked to stop, because what it belongs to is paused; it runs again after the resume."""


class AuditUnavailable(PoimenError, OSError):
    """There is no audit log in the directory, or it cannot be read."""


class AuditCorrupt(PoimenError):
    """The sealed audit log is damaged or was changed: the message names the first bad line, and why."""


class AuditBacklog(PoimenError):
    """Too many audit entries wait in Redis to be sealed: start the sealer, `poimen audit seal`."""


class AuditDiskError(PoimenError, OSError):
    """The disk did not keep what the sealer wrote; a failed fsync is never tried again, the sealer ends."""


class SealerConflict(PoimenError):
    """Another sealer has the directory or the stream."""


class MetricsUnavailable(PoimenError, ImportError):
    """The package that metrics need is not installed: pip install 'poimen-tasks[metrics]'."""


class BoardInvalid(PoimenError, ValueError):
    """The task board is not valid.

    Attributes:
        problems: all that is wrong with it, by line.
    """

    def __init__(self, message: str | None = None, *, problems: Sequence[BoardProblem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class TrackerConflict(PoimenError, ValueError):
    """The tracked task has another version than was expected: somebody changed it meanwhile.

    Attributes:
        version: the version that it has; 0: it is not there.
    """

    def __init__(self, message: str | None = None, *, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


class Cancelled(PoimenError):
    """The running item was asked to stop."""
