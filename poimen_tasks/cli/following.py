"""The two halves of `poimen run`: a thread that hands the calls over, and the loop that takes their outcomes in."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from poimen_tasks.cli.calls_file import CallsFile, Stopped
from poimen_tasks.cli.interrupts import Interrupts
from poimen_tasks.cli.output import PIPE_GONE, TIMED_OUT, json_line
from poimen_tasks.cli.progress import Reporter
from poimen_tasks.dispatch import Batch
from poimen_tasks.errors import (
    BatchNotFound,
    BatchTimeout,
    DispatchAborted,
    DuplicateItem,
    InvalidArgument,
    InvalidId,
    SerializationError,
    StoreUnavailable,
    UnknownTask,
    UnsupportedWork,
)
from poimen_tasks.model import BatchState, BatchStatus

__all__ = ["BAD_CALLS", "Feeder", "Follower", "Left"]

BAD_CALLS = (DuplicateItem, InvalidArgument, InvalidId, SerializationError, UnknownTask, UnsupportedWork)
"""What is wrong with the calls themselves."""

_TICK = 0.25
_LOOK = 0.05
_OUTAGE = 60.0


class Left(Exception):
    """The run is left before its batch is over."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Feeder:
    """Dispatches the calls in a thread of its own, so that outcomes are read meanwhile.

    Args:
        calls: where they come from.
        dispatch: writes them; returns when all are written.
        begin: called before a new batch is written; None when the batch is there already.

    Attributes:
        error: what ended it early.
        empty: there was not a single call.
        counted: all calls were read, though the batch may have been whole already.
    """

    def __init__(
        self, calls: CallsFile, dispatch: Callable[[Iterator[Any]], object], begin: Callable[[], None] | None
    ) -> None:
        self.calls = calls
        self.error: BaseException | None = None
        self.empty = False
        self.counts = begin is None and not calls.is_file
        self.counted = False
        self._dispatch = dispatch
        self._begin = begin
        self._thread = threading.Thread(target=self._run, name="poimen-calls", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; tells whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Read no further call; what is written stays."""
        self.calls.stop()
        self.wait(2.0)

    @property
    def done(self) -> bool:
        """True when it has ended, one way or the other."""
        return not self._thread.is_alive()

    @property
    def whole(self) -> bool:
        """True when every call is written."""
        return self.done and self.error is None

    def _run(self) -> None:
        try:
            members: Iterator[Any] = self.calls.members()
            if self._begin is not None:
                first = next(members, None)
                self.empty = first is None
                if first is None:
                    return
                self._begin()
                members = itertools.chain((first,), members)
            self._dispatch(members)
            if self.counts:  # a batch that is whole takes none of them
                for _ in members:
                    pass
                self.counted = True
        except BaseException as error:  # noqa: BLE001 - the loop looks at it
            self.error = error


class Follower:
    """Takes outcomes in until the batch is over, or until the run is left.

    Args:
        batch: the batch.
        feeder: hands the calls over.
        sink: takes a line.
        reporter: tells how far it is.
        interrupts: requests to stop.
        cancel: cancels the batch on such a request; None leaves it going.
        after: the cursor behind which to go on.
        timeout: seconds after which to leave; None waits as long as it takes.
    """

    def __init__(
        self, batch: Batch, feeder: Feeder, sink: Callable[[bytes], None], reporter: Reporter,
        interrupts: Interrupts, *, cancel: Callable[[], None] | None, after: int | None, timeout: float | None,
    ) -> None:  # fmt: skip
        self.after = after
        self._batch = batch
        self._feeder = feeder
        self._sink = sink
        self._reporter = reporter
        self._interrupts = interrupts
        self._cancel = cancel
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._heeded = self._silent = self._told = False
        self._answered = time.monotonic()

    def follow(self) -> BatchStatus | None:
        """Returns the last status; None when there was nothing to do.

        Raises:
            Left: the batch goes on without us.
            PoimenError: the calls or the server forbid to go on.
        """
        while not self._is_there():
            if self._feeder.wait(_LOOK) and not self._is_there():
                if self._feeder.empty:
                    return None
                error = self._feeder.error or RuntimeError("the dispatch ended without a batch")
                error.add_note("nothing was dispatched")
                raise error
            self._heed_before()
        while not self._take():
            self._heed()
        last = self._batch.status()
        if self._feeder.counts and last.state is not BatchState.CANCELLED:
            while not self._feeder.wait(_TICK) and not self._interrupts.code:
                pass
        self._feeder.stop()
        return last

    def _is_there(self) -> bool:
        try:
            self._batch.status()
        except BatchNotFound:
            return False
        return True

    def _heed_before(self) -> None:
        """Requests to stop, and the deadline, while nothing is known to be written."""
        if code := self._interrupts.code or self._out_of_time():
            self._feeder.stop()
            if not self._is_there():
                raise Left(code)

    def _out_of_time(self) -> int:
        return TIMED_OUT if self._deadline is not None and time.monotonic() >= self._deadline else 0

    def _take(self) -> bool:
        """Take in what comes within a tick; True when the batch is over."""
        try:
            return self._take_in()
        except StoreUnavailable as error:
            self._bear(error)
        except BrokenPipeError:
            self._leave(PIPE_GONE)
        return False

    def _take_in(self) -> bool:
        try:
            for outcome in self._batch.outcomes(after=self.after, timeout=_TICK):
                self._sink(f"{json_line({**outcome.to_dict(), 'cursor': outcome.cursor})}\n".encode("ascii"))
                self.after = outcome.cursor
                if self._reporter.due or (self._interrupts.code and not self._heeded):
                    self._show()
                    return False
        except BatchTimeout:
            self._show()
            return False
        return True

    def _show(self) -> None:
        self._answered, self._silent = time.monotonic(), False
        if self._reporter.due:
            self._reporter.update(self._batch.status())

    def _bear(self, error: StoreUnavailable) -> None:
        """A server that is away for a while, as for a restart, ends no run."""
        if time.monotonic() - self._answered > _OUTAGE:
            raise error
        if not self._silent:
            self._reporter.say("Redis does not answer; trying again")
            self._silent = True
        time.sleep(_TICK)

    def _heed(self) -> None:
        """What happened meanwhile: a request to stop, the deadline, the end of the dispatch."""
        if self._feeder.done and self._feeder.error is not None:
            self._give_up_on(self._feeder.error)
        if self._interrupts.code and not self._heeded:
            self._heeded = True
            if self._cancel is None:
                self._leave(self._interrupts.code)
            else:
                self._reporter.say("cancelling, and waiting for the items that run; Ctrl-C again leaves at once")
                self._feeder.stop()
                self._cancel()
        elif code := self._out_of_time():
            self._leave(code)

    def _give_up_on(self, error: BaseException) -> None:
        """Bad calls have cancelled the batch, and its last outcomes are waited for; any other error ends the run."""
        if isinstance(error, Stopped):
            return
        if not isinstance(error, (*BAD_CALLS, DispatchAborted)):
            raise error
        if not self._told:
            self._reporter.say(f"{error}; the batch is cancelled, waiting for the items that run")
            self._told = True

    def _leave(self, code: int) -> None:
        """Leave; the calls of a file are handed over first, so that the batch is whole."""
        if self._feeder.calls.is_file and not self._feeder.done:
            self._reporter.say("leaving when the rest of the calls is handed over; Ctrl-C again leaves at once")
            while not self._feeder.wait(_TICK) and self._interrupts.code in (0, code):
                pass
        self._feeder.stop()
        raise Left(code)
