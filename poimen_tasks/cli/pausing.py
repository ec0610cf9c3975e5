"""`poimen pause`, `resume` and `pauses`: what is paused starts nothing, on any machine, until it is resumed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.text import Text

from poimen_tasks.app import Poimen
from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.loading import app_options, load, load_without_tasks
from poimen_tasks.cli.output import (
    console,
    duration,
    json_option,
    one_line,
    print_json,
    since,
    wide,
    with_app,
)
from poimen_tasks.cli.pausing_words import not_paused, paused_in_words, wait_quiet
from poimen_tasks.cli.tables import table
from poimen_tasks.cli.waiting import wait_options
from poimen_tasks.errors import NotPaused, StaleEpoch
from poimen_tasks.model import BatchStatus
from poimen_tasks.pause import PauseState

__all__ = ["pause", "pauses", "resume"]

_SHOWN = 5
_NEWEST = 500

F = TypeVar("F", bound=Callable[..., Any])


def _scope_options(command: F) -> F:
    """What is paused or resumed: exactly one of them."""
    for option in (
        click.option("--everything", is_flag=True, help="Everything of this namespace."),
        click.option("--activity", metavar="NAME", help="A task, by its name."),
        click.option("--queue", metavar="Q", help="A queue."),
        click.option("--batch", metavar="B", help="A batch."),
        click.option("--workflow", metavar="W", help="A workflow: all its batches, those to come too."),
    ):
        command = option(command)
    return command


def _scope(given: dict[str, Any]) -> dict[str, Any]:
    """The one scope that was given.

    Raises:
        UsageError: none, or several.
    """
    found = {name: value for name, value in given.items() if value not in (None, False)}
    if len(found) != 1:
        names = "--workflow, --batch, --queue, --activity and --everything"
        raise click.UsageError(f"give exactly one of {names}, not {len(found)}")
    return found


@click.command()
@app_options
@json_option
@_scope_options
@click.option("--reason", default="", help="Why; for `poimen pauses` and the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
@click.option(
    "--grace", type=click.FloatRange(min=0), metavar="SECONDS",
    help="After that, running items are asked to stop at their next checkpoint(). Default: they may finish.",
)  # fmt: skip
@click.option(
    "--terminate", is_flag=True, help="After the grace (0 if not given) also end the processes that did not stop."
)
@click.option(
    "--expires", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Resume by itself after that."
)
@wait_options("nothing of it runs any more")
def pause(
    *, app: str | None, directory: Path | None, as_json: bool, reason: str, actor: str, grace: float | None,
    terminate: bool, expires: float | None, wait: float | None, **scope: Any,
) -> None:  # fmt: skip
    """Start nothing more of a workflow, batch, queue or task.

    Or of everything: on any machine, until it is resumed. What need not be there yet may be paused too. Running items
    may finish, unless --grace or --terminate is given. What is paused already gets the new reason, grace and expiry.
    """
    found = _scope(scope)
    poimen = load(app, directory)
    receipt = poimen.pause(**found, reason=reason, actor=actor, grace=grace, terminate=terminate, expires=expires)
    if wait is None and as_json:
        print_json(receipt)
    elif wait is None:
        click.echo("\n".join(paused_in_words(poimen, receipt)))
    else:
        wait_quiet(receipt, wait, as_json=as_json)


@click.command()
@app_options
@json_option
@_scope_options
@click.option("--reason", default="", help="Why; for `poimen pauses` and the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N",
    help="At first start only N items a second: it doubles every 5 s, and ends after 60 s.",
)  # fmt: skip
@click.option(
    "--epoch", type=click.IntRange(min=1), metavar="N", help="Only if it is still the pause with this number."
)
def resume(
    *, app: str | None, directory: Path | None, as_json: bool, reason: str, actor: str, rate: float | None,
    epoch: int | None, **scope: Any,
) -> None:  # fmt: skip
    """Let go what was paused: give what `poimen pause` was given.

    What another pause covers stays held. Exits 1 when it is not paused.
    """
    found = _scope(scope)
    poimen = load(app, directory)
    try:
        state = poimen.resume(**found, reason=reason, actor=actor, rate=rate, epoch=epoch)
    except (NotPaused, StaleEpoch) as error:
        raise not_paused(error, found, epoch) from error
    if as_json:
        print_json(state)
        return
    lasted = (state.resumed_at - state.paused_at).total_seconds() if state.resumed_at and state.paused_at else None
    click.echo(
        f"resumed {state.scope}: it was paused for {duration(lasted)} by {state.actor}{_why(state)}{_ramp(state)}"
    )


def _why(state: PauseState) -> str:
    return f" ({one_line(state.reason)})" if state.reason else ""


def _ramp(state: PauseState) -> str:
    return f"; at first {state.rate:g} of its items start a second" if state.rate else ""


@click.command()
@app_options
@json_option
@click.option("--all", "everything", is_flag=True, help="Also what was resumed within the retention.")
def pauses(*, app: str | None, directory: Path | None, as_json: bool, everything: bool) -> None:
    """Show what is paused, by whom, why, and what it holds back.

    The app is optional: without one, the settings are those of the environment.
    """
    poimen = load_without_tasks(app, directory)
    found = poimen.pauses.all(paused=not everything)
    waiting = _waiting(poimen) if found else []
    if as_json:
        shown = [{**state.to_dict(), **_details(poimen, state, waiting)} for state in found]
        print_json({"pauses": shown, "stats": poimen.pauses.stats()})
        return
    if not found:
        click.echo("nothing is paused" if not everything else "nothing is or was paused")
        return
    screen, now = console(), datetime.fromtimestamp(poimen.store.reads.now(), UTC)
    names = ["what", "since", "by", "why", "held", "running"]
    if roomy := wide(screen):
        names += ["ends", "epoch"]
    if everything:
        names.insert(1, "state")
    made = table(*names, right=("since", "running", "epoch"), cut=("why",))
    for state in found:
        cells = _cells(state, _details(poimen, state, waiting), now)
        made.add_row(*(cells[name] for name in names))
    screen.print(made)
    _tell_of_ends(poimen, found)
    if any(state.paused for state in found) and (roomy or not everything):
        screen.print(Text(with_app("\n`poimen resume -A APP --workflow W` (or --batch and so on) lets one go on")))


def _tell_of_ends(poimen: Poimen, found: list[PauseState]) -> None:
    """Pauses of batches that are over last until somebody resumes them."""
    names = [state.scope.id for state in found if state.paused and state.scope.kind == "batch"][:_NEWEST]
    over = [one.batch_id for one in poimen.store.reads.statuses(names) if one is not None and one.is_over]
    if over:
        more = f" and {len(over) - _SHOWN:,} more" if len(over) > _SHOWN else ""
        click.echo(f"\nover already, so their pauses hold nothing: {', '.join(over[:_SHOWN])}{more}")


def _waiting(poimen: Poimen) -> list[BatchStatus]:
    """The newest batches that something covers."""
    names = [batch.id for batch in poimen.batches()[:_NEWEST]]
    return [one for one in poimen.store.reads.statuses(names) if one is not None and one.paused_by]


def _details(poimen: Poimen, state: PauseState, waiting: list[BatchStatus]) -> dict[str, Any]:
    """What it holds back, by batch, and how many items and calls of it run."""
    scope = _scope({state.scope.kind: state.scope.id or True})
    held = poimen.pauses.held(**scope)
    found = [one for one in waiting if state.scope.text in one.paused_by and (not one.is_over or one.callbacks_pending)]
    known = {one.batch_id for one in found}
    others = [name for name in held.batches if name not in known]
    found += [one for one in poimen.store.reads.statuses(others) if one is not None and not one.is_over]
    items, calls = poimen.pauses.running(**scope)
    return {
        "held_batches": {one.batch_id: one.pending + one.delayed + one.callbacks_pending for one in found},
        "held_calls": list(held.calls),
        "running_items": items,
        "running_calls": calls,
    }


def _cells(state: PauseState, details: dict[str, Any], now: datetime) -> dict[str, str]:
    batches, calls = details["held_batches"], details["held_calls"]
    held = (
        [_count(sum(batches.values()), "item") + f" of {_count(len(batches), 'batch', 'batches')}"] if batches else []
    )
    held += [_count(len(calls), "call")] if calls else []
    if state.held > _NEWEST:
        held.append("and more")
    return {
        "what": str(state.scope),
        "state": "paused" if state.paused else "resumed",
        "since": since(state.paused_at if state.paused else state.resumed_at, now),
        "by": one_line(state.actor if state.paused else state.resume_actor or "-"),
        "why": one_line(state.reason if state.paused else state.resume_reason or "") or "-",
        "held": ", ".join(held) or "-",
        "running": f"{details['running_items'] + details['running_calls']:,}",
        "ends": f"in {duration((state.expires_at - now).total_seconds())}"
        if state.paused and state.expires_at
        else "-",
        "epoch": f"{state.epoch}",
    }


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
