"""One run of `poimen run`: which batch it is about, its dispatch and its outcomes, and what is said about them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poimen_tasks.app import Poimen
from poimen_tasks.cli.calls_file import CallsFile
from poimen_tasks.cli.following import BAD_CALLS, Feeder, Follower, Left
from poimen_tasks.cli.interrupts import Interrupts
from poimen_tasks.cli.outcome_file import OutcomeFile
from poimen_tasks.cli.output import MISUSED, Failure, with_app
from poimen_tasks.cli.progress import Reporter
from poimen_tasks.dispatch import Batch
from poimen_tasks.errors import BatchNotFound, PoimenError
from poimen_tasks.model import BatchState, BatchStatus

__all__ = ["RunJob"]

_MARK = "poimen_run"


@dataclass(kw_only=True)
class RunJob:
    """What to run, and how.

    Attributes:
        poimen: the app.
        calls: where the calls come from; a file was checked.
        output: where outcomes go; None is stdout.
        batch: the batch to begin, or to go on with.
        options: those of the dispatch.
        resume: go on with a batch that is there.
        cancels: a request to stop cancels the batch.
        after: the cursor behind which to go on on stdout.
        timeout: seconds after which to leave.
        as_json: what goes to stderr are objects.
    """

    poimen: Poimen
    calls: CallsFile
    output: OutcomeFile | None
    batch: Batch
    options: Mapping[str, Any]
    resume: bool
    cancels: bool
    after: int | None
    timeout: float | None
    as_json: bool

    def __post_init__(self) -> None:
        self._many = f"{self.calls.count:,}"

    def run(self) -> int:
        """The exit code.

        Raises:
            Failure: the batch cannot be gone on with, or its calls are bad.
        """
        known = self._known()
        if known is None and (code := self._ended_before()) is not None:
            return code
        if known is not None:
            self._check_same(known)
        with Interrupts() as interrupts, self._reporter() as reporter:
            if known is not None:
                self._introduce(reporter, resumed=True)
            begin = None if known else lambda: self._begin(reporter)
            feeder = Feeder(self.calls, self._dispatcher(known), begin)
            follower = Follower(
                self.batch, feeder, self.output.write if self.output else _to_stdout, reporter, interrupts,
                cancel=self._cancel if self.cancels else None,
                after=self.output.cursor if self.output else self.after,
                timeout=self.timeout,
            )  # fmt: skip
            feeder.start()
            try:
                last = follower.follow()
            except Left as left:
                return self._left(left.code, feeder, follower.after, reporter)
            except KeyboardInterrupt:
                return self._left(interrupts.code, feeder, follower.after, reporter)
            except PoimenError as error:
                raise _failure(error) from error
            except OSError as error:
                raise self._cannot_write(error, feeder) from error
            code = self._over(last, feeder, reporter)
            return interrupts.code if self.cancels and interrupts.code and code else code

    # --- before --------------------------------------------------------------------------------------------------

    def _known(self) -> BatchStatus | None:
        """The batch to go on with; None when there is none."""
        try:
            found = self.batch.status()
        except BatchNotFound:
            return None
        if not self.resume:
            raise Failure(
                f"batch {found.batch_id} exists ({found.state}): --resume goes on with it, or give another --batch-id",
                kind="BatchExists",
            )
        return found

    def _ended_before(self) -> int | None:
        """The exit code of a run whose batch had ended, and is not known any more."""
        if self.output is None or not self.resume:
            return None
        ended = self.output.note.ended
        if ended is not None:
            text = f"{ended['state']}: {ended['succeeded']:,} of {ended['total']:,} items succeeded"
            self._reporter().say(f"batch {self.batch.id} had ended before, {text}", event="ended", status=ended)
            return 0 if ended["state"] == BatchState.COMPLETED else 1
        if self.output.cursor is not None:
            raise Failure(
                f"batch {self.batch.id}, whose outcomes are in {str(self.output.path)!r}, is not known: its retention "
                "is over, or this is another server or namespace", kind="BatchNotFound",
            )  # fmt: skip
        return None

    def _check_same(self, known: BatchStatus) -> None:
        """Hold the calls against the batch that was made of them."""
        made_of = self.batch.metadata.get(_MARK)
        if not isinstance(made_of, Mapping):
            raise Failure(f"batch {known.batch_id} was not made by `poimen run`", exit_code=MISUSED)
        digest = made_of.get("sha256")
        if digest and self.calls.digest and digest != self.calls.digest:
            raise Failure(
                f"{self.calls.name} is not what batch {known.batch_id} was made of: it has changed, or is another file",
                exit_code=MISUSED,
            )

    def _reporter(self) -> Reporter:
        live = self.output is not None or not sys.stdout.isatty()
        return Reporter(self.batch.id, as_json=self.as_json, live=live)

    def _introduce(self, reporter: Reporter, *, resumed: bool) -> None:
        number = f"the {self._many} calls of" if self.calls.is_file else "the calls from"
        text = f"batch {self.batch.id} {'goes on with' if resumed else 'runs'} {number} {self.calls.name}"
        reporter.say(text, event="started", resumed=resumed)

    def _begin(self, reporter: Reporter) -> None:
        """There is a first call, and the batch comes next."""
        if self.output:
            self.output.begin(self.batch.id)
        self._introduce(reporter, resumed=False)

    def _dispatcher(self, known: BatchStatus | None) -> Callable[[Iterator[Any]], object]:
        made_of = {"calls": self.calls.name, "sha256": self.calls.digest}
        return lambda members: self.poimen.dispatch(
            members, batch_id=self.batch.id, metadata={_MARK: made_of}, on_existing="continue" if known else "raise",
            **self.options,
        )  # fmt: skip

    # --- after ---------------------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        self.batch.cancel("interrupted", self.options["actor"])

    def _over(self, last: BatchStatus | None, feeder: Feeder, reporter: Reporter) -> int:
        if last is None:
            reporter.say(f"{self.calls.name} has no calls: nothing to do", event="ended")
            return 0
        reporter.end(last)
        if self.output:
            self.output.finish(last.to_dict())
        if last.state is BatchState.CANCELLED:
            if isinstance(feeder.error, PoimenError):
                raise _failure(feeder.error)
        elif feeder.counted and self.calls.count != last.total:
            raise Failure(
                f"{self.calls.name} has {self.calls.count:,} calls, and batch {last.batch_id} has {last.total:,}: they "
                "are not the same", exit_code=MISUSED,
            )  # fmt: skip
        return 0 if last.state is BatchState.COMPLETED else 1

    def _left(self, code: int, feeder: Feeder, after: int | None, reporter: Reporter) -> int:
        """Say what becomes of the batch."""
        self.calls.stop()
        reporter.stop()
        try:
            found = self.batch.status()
        except BatchNotFound:
            reporter.say("left before anything was dispatched", event="left")
            return code
        whole = feeder.whole or found.is_over
        rest = "it goes on" if whole else f"only the first {found.total:,} calls are in it, and run"
        text = f"left batch {found.batch_id}: {rest}; {self._way_back(after, whole=whole)}"
        if not found.is_over:
            text += with_app(f", `poimen cancel -A APP {found.batch_id}` stops it")
        reporter.say(text, event="left", status=found)
        return code

    def _way_back(self, after: int | None, *, whole: bool) -> str:
        if self.output is not None:
            return "the same command with --resume goes on"
        command = f"watch -A APP {self.batch.id} --json"
        if not whole:
            command = f"run -A APP {self.calls.argument} --batch-id {self.batch.id} --resume"
        behind = "" if after is None else f" --after {after}"
        return with_app(f"`poimen {command}{behind}` prints the rest")

    def _cannot_write(self, error: OSError, feeder: Feeder) -> Failure:
        feeder.stop()
        place = str(self.output.path) if self.output else "stdout"
        return Failure(f"cannot write {place}: {error.strerror}; batch {self.batch.id} goes on without this run")


def _failure(error: PoimenError) -> Failure:
    return Failure.of(error, exit_code=MISUSED if isinstance(error, BAD_CALLS) else 1)


def _to_stdout(line: bytes) -> None:
    stream = sys.stdout.buffer
    try:
        stream.write(line)
        stream.flush()
    except BrokenPipeError:
        # What is left in the stream's buffer would be written when Python ends, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
