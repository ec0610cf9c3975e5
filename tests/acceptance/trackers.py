"""Processes that work on one tracker, or one board, at the same time; `crowd.py` starts them.

`python -m tests.acceptance.trackers <what> <count> <directory> <words…>` forks itself so many times. Each child notes
its process id in `<directory>/ready-<number>`, waits for the file `go`, does what it is told, and leaves what it did in
`report-<number>`, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from poimen_tasks import Poimen, TaskState, TaskStatus, TrackerConflict, board

#: How often each process of a kind does its work.
SAME, MIXED, ENDLESS = 5, 30, 10_000


#: Made before the forks; each child opens connections of its own.
states = Poimen("trackers").tracker("shared")


def same(number: int, task: str) -> list[int]:
    """Update one task again and again; the versions that were seen."""
    return [states.update(task, branch=f"b{number}-{at}", actor=f"p{number}").version for at in range(SAME)]


def seen(task: str, state: TaskState | None) -> list[Any]:
    """A state for the report: task, version, and the values that the tests change."""
    return [task, 0] if state is None else [task, state.version, str(state.status), state.scope]


def mixed(number: int, *tasks: str) -> dict[str, Any]:
    """Read and write by turns: each write is one of a task that was read, and done only if nobody was faster."""
    chance = random.Random(number)
    reads, writes, conflicts = [], [], []
    for at in range(MIXED):
        task = chance.choice(tasks)
        state = states.get(task)
        reads.append(seen(task, state))
        try:
            made = states.update(
                task, chance.choice(list(TaskStatus)), scope=f"{number}-{at}", expected=state.version if state else 0
            )
            writes.append([reads[-1][1], *seen(task, made)])
        except TrackerConflict as error:
            conflicts.append([error.version, reads[-1][1]])
        if at % 10 == 0:
            reads += [seen(one.id, one) for one in states.all()]
    return {"reads": reads, "writes": writes, "conflicts": conflicts}


def label(number: int, prefix: str, count: str) -> int:
    """Say of many tasks where the work is and how it is shown, each process a value of its own; how many changed."""
    for at in range(int(count)):
        what = {("scope", "branch", "verification")[number % 3]: f"{prefix}{at}"}
        states.update(f"T{at}", actor=f"p{number}", **what)
    return int(count)


def endless(number: int) -> None:
    """Write until it is killed."""
    for at in range(ENDLESS):
        states.update(f"T{(at * 7 + number) % 50}", list(TaskStatus)[at % 7], scope=f"{number}-{at}")
        if at % 5 == 0:
            states.remove(f"T{(at * 3 + number) % 50}")


def validate(_number: int, file: str) -> list[list[str]]:
    """Validate a board several times; what was found each time."""
    text = Path(file).read_text(encoding="utf-8")
    return [[str(problem) for problem in board.validate(text)] for _ in range(5)]


_KINDS: dict[str, Callable[..., Any]] = {
    "endless": endless, "label": label, "mixed": mixed, "same": same, "validate": validate,
}  # fmt: skip


def child(what: str, number: int, directory: Path, words: Sequence[str]) -> None:
    """Wait for the others, and work."""
    (directory / f"ready-{number}").write_text(str(os.getpid()))
    deadline = time.monotonic() + 60
    while not (directory / "go").exists():
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
    report = directory / f"report-{number}"
    aside = report.with_suffix(".tmp")
    aside.write_text(json.dumps(_KINDS[what](number, *words)))
    aside.replace(report)


def main(what: str, count: int, directory: Path, words: Sequence[str]) -> None:
    """Fork, and wait for all."""
    for number in range(count):
        if not os.fork():
            code = 1
            try:
                child(what, number, directory, words)
                code = 0
            finally:
                os._exit(code)
    for _ in range(count):
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
