"""The `poimen` command; each command is a module.

Exit codes: 0 it did what it was asked, 1 it did not, 2 it was misused, 124 the time it was given is over, 130 Ctrl-C,
141 nobody reads its output any more.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import click

import poimen_tasks
from poimen_tasks.cli import (
    audit,
    board,
    cache,
    cancel,
    concurrency,
    doctor,
    drain,
    flower,
    health,
    metrics,
    pausing,
    retry,
    run,
    snapshot,
    status,
    tracker,
    up,
    watch,
    worker,
)
from poimen_tasks.cli.given import refuse_empty
from poimen_tasks.cli.output import APP, INTERRUPTED, PIPE_GONE, Failure
from poimen_tasks.errors import PoimenError

__all__ = ["main"]


#: What a write to stdout fails with, where that is a file.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class _Commands(click.Group):
    """Every error of ours becomes one line; the commands stand in the order in which a newcomer meets them."""

    def invoke(self, ctx: click.Context) -> Any:
        _give_streams()
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()  # here an error of it is told; at the interpreter's end it would be a traceback
        except BrokenPipeError:  # as with `| head -1`; Click's own answer is 1, which says that something is wrong
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
            raise click.exceptions.Exit(PIPE_GONE) from None
        except PoimenError as error:
            raise Failure.of(error) from error
        except KeyboardInterrupt as error:  # Click's own answer is 1, and two lines
            raise Failure("interrupted", kind="KeyboardInterrupt", exit_code=INTERRUPTED) from error
        except OSError as error:
            if error.errno not in _FULL:  # anything else is a fault of ours
                raise
            raise Failure(f"the output cannot be written: {error.strerror}", kind="OSError") from error
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - Click's signature
        return list(self.commands)


def _give_streams() -> None:
    """Where there is no stdout or stderr, as behind `>&-`: none but `/dev/null` should get its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end


@click.group(
    cls=_Commands,
    commands=[
        up.up,
        worker.worker,
        run.run,
        status.status,
        watch.watch,
        cancel.cancel,
        pausing.pause,
        pausing.resume,
        pausing.pauses,
        retry.retry,
        concurrency.concurrency,
        cache.cache,
        snapshot.snapshot,
        drain.drain,
        board.board,
        tracker.tracker,
        audit.audit,
        flower.flower,
        health.health,
        metrics.metrics,
        doctor.doctor,
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-A", "--app", metavar="MODULE[:NAME]", help="For any command: where your Poimen, or its Celery app, is.")
@click.version_option(poimen_tasks.__version__, prog_name="poimen")
@click.pass_context
def main(ctx: click.Context, app: str | None) -> None:
    """Batches of expensive work on Celery and Redis.

    \b
    Begin on one machine, with this package and its extras [server,audit] alone:
      poimen up -A shop                 a private server, a worker and a sealer
      poimen status -A shop             in another terminal
      poimen run -A shop calls.jsonl    a file of calls, without your own program
    Then start more workers, on any machine:
      poimen worker -A shop -c 8
    """  # noqa: D301 - Click takes \b for "keep these lines as they are"
    ctx.meta[APP] = app


refuse_empty(main)
