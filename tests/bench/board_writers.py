"""Processes that update the states of tasks at the same time, for `board.py`.

`python -m tests.bench.board_writers ours|bare <processes> <updates each>` prints the updates a second of all together.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import TracebackType
from typing import Any, Self

import msgpack
import redis

from poimen_tasks import Poimen, TaskStatus

_TASKS = 100
_STATUSES = list(TaskStatus)


class Ours:
    """Updates through a tracker."""

    def __init__(self, url: str) -> None:
        self._poimen = Poimen("bench-board", redis_url=url, namespace="board")
        self._states = self._poimen.tracker("b")

    def update(self, at: int) -> None:
        """One update that changes something."""
        self._states.update(f"T{at % _TASKS}", _STATUSES[at // _TASKS % 7], scope=f"{os.getpid()} {at}", actor="bench")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._poimen.close()


class Bare:
    """The same writes without a look at what is there: state, indexes, counters, audit entry, memory of the call."""

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.Redis.from_url(url, protocol=2)

    def update(self, at: int) -> None:
        """One transaction."""
        task, rank = f"T{at % _TASKS}", at // _TASKS % 7
        state = {"s": _STATUSES[rank], "k": rank, "scope": f"{os.getpid()} {at}", "a": "bench", "u": time.time()}
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hset("bare:tasks", task, msgpack.packb(state))
        pipeline.zadd("bare:order", {task: at % _TASKS})
        pipeline.zadd("bare:states", {task: rank * 2**40})
        pipeline.hset("bare:meta", "updated", time.time())
        pipeline.hincrby("bare:meta", "changes", 1)
        pipeline.xadd("bare:audit", {"t": "tracker.updated", "h": msgpack.packb(state), "d": ""})
        pipeline.set(f"bare:owner:{os.getpid()}", at, ex=600)
        pipeline.execute()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.close()


def main(side: str, processes: int, count: int) -> float:
    """Fork, let all begin at one moment, and take the time from then until the last one is done."""
    begin, url = time.time() + 1.0, os.environ["BENCH_BOARD_URL"]
    children = []
    for _ in range(processes):
        if not (pid := os.fork()):
            with (Ours if side == "ours" else Bare)(url) as writer:
                writer.update(0)
                time.sleep(max(0.0, begin - time.time()))
                for at in range(count):
                    writer.update(at)
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(codes):
        raise SystemExit(f"writers ended with {codes}")
    return processes * count / (time.time() - begin)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
