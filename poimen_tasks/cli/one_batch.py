"""One batch for a person: its numbers and times, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from rich.table import Table
from rich.text import Text

from poimen_tasks.cli.output import console, duration, facts, one_line, print_json, state_text, when, with_app
from poimen_tasks.dispatch import Batch
from poimen_tasks.model import BatchState, BatchStatus, ErrorInfo
from poimen_tasks.pause import Scope

__all__ = ["advice_on", "failures_in_words", "show_batch"]

#: A finished batch of at most this many items also gets its speedup and percentiles: they take reading every outcome.
MOST_FOR_STATS = 100_000
_SHOWN = 5
_NUMBERS = (
    "total",
    "pending",
    "delayed",
    "waiting",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "skipped",
    "cached",
)
_PERCENTILES = (("item, median", "p50_duration"), ("item, p95", "p95_duration"), ("queue wait, p95", "p95_queue_wait"))


def show_batch(batch: Batch, *, as_json: bool) -> None:
    """Print it."""
    found = batch.status()
    stats = batch.wait().stats() if found.is_over and found.total <= MOST_FOR_STATS else None
    if as_json:
        errors = [
            {"item_id": name, "type": error.type, "message": error.message} for name, error in _errors(batch, found)
        ]
        shown = {"times": _times(found), "stats": stats, "first_errors": errors, "advice": advice_on(found)}
        print_json({**found.to_dict(), **shown})
        return
    screen = console()
    limit = "the whole fleet" if found.concurrency is None else found.concurrency
    screen.print(Text.assemble("batch ", (found.batch_id, "bold"), ": ", state_text(found.state)))
    screen.print(f"workflow {found.workflow}, stage {found.stage}, limit {limit}\n")
    both = Table.grid(padding=(0, 6, 0, 0))
    both.add_row(facts(_numbers(found)), facts(_moments(found, stats)))
    screen.print(both)
    if lines := failures_in_words(batch, found):
        screen.print("\nfirst errors")
        for line in lines:
            screen.print(Text(line))
    for line in advice_on(found):
        screen.print(Text(f"\n{line}", style="yellow"))


def _numbers(found: BatchStatus) -> Iterator[tuple[str, str]]:
    for name in _NUMBERS:
        number = getattr(found, name)
        if number or name in ("total", "succeeded"):
            yield name, f"{number:,}"
    if found.callbacks_pending:
        yield "callbacks pending", f"{found.callbacks_pending:,}"


def _times(found: BatchStatus) -> dict[str, float | None]:
    """Seconds: until the first start, since then, and items a second."""
    end = found.finished_at or datetime.now(UTC)
    waited = (found.started_at - found.created_at).total_seconds() if found.started_at and found.created_at else None
    ran = max(0.0, (end - found.started_at).total_seconds()) if found.started_at else None
    return {"waited": waited, "ran": ran, "rate": found.finished / ran if ran else None}


def _moments(found: BatchStatus, stats: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    times = _times(found)
    for name, moment in (("created", found.created_at), ("started", found.started_at), ("finished", found.finished_at)):
        yield name, when(moment)
    yield "until first start", duration(times["waited"])
    yield "run time", duration(times["ran"])
    if times["rate"]:
        yield "items a second", f"{times['rate']:,.3g}" if times["rate"] < 100 else f"{times['rate']:,.0f}"
    for name in ("speedup", "efficiency"):
        if stats and stats[name]:
            yield name, f"{stats[name]:.2f}"
    for name, key in _PERCENTILES:
        if stats and key in stats:
            yield name, duration(stats[key])


def _errors(batch: Batch, found: BatchStatus) -> list[tuple[str, ErrorInfo]]:
    """The first failed items of a batch that is over, with their newest errors."""
    if not (found.is_over and found.failed):
        return []
    return list(islice(batch.wait().errors.items(), _SHOWN))


def failures_in_words(batch: Batch, found: BatchStatus) -> list[str]:
    """A line for each of the first failed items, and one for the rest."""
    shown = _errors(batch, found)
    lines = [f"  item {one_line(name)}: {one_line(str(error))}" for name, error in shown]
    if lines and found.failed > len(shown):
        rest = with_app(f"`poimen watch -A APP {batch.id} --json` has them all")
        lines.append(f"  and {found.failed - len(shown):,} more: {rest}")
    return lines


def advice_on(found: BatchStatus) -> list[str]:
    """What a person may want to do about it."""
    lines = [
        f"no worker serves queue {queue}: start one with `poimen worker -A APP -Q {queue}`"
        for queue in found.unserved_queues
    ]
    if found.state is BatchState.STALLED:
        lines.append(
            f"the producer of {found.batch_id} is gone: dispatch it again with its id to go on where it stopped "
            f"(--resume of `poimen run`), or `poimen cancel -A APP {found.batch_id}`"
        )
    if found.state is BatchState.PAUSED or (found.paused_by and found.callbacks_pending):
        lines += [f"{found.batch_id} is paused by {_scope(scope)}" for scope in found.paused_by]
    return [with_app(line) for line in lines]


def _scope(text: str) -> str:
    """A scope of a pause in words, and how to let it go on."""
    scope = Scope.parse(text)
    option = f"--{scope.kind} {scope.id}".rstrip()
    return f"{scope}: `poimen pauses -A APP` says why, `poimen resume -A APP {option}` lets it go on"
