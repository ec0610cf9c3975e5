"""`poimen cache`: what the result cache holds, what it saved, and calling it back."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from poimen_tasks.app import Poimen
from poimen_tasks.cache import MISSING, CacheEntry, CacheKey, CacheStats
from poimen_tasks.cli.cancel import default_actor
from poimen_tasks.cli.given import refuse_to_ask
from poimen_tasks.cli.loading import app_options, load
from poimen_tasks.cli.output import Failure, console, duration, facts, json_option, one_line, print_json, since
from poimen_tasks.cli.tables import table

__all__ = ["cache"]

_ORDERS: dict[str, Callable[[CacheEntry], float]] = {
    "hits": lambda entry: entry.hits,
    "bytes": lambda entry: entry.bytes,
    "saved": lambda entry: entry.seconds_saved,
}


@click.group()
def cache() -> None:
    """Look into the result cache, and call results back."""


@cache.command()
@app_options
@json_option
@click.option("--activity", metavar="NAME", help="Only results of this task.")
def stats(*, app: str | None, directory: Path | None, as_json: bool, activity: str | None) -> None:
    """Show how full the cache is, and how often it helped. By task too."""
    poimen = load(app, directory)
    names = [activity] if activity is not None else poimen.cache.activities()
    whole, each = poimen.cache.stats(activity), {name: poimen.cache.stats(name) for name in names}
    if as_json:
        print_json({**whole.to_dict(), "activities": {name: one.to_dict() for name, one in each.items()}})
        return
    screen = console()
    screen.print(facts(_facts(whole)))
    if each and activity is None:
        made = table(
            "activity", "entries", "bytes", "hits", "misses", "coalesced", "saved",
            right=("entries", "bytes", "hits", "misses", "coalesced", "saved"),
        )  # fmt: skip
        for name, one in each.items():
            numbers = (one.size, one.bytes, one.hits, one.misses, one.coalesced)
            made.add_row(name, *(f"{number:,}" for number in numbers), duration(one.seconds_saved))
        screen.print()
        screen.print(made)


def _facts(whole: CacheStats) -> Iterator[tuple[str, str]]:
    yield "entries", f"{whole.size:,} of {whole.max_entries:,}"
    yield "bytes", f"{whole.bytes:,} of {whole.max_bytes:,}"
    yield "full", f"{100 * whole.usage_ratio:.1f} %"
    yield "hits", f"{whole.hits:,}"
    yield "misses", f"{whole.misses:,}"
    yield "coalesced", f"{whole.coalesced:,}"
    yield "hit rate", f"{100 * whole.hit_rate:.1f} %"
    yield "saved", duration(whole.seconds_saved)
    for name in ("evictions", "expired", "invalidated", "refused", "stale", "fenced", "corrupt", "uncacheable"):
        if getattr(whole, name):
            yield name, f"{getattr(whole, name):,}"


@cache.command()
@app_options
@json_option
@click.argument("activity")
@click.option("--input-hash", default="", metavar="HASH", help="The hash of the input, as `cache top --json` has it.")
@click.option(
    "--task-id",
    default="",
    metavar="ID",
    help="The task id, of a task with per_task=True; the TASK of others is a label.",
)
@click.option("--model-id", default="", metavar="ID", help="The model id.")
def get(
    *, app: str | None, directory: Path | None, as_json: bool, activity: str, input_hash: str, task_id: str,
    model_id: str,
) -> None:  # fmt: skip
    """Show the value under a key of ACTIVITY. It counts as a hit or a miss."""
    key = CacheKey(activity, task_id, input_hash, model_id)
    value = load(app, directory).cache.get(key)
    if value is MISSING:
        raise Failure(
            f"nothing is cached under {_named(key)}; `poimen cache top --json` has the keys", kind="NotCached"
        )
    if as_json:
        print_json({"key": key, "value": value})
    else:
        click.echo(one_line(repr(value), most=2000))


def _named(key: CacheKey) -> str:
    """A key in the words of its options."""
    parts = (("--input-hash", key.input_hash), ("--task-id", key.task_id), ("--model-id", key.model_id))
    given = " ".join(f"{option} {value}" for option, value in parts if value)
    return f"{key.activity} {given}" if given else f"{key.activity} without --input-hash"


@cache.command()
@app_options
@json_option
@click.option("--activity", metavar="NAME", help="All results of this task.")
@click.option("--task-id", metavar="ID", help="All results computed for this task id.")
@click.option("--model-id", metavar="ID", help="All results of this model.")
@click.option("--tag", metavar="TAG", help="All results with this tag.")
@click.option("--reason", default="", help="Why; for the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
def invalidate(
    *, app: str | None, directory: Path | None, as_json: bool, activity: str | None, task_id: str | None,
    model_id: str | None, tag: str | None, reason: str, actor: str,
) -> None:  # fmt: skip
    """Call results back. Give exactly one of --activity, --task-id, --model-id and --tag."""
    given = [option for option in (activity, task_id, model_id, tag) if option is not None]
    if len(given) != 1:
        raise click.UsageError(
            f"give exactly one of --activity, --task-id, --model-id and --tag, not {len(given)}; "
            "`poimen cache clear` calls everything back"
        )
    count = load(app, directory).cache.invalidate(
        activity=activity, task_id=task_id, model_id=model_id, tag=tag, reason=reason, actor=actor
    )
    _called_back(count, as_json=as_json)


@cache.command()
@app_options
@json_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--reason", default="", help="Why; for the audit log.")
@click.option("--actor", default=default_actor, show_default="$USER", help="Who; for the audit log.")
def clear(*, app: str | None, directory: Path | None, as_json: bool, yes: bool, reason: str, actor: str) -> None:
    """Call every result back."""
    refuse_to_ask(as_json=as_json, yes=yes)
    poimen = load(app, directory)
    if not yes:
        size = poimen.cache.stats().size
        click.confirm(
            f"call back all {size:,} results of namespace {poimen.settings.namespace!r}?", abort=True, err=True
        )
    _called_back(poimen.cache.clear(reason=reason, actor=actor), as_json=as_json)


def _called_back(count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"invalidated": count})
    else:
        click.echo(f"called back {count:,} result{'' if count == 1 else 's'}")


@cache.command()
@app_options
@json_option
@click.option(
    "--by", "order", type=click.Choice(list(_ORDERS)), default="saved", show_default=True,
    help="Most hits, most bytes, or most seconds saved.",
)  # fmt: skip
@click.option("--activity", metavar="NAME", help="Only results of this task.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many entries.")
def top(
    *, app: str | None, directory: Path | None, as_json: bool, order: str, activity: str | None, limit: int
) -> None:
    """Show the entries hit most, the biggest, or what saved most."""
    poimen = load(app, directory)
    wanted = (entry for entry in _all(poimen) if activity in (None, entry.key.activity))
    found = heapq.nlargest(limit, wanted, key=_ORDERS[order])
    if as_json:
        print_json({"entries": found})
        return
    if not found:
        click.echo("nothing is cached")
        return
    now = datetime.fromtimestamp(poimen.store.reads.now(), UTC)
    right = ("hits", "bytes", "took", "saved", "age")
    made = table("activity", "input", "task", "model", *right, right=right, cut=("input",))
    for entry in found:
        key = entry.key
        made.add_row(
            key.activity, key.input_hash or "-", entry.task_id or "-", key.model_id or "-", f"{entry.hits:,}",
            f"{entry.bytes:,}", duration(entry.seconds), duration(entry.seconds_saved), since(entry.created_at, now),
        )  # fmt: skip
    console().print(made)


def _all(poimen: Poimen) -> Iterator[CacheEntry]:
    """Every entry, read page by page."""
    cursor: Any = None
    while True:
        page, cursor = poimen.cache.entries(limit=500, cursor=cursor)
        yield from page
        if cursor is None:
            return
