"""What `poimen pause` and `resume` say: what is paused, what runs on, and what to do next."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import click

from poimen_tasks.app import Poimen
from poimen_tasks.cli.loading import load_tasks
from poimen_tasks.cli.output import TIMED_OUT, Failure, one_line, print_json, when, with_app
from poimen_tasks.errors import PauseTimeout, PoimenError, StaleEpoch
from poimen_tasks.pause import PauseReceipt, Scope

__all__ = ["not_paused", "paused_in_words", "wait_quiet"]

_INTERRUPTED = 130
_FIRST_LINE, _EVERY_LINE = 1.0, 5.0
_SHOWN = 5


def _option(scope: Scope) -> str:
    """The scope as it is typed."""
    return f"--{scope.kind} {scope.id}".rstrip()


def wait_quiet(receipt: PauseReceipt, wait: float, *, as_json: bool) -> None:
    """Wait until nothing of it runs, for so many seconds or as long as it takes, and say so.

    Raises:
        Failure: something runs on when the time is over.
    """
    try:
        receipt.wait_quiet(
            timeout=None if wait == math.inf else wait, progress=None if as_json else _Told(receipt.scope)
        )
    except PauseTimeout as error:
        raise Failure(
            f"{error}; {_how_to_go_on(receipt.scope, wait)}", kind="PauseTimeout", exit_code=TIMED_OUT
        ) from error
    except KeyboardInterrupt:
        click.echo(f"\n{receipt.scope} stays paused; {_how_to_resume(receipt.scope)}", err=True)
        click.get_current_context().exit(_INTERRUPTED)
    if as_json:
        print_json(receipt)
    else:
        click.echo(f"paused {receipt.scope}: nothing of it runs any more; {_how_to_resume(receipt.scope)}")


class _Told:
    """How much still runs, for a person who waits."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._next = time.monotonic() + _FIRST_LINE

    def __call__(self, running: int) -> None:
        """So much runs on."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_LINE
            runs = "runs" if running == 1 else "run"
            click.echo(f"{self._scope} is paused; {running:,} of it still {runs}", err=True)


def _how_to_go_on(scope: Scope, wait: float) -> str:
    again = with_app(f"`poimen pause -A APP {_option(scope)} --wait {wait:g}`")
    return f"{again} waits again, with --grace SECONDS or --terminate it stops them"


def _how_to_resume(scope: Scope) -> str:
    """The command that ends the pause."""
    return with_app(f"`poimen resume -A APP {_option(scope)}` lets it go on")


def _unknown(poimen: Poimen, scope: Scope) -> Iterator[str]:
    """A word on what nobody has seen, or what is over: it may be meant, or mistyped."""
    if scope.kind == "workflow" and not poimen.batches(workflow=scope.id):
        yield "no batch of it is known: what is dispatched later is held"
    elif scope.kind == "batch":
        yield from _unknown_batch(poimen, scope.id)
    elif scope.kind == "activity":
        yield from _unknown_task(poimen, scope.id)


def _unknown_batch(poimen: Poimen, batch: str) -> Iterator[str]:
    (status,) = poimen.store.reads.statuses([batch])
    if status is None:
        yield "it is not known: when it is dispatched it is held"
    elif status.is_over:
        yield f"batch {batch} is over already: the pause stands, and holds what `poimen retry` would start"


def _unknown_task(poimen: Poimen, name: str) -> Iterator[str]:
    if name not in poimen.celery.tasks:
        with suppress(Failure):
            load_tasks(poimen)
    if name not in poimen.celery.tasks:
        yield f"no task of that name is known here{_near(name, poimen.celery.tasks)}"


def _near(name: str, known: Collection[str]) -> str:
    """Names of tasks that may be meant: those with another module, and those that look alike."""
    last = name.rpartition(".")[2]
    ends = sorted(one for one in known if one.rpartition(".")[2] == last)
    found = list(dict.fromkeys((*ends, *difflib.get_close_matches(name, known))))[:_SHOWN]
    return f"; did you mean {' or '.join(map(one_line, found))}?" if found else ""


def paused_in_words(poimen: Poimen, receipt: PauseReceipt) -> Iterator[str]:
    """What was paused, and what of it runs on."""
    yield f"paused {receipt.scope}: nothing of it starts from now on; {_how_to_resume(receipt.scope)}"
    yield from _unknown(poimen, receipt.scope)
    names = [one_line(f"{one.batch_id}.{item}") for one in receipt.running for item in one.item_ids[:_SHOWN]]
    names += [f"call {one_line(call)}" for call in receipt.calls]
    count = receipt.running_items + len(receipt.calls)
    if not count:
        yield "nothing of it runs"
        return
    more = f" and {count - _SHOWN:,} more" if count > _SHOWN else ""
    ends = "they may finish" if receipt.stop_at is None else f"they are asked to stop at {when(receipt.stop_at)}"
    yield f"{count:,} still run, {ends}: {', '.join(names[:_SHOWN])}{more}"


def not_paused(error: PoimenError, found: dict[str, Any], epoch: int | None) -> Failure:
    """The same in terms of commands."""
    under = f" under epoch {epoch}" if isinstance(error, StaleEpoch) else ""
    has = with_app("`poimen pauses -A APP` has what is")
    return Failure(f"{Scope.of(**found)} is not paused{under}; {has}", kind=type(error).__name__)
