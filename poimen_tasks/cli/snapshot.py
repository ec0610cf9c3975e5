"""`poimen snapshot`: workflows on disk: take one, look at them, bring one back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.given import refuse_to_ask
from poimen_tasks.cli.loading import app_options, load, load_without_tasks
from poimen_tasks.cli.output import Failure, console, facts, json_option, one_line, print_json, since, when
from poimen_tasks.cli.tables import table
from poimen_tasks.model import moment
from poimen_tasks.pause import PauseState, Scope, Snapshot

__all__ = ["snapshot"]

_FIRST_LINE, _EVERY_LINE = 1.0, 2.0
_OUTCOMES = ("succeeded", "failed", "cancelled", "skipped")
#: Moments of a batch, which a snapshot has as seconds since 1970.
_TIMES = ("created_at", "started_at", "finished_at", "taken_at")
_LEFT = ("pending", "delayed", "waiting", "running")


@click.group()
def snapshot() -> None:
    """Keep workflows on disk, and bring them back. Also into another Redis."""


class _Told:
    """How far it is, for a person who has waited for a second."""

    def __init__(self, verb: str, *, quiet: bool) -> None:
        self._verb = verb
        self._quiet = quiet
        self._items = 0
        self._next = time.monotonic() + _FIRST_LINE

    def __call__(self, items: int) -> None:
        """So many items more."""
        self._items += items
        if not self._quiet and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_LINE
            click.echo(f"{self._verb} {self._items:,} items so far", file=sys.stderr)


@snapshot.command()
@app_options
@json_option
@click.argument("workflow")
@click.option("--reason", default="", help="Why; for the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
def create(*, app: str | None, directory: Path | None, as_json: bool, workflow: str, reason: str, actor: str) -> None:
    """Take WORKFLOW as it is now; it may run on meanwhile."""
    poimen = load(app, directory)
    if not poimen.batches(workflow=workflow):
        raise Failure(f"workflow {workflow!r} has no batch in this store, so there is nothing to take", kind="NoBatch")
    made = poimen.snapshots.create(workflow, actor=actor, reason=reason, progress=_Told("read", quiet=as_json))
    if as_json:
        print_json(_as_dict(made))
        return
    click.echo(f"took {_in_words(made)}")


@snapshot.command("list")
@app_options
@json_option
@click.option("--all", "generations", is_flag=True, help="Older ones of each workflow too.")
def list_(*, app: str | None, directory: Path | None, as_json: bool, generations: bool) -> None:
    """List snapshots, the newest first. They are those of the data directory; the app is optional."""
    poimen = load_without_tasks(app, directory)
    found = poimen.snapshots.all(generations=generations)
    if as_json:
        print_json({"snapshots": [_as_dict(one) for one in found], "stats": poimen.snapshots.stats()})
        return
    if not found:
        click.echo(f"no snapshots in {poimen.snapshots.directory}")
        return
    now = datetime.now(UTC)
    right = ("batches", "items", "pending", "bytes", "age")
    made = table("workflow", "gen", "stage", *right, "id", right=right)
    for one in found:
        left = sum(batch.get("total", 0) - _finished(batch) for batch in one.batches)
        numbers = (len(one.batches), one.items, left, one.size)
        made.add_row(
            one.workflow, str(one.generation), one.stage or "-", *(f"{number:,}" for number in numbers),
            since(one.timestamp, now), one.id,
        )  # fmt: skip
    console().print(made)


@snapshot.command()
@app_options
@json_option
@click.argument("workflow")
@click.option("--generation", type=click.IntRange(0, 999), default=0, show_default=True, help="1: the one before.")
def show(*, app: str | None, directory: Path | None, as_json: bool, workflow: str, generation: int) -> None:
    """Show the newest snapshot of WORKFLOW; its checksum is looked at. The app is optional."""
    poimen = load_without_tasks(app, directory)
    found = poimen.snapshots.latest(workflow, generation=generation)
    if as_json:
        print_json(_as_dict(found))
    else:
        console().print(facts(_facts(found), numbers=False))


def _facts(found: Snapshot) -> Iterator[tuple[str, str]]:
    yield "workflow", found.workflow
    yield "snapshot", f"{found.id} ({found.size:,} bytes, version {found.version})"
    yield "taken", f"{when(found.timestamp)} by {found.actor}"
    for name in ("reason", "stage", "current_task_id", "current_activity_id", "error"):
        if getattr(found, name):
            yield name.replace("_", " "), one_line(str(getattr(found, name)))
    if found.batches:
        yield "items", _totals(found.batches)
    # Of one stage, or what was given when it was taken: beside several batches it has to say so.
    of = f" of stage {found.stage}" if len(found.batches) > 1 and found.stage else ""
    for kind in ("completed", "pending", "failed"):
        ids = getattr(found, f"{kind}_tasks")
        more = ", ..." if len(ids) > 5 else ""
        yield kind, f"{getattr(found, kind):,}{of}" + (f" ({', '.join(map(one_line, ids[:5]))}{more})" if ids else "")
    for batch in found.batches:
        yield (
            "batch",
            f"{batch['batch_id']} {batch['stage']}: {_finished(batch):,} of {batch['total']:,}, {batch['state']}",
        )
    for scope, state in found.pauses.items():
        since = when(moment(float(state["paused_at"]))) if state.get("paused_at") else "?"
        why = f": {state['reason']}" if state.get("reason") else ""
        yield "paused", one_line(f"{Scope.parse(scope)} since {since} by {state.get('actor', '?')}{why}")
    tried = found.resume_attempts
    if tried:
        yield "resumed", when(found.resumed_at) if found.resumed_at else f"failed, {tried} tries"


def _totals(batches: Sequence[Mapping[str, Any]]) -> str:
    """The items of all batches, by what became of them."""
    counts = {name: sum(batch.get(name, 0) for batch in batches) for name in (*_OUTCOMES, *_LEFT)}
    left = sum(counts[name] for name in _LEFT)
    ends = {"completed": counts["succeeded"], "pending": left, "failed": counts["failed"]}
    rare = {name: counts[name] for name in ("cancelled", "skipped") if counts[name]}
    words = ", ".join(f"{number:,} {name}" for name, number in {**ends, **rare}.items())
    return f"{sum(batch.get('total', 0) for batch in batches):,}: {words}"


def _as_dict(found: Snapshot) -> dict[str, Any]:
    """A snapshot for programs: its pauses as `poimen pauses --json` has them, its moments as texts."""
    stored = ((Scope.parse(scope), state) for scope, state in found.pauses.items())
    pauses = [
        PauseState.read(scope, {name: str(value).encode() for name, value in state.items()}) for scope, state in stored
    ]
    batches = [{**batch, **{name: _iso(batch.get(name)) for name in _TIMES}} for batch in found.batches]
    return {**found.to_dict(), "pauses": [one.to_dict() for one in pauses], "batches": batches}


def _iso(seconds: float | None) -> str | None:
    at = moment(seconds)
    return at.isoformat() if at else None


def _finished(batch: object) -> int:
    counters = dict(batch)  # type: ignore[call-overload]
    return sum(counters.get(name, 0) for name in _OUTCOMES)


@snapshot.command()
@app_options
@json_option
@click.argument("workflow")
@click.option("--paused", is_flag=True, help="Keep it paused, if it was; else it goes on at once.")
@click.option("--generation", type=click.IntRange(0, 999), default=0, show_default=True, help="1: the one before.")
@click.option("--reason", default="", help="Why; for the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
def restore(
    *, app: str | None, directory: Path | None, as_json: bool, workflow: str, paused: bool, generation: int,
    reason: str, actor: str,
) -> None:  # fmt: skip
    """Bring WORKFLOW back into a Redis that does not know its batches.

    Items with an outcome keep it, the others run. A restore that broke off goes on when it is asked for again.
    """
    poimen = load(app, directory)
    progress = _Told("restored", quiet=as_json)
    found = poimen.snapshots.restore(
        workflow, resume=not paused, generation=generation, actor=actor, reason=reason, progress=progress
    )
    if as_json:
        print_json(_as_dict(found))
    else:
        what = "is paused" if poimen.pauses.is_paused(workflow) else "goes on"
        click.echo(f"restored {_in_words(found)}; it {what}")


@snapshot.command()
@app_options
@json_option
@click.argument("workflow")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(*, app: str | None, directory: Path | None, as_json: bool, workflow: str, yes: bool) -> None:
    """Remove every snapshot of WORKFLOW. The workflow itself is not touched. The app is optional."""
    refuse_to_ask(as_json=as_json, yes=yes)
    snapshots = load_without_tasks(app, directory).snapshots
    if not yes:
        where = snapshots.directory
        click.confirm(f"remove every snapshot of workflow {workflow!r} from {where}?", abort=True, err=True)
    count = snapshots.delete(workflow)
    if not count:
        raise Failure(f"workflow {workflow!r} has no snapshot", kind="SnapshotNotFound")
    if as_json:
        print_json({"deleted": count})
    else:
        click.echo(f"removed {count} snapshot{'' if count == 1 else 's'} of {workflow}")


def _in_words(found: Snapshot) -> str:
    batches = f"{len(found.batches):,} batch{'' if len(found.batches) == 1 else 'es'}"
    return f"workflow {found.workflow}: {batches}, {found.items:,} items (snapshot {found.id}, {found.size:,} bytes)"
