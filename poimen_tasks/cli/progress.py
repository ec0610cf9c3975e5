"""How far a batch is, for a person: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from poimen_tasks.cli.one_batch import advice_on
from poimen_tasks.cli.output import console, duration, print_json, share
from poimen_tasks.model import BatchState, BatchStatus

__all__ = ["Reporter", "counts", "ending", "progress_bar"]

_EVERY = 0.25
_FIRST_LINE, _EVERY_LINE = 1.0, 5.0


def progress_bar(screen: Console) -> Progress:
    """A bar for one batch."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TimeRemainingColumn(),
        console=screen, expand=True, speed_estimate_period=60,
    )  # fmt: skip


def counts(found: BatchStatus) -> Text:
    """State and counters, and what to do about it."""
    names = ("running", "pending", "delayed", "waiting", "succeeded", "failed", "cancelled", "skipped")
    words = [f"{getattr(found, name):,} {name}" for name in names if getattr(found, name) or name == "running"]
    text = Text(f"{found.state}: " + ", ".join(words))
    for line in advice_on(found):
        text.append(f"\n{line}", style="yellow")
    return text


def ending(found: BatchStatus) -> Text:
    """How it ended."""
    color = "green" if found.state is BatchState.COMPLETED else "red"
    ran = (found.finished_at - found.started_at).total_seconds() if found.finished_at and found.started_at else None
    text = Text.assemble((str(found.state), color), f": {found.succeeded:,} of {found.total:,} items succeeded")
    for name in ("failed", "cancelled", "skipped"):
        if getattr(found, name):
            text.append(f", {getattr(found, name):,} {name}")
    return text.append(f", in {duration(ran)}" if ran is not None else "")


class Reporter:
    """Tells on stderr how a run goes: a bar where nothing else is printed on the terminal, else lines.

    Args:
        batch_id: the batch.
        as_json: objects with an `event` instead, a line each.
        live: whether a bar may be drawn.
    """

    def __init__(self, batch_id: str, *, as_json: bool, live: bool) -> None:
        self._batch_id = batch_id
        self._as_json = as_json
        self._screen = console(err=True)
        self._bar = progress_bar(self._screen)
        self._task = self._bar.add_task(batch_id, total=None)
        drawn = live and not as_json and self._screen.is_terminal
        self._live = (
            Live(self._bar, console=self._screen, refresh_per_second=8, redirect_stdout=False) if drawn else None
        )
        self._shown = ""
        self._next = time.monotonic() + (0.0 if drawn else _FIRST_LINE)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Draw no more; what is said from here on stands below the bar."""
        if self._live:
            self._live.stop()

    @property
    def due(self) -> bool:
        """Whether it is time to tell how far the batch is."""
        return time.monotonic() >= self._next

    def say(self, text: str, *, event: str = "message", **more: Any) -> None:
        """One line."""
        if self._as_json:
            print_json({"event": event, "batch_id": self._batch_id, "message": text, **more}, err=True)
        else:
            self._screen.print(Text(text), soft_wrap=True)

    def update(self, found: BatchStatus) -> None:
        """Tell how far it is."""
        self._next = time.monotonic() + (_EVERY if self._live else _EVERY_LINE)
        text = counts(found)
        if self._live:
            self._bar.update(self._task, total=found.total, completed=found.finished)
            self._live.update(Group(self._bar, text))
        elif text.plain != self._shown:
            self._shown = text.plain
            line = f"{share(found.finished, found.total)}  {text.plain}"
            self.say(line, event="progress", status=found)

    def end(self, found: BatchStatus) -> None:
        """Tell how it ended."""
        if self._live:
            self._bar.update(self._task, total=found.total, completed=found.finished)
            self._live.update(self._bar)
        self.stop()
        text = ending(found)
        if self._as_json:
            self.say(text.plain, event="ended", status=found)
        else:
            self._screen.print(text)
