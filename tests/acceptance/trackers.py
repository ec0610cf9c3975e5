"""What processes do that work on one tracker, or one board, at the same time; `crowd.py` starts them.

It imports little, so that fifty of them begin soon.

`python -m tests.acceptance.trackers <what> <number> <file> <words…>` waits until the file is there, does what it is
told, and prints what it did as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from poimen_tasks import Poimen, TaskState, TaskStatus, TrackerConflict, board

#: How often each process of a kind does its work.
SAME, MIXED, ENDLESS = 5, 30, 10_000


def _tracker() -> Any:
    return Poimen("trackers").tracker("shared")


def same(number: int, task: str) -> list[int]:
    """Update one task again and again; the versions that were seen."""
    states = _tracker()
    return [states.update(task, branch=f"b{number}-{at}", actor=f"p{number}").version for at in range(SAME)]


def seen(task: str, state: TaskState | None) -> list[Any]:
    """A state for the report: task, version, and the values that the tests change."""
    return [task, 0] if state is None else [task, state.version, str(state.status), state.scope]


def mixed(number: int, *tasks: str) -> dict[str, Any]:
    """Read and write by turns: each write is one of a task that was read, and done only if nobody was faster."""
    states, chance = _tracker(), random.Random(number)
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
    states = _tracker()
    for at in range(int(count)):
        what = {("scope", "branch", "verification")[number % 3]: f"{prefix}{at}"}
        states.update(f"T{at}", actor=f"p{number}", **what)
    return int(count)


def endless(number: int) -> None:
    """Write until it is killed."""
    states = _tracker()
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


def main(what: str, number: str, go: str, words: Sequence[str]) -> None:
    """Wait for the others, and work."""
    Path(f"{go}.ready-{number}").touch()
    while not Path(go).exists():
        time.sleep(0.05)
    sys.stdout.write(json.dumps(_KINDS[what](int(number), *words)))


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
