"""`poimen tracker`: the tracked states of a board's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from poimen_tasks.board import StateTracker, TaskStatus, TrackerStats
from poimen_tasks.cli.board_words import FILE, read_board, status_of, task_table
from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.given import refuse_to_ask
from poimen_tasks.cli.loading import app_options, load_without_tasks
from poimen_tasks.cli.output import Failure, console, facts, json_option, print_json, share, since
from poimen_tasks.cli.tables import table

__all__ = ["tracker"]

_ACTOR = click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
_REASON = click.option("--reason", default="", help="Why; for the audit log.")
_EXPECTED = click.option(
    "--expected", type=click.IntRange(min=0), metavar="VERSION", help="Only if the task still has this version."
)


@click.group()
def tracker() -> None:
    """Show and change the tracked states of tasks. For all commands the app is optional."""


@tracker.command("list")
@app_options
@json_option
def list_(*, app: str | None, directory: Path | None, as_json: bool) -> None:
    """List the trackers, and how far each is."""
    poimen = load_without_tasks(app, directory)
    found = {name: poimen.tracker(name).stats() for name in poimen.trackers()}
    if as_json:
        print_json({"trackers": {name: one.to_dict() for name, one in found.items()}})
        return
    if not found:
        click.echo("nothing is tracked")
        return
    now = datetime.fromtimestamp(poimen.store.reads.now(), UTC)
    made = table(
        "tracker", "completed", "remaining", "failed", "age", right=("completed", "remaining", "failed", "age")
    )
    for name, one in found.items():
        failed = f"{one.by_status[TaskStatus.FAILED]:,}"
        made.add_row(name, share(one.completed, one.total), f"{one.remaining:,}", failed, since(one.updated_at, now))
    console().print(made)


@tracker.command()
@app_options
@json_option
@click.argument("name")
@click.option("--status", type=status_of, metavar="S", help="Only tasks in this status.")
def show(*, app: str | None, directory: Path | None, as_json: bool, name: str, status: TaskStatus | None) -> None:
    """Show the tasks of tracker NAME."""
    found = load_without_tasks(app, directory).tracker(name)
    stats, tasks = found.stats(), list(found.all(status))
    if as_json:
        print_json({"tracker": name, "stats": stats.to_dict(), "tasks": tasks})
        return
    if not stats.total:
        click.echo(f"nothing is tracked in {name}; `poimen tracker list` has the trackers")
        return
    if tasks:
        console().print(task_table(tasks))
    else:
        click.echo(f"no tasks are {status}")
    console().print()
    console().print(facts(_facts(stats)))


def _facts(stats: TrackerStats) -> Iterator[tuple[str, str]]:
    yield "completed", share(stats.completed, stats.total)
    for status, count in stats.by_status.items():
        if count and status is not TaskStatus.COMPLETED:
            yield str(status), f"{count:,}"


@tracker.command()
@app_options
@json_option
@click.argument("name")
@click.argument("task")
@click.option("--status", type=status_of, metavar="S", help="How far it is.")
@click.option("--scope", metavar="TEXT", help="What is to be done.")
@click.option("--branch", metavar="TEXT", help="Where the work is.")
@click.option("--verification", metavar="TEXT", help="How it is shown to be done.")
@_EXPECTED
@_REASON
@_ACTOR
def update(
    *, app: str | None, directory: Path | None, as_json: bool, name: str, task: str, status: TaskStatus | None,
    scope: str | None, branch: str | None, verification: str | None, expected: int | None, reason: str, actor: str,
) -> None:  # fmt: skip
    """Set what is given of TASK in tracker NAME; what is not stays. A task that is not there begins."""
    state = _tracker(app, directory, name).update(
        task, status, scope=scope, branch=branch, verification=verification, expected=expected, reason=reason,
        actor=actor,
    )  # fmt: skip
    if as_json:
        print_json(state)
    else:
        click.echo(f"task {state.id} of {name} is {state.status} (version {state.version})")


@tracker.command()
@app_options
@json_option
@click.argument("name")
@click.argument("file", metavar="FILE|-", type=FILE)
@_REASON
@_ACTOR
def load(
    *, app: str | None, directory: Path | None, as_json: bool, name: str, file: Path, reason: str, actor: str
) -> None:
    """Take a board's tasks into tracker NAME. It is read from FILE or stdin; tasks that it lacks stay as they are."""
    tasks = read_board(file).tasks
    changed = _tracker(app, directory, name).update_many(tasks, reason=reason, actor=actor)
    if as_json:
        print_json({"tasks": len(tasks), "changed": changed})
    else:
        click.echo(f"{len(tasks):,} task{'' if len(tasks) == 1 else 's'} in {name}, {changed:,} changed")


@tracker.command()
@app_options
@json_option
@click.argument("name")
@click.argument("task")
@_EXPECTED
@_REASON
@_ACTOR
def remove(
    *, app: str | None, directory: Path | None, as_json: bool, name: str, task: str, expected: int | None, reason: str,
    actor: str,
) -> None:  # fmt: skip
    """Track TASK in tracker NAME no more."""
    if not _tracker(app, directory, name).remove(task, expected=expected, reason=reason, actor=actor):
        raise Failure(f"tracker {name!r} has no task {task!r:.60}", kind="NotTracked")
    if as_json:
        print_json({"removed": task})
    else:
        click.echo(f"removed task {task} from {name}")


@tracker.command()
@app_options
@json_option
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_REASON
@_ACTOR
def clear(
    *, app: str | None, directory: Path | None, as_json: bool, name: str, yes: bool, reason: str, actor: str
) -> None:
    """Forget tracker NAME with all its tasks."""
    refuse_to_ask(as_json=as_json, yes=yes)
    found = _tracker(app, directory, name)
    if not yes:
        click.confirm(f"forget all {found.stats().total:,} tasks of tracker {name!r}?", abort=True, err=True)
    count = found.clear(reason=reason, actor=actor)
    if as_json:
        print_json({"removed": count})
    else:
        click.echo(f"cleared {name}: {count:,} task{'' if count == 1 else 's'}")


def _tracker(app: str | None, directory: Path | None, name: str) -> StateTracker:
    return load_without_tasks(app, directory).tracker(name)
