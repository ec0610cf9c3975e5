"""Boards and trackers with many processes at once, real workers among them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poimen_tasks import BoardTask, Poimen, TaskStatus, board
from poimen_tasks.health import Level, check_trackers
from tests.acceptance.crowd import Crowd
from tests.acceptance.trackers import MIXED, SAME
from tests.conftest import Workers

TASKS = 200


@pytest.fixture
def poimen(worker_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Poimen]:
    """An app in this process with the settings that the others get."""
    for name, value in worker_env.items():
        monkeypatch.setenv(name, value)
    made = Poimen("trackers")
    yield made
    made.close()


def entries(poimen: Poimen, *types: str) -> list[dict[str, Any]]:
    """What the entries of trackers say, in the order of the stream."""
    return [dict(event.metadata) for event in poimen.audit.query(type=list(types), limit=None)]


def is_sound(poimen: Poimen) -> bool:
    """Whether the doctor finds that each task is listed as it should be."""
    return [one.level for one in check_trackers(poimen.store, None)] == [Level.OK]


def test_validations_at_once(tmp_path: Path) -> None:
    """A dozen processes that validate the same board find the same, each time (promises B1 and I2)."""
    rows = [BoardTask(id=f"T{at}", scope=f"part {at}", status=list(TaskStatus)[at % 7]) for at in range(TASKS)]
    text = board.render(board.Board(title="Release", tasks=tuple(rows)))
    assert board.validate(text) == []
    file = tmp_path / "board.md"
    file.write_text(text.replace("| T7 |", "|  |").replace("| completed |", "| done |"), encoding="utf-8")
    alone = [str(problem) for problem in board.validate(file.read_text(encoding="utf-8"))]
    assert len(alone) == 1 + sum(row.status is TaskStatus.COMPLETED for row in rows)
    assert Crowd("validate", 12, str(file), env={}, directory=tmp_path).reports() == [[alone] * 5] * 12


def test_two_hundred_tasks(shop: ModuleType, lanes: Workers, module_env: dict[str, str], tmp_path: Path) -> None:
    """Workers bring 200 tasks to their end while other processes write other values of them: nothing is lost.

    All are completed, each value is there, and each change has its entry (promises B4 and I3).
    """
    assert lanes.all
    poimen, states = shop.poimen, shop.poimen.tracker("shared")
    states.clear()
    rows = [BoardTask(id=f"T{at}") for at in range(TASKS)]
    assert states.update_many(rows, actor="planner") == TASKS
    crowd = Crowd("label", 3, "x", str(TASKS), env=module_env, directory=tmp_path)
    crowd.go()
    work = poimen.starmap(shop.tracked, [("shared", row.id) for row in rows])
    batch = poimen.dispatch(work, workflow="tracked", actor="cron")
    assert crowd.reports() == [TASKS] * 3
    assert batch.wait(timeout=60).succeeded == TASKS
    found = list(states.all())
    assert [state.id for state in found] == [row.id for row in rows]
    for at, state in enumerate(found):
        assert (state.status, state.scope, state.branch, state.verification) == ("completed", *[f"x{at}"] * 3)
    assert {state.id for state in states.completed()} == {row.id for row in rows}
    stats = states.stats()
    assert (stats.total, stats.completed, stats.remaining, stats.progress) == (TASKS, TASKS, 0, 1.0)
    assert stats.changes == TASKS * 7
    told = entries(poimen, "tracker.updated")
    assert sorted(entry["version"] for entry in told) == [*range(1, TASKS * 7 + 1)]
    by_workers = [e for e in poimen.audit.query(workflow="tracked", limit=None) if e.event_type == "tracker.updated"]
    assert Counter(event.metadata["to"] for event in by_workers) == dict.fromkeys(
        ("in_progress", "in_review", "completed"), TASKS
    )
    assert {event.actor for event in by_workers} == {"cron"}
    assert board.heal("", states).board.tasks == tuple(
        BoardTask(id=state.id, scope=state.scope, status=state.status, branch=state.branch, verification=state.branch)
        for state in found
    )
    assert is_sound(poimen)


def test_retries_under_load(shop: ModuleType, lanes: Workers, tmp_path: Path) -> None:
    """Twenty tasks that fail twice run three times each, among a thousand others, and succeed (promise I5)."""
    assert lanes.all
    poimen = shop.poimen
    load = poimen.dispatch(poimen.map(shop.noop, range(1000)), workflow="load")
    batch = poimen.dispatch(
        poimen.map(shop.third_time, [str(tmp_path / f"{at}.txt") for at in range(20)]), workflow="retried"
    )
    report = batch.wait(timeout=60)
    assert report.succeeded == 20
    assert set(report.results.values()) == {3}
    assert [outcome.attempts for outcome in batch.outcomes()] == [3] * 20
    assert [len((tmp_path / f"{at}.txt").read_text().splitlines()) for at in range(20)] == [3] * 20
    assert poimen.audit.count(workflow="retried", type="item.retried") == 40
    assert load.wait(timeout=60).succeeded == 1000


def test_fifty_of_the_same(poimen: Poimen, worker_env: dict[str, str], tmp_path: Path) -> None:
    """Fifty processes that update one task make one task, and each of their changes counts (promises B4 and I10)."""
    reports = Crowd("same", 50, "T1", env=worker_env, directory=tmp_path).reports()
    states = poimen.tracker("shared")
    stats = states.stats()
    assert (stats.total, stats.changes) == (1, 50 * SAME)
    assert sorted(version for versions in reports for version in versions) == [*range(1, 50 * SAME + 1)]
    assert [state.id for state in states.all()] == ["T1"]
    told = entries(poimen, "tracker.updated")
    assert [entry["version"] for entry in told] == [*range(1, 50 * SAME + 1)]
    assert told[-1]["values"]["branch"] == states.get("T1").branch
    assert is_sound(poimen)


def test_readers_and_writers(poimen: Poimen, worker_env: dict[str, str], tmp_path: Path) -> None:
    """Twenty processes read and write five tasks as they like, and all that they saw is one history (promise I7).

    The model is a list of versions: each write takes the place of the version that its writer had read, each read is of
    a version that somebody wrote, and nobody sees a task go back.
    """
    tasks = [f"T{at}" for at in range(5)]
    reports = Crowd("mixed", 20, *tasks, env=worker_env, directory=tmp_path).reports()
    states = poimen.tracker("shared")
    writes = sorted((write for report in reports for write in report["writes"]), key=lambda write: write[2])
    conflicts = [pair for report in reports for pair in report["conflicts"]]
    assert len(writes) + len(conflicts) == 20 * MIXED
    assert conflicts
    assert all(found > expected for found, expected in conflicts)
    assert [version for _, _, version, *_ in writes] == [*range(1, len(writes) + 1)]
    model: dict[str, list[Any]] = {}
    history = {(task, 0): [task, 0] for task in tasks}
    for before, *after in writes:
        task, version = after[:2]
        assert before == (model[task][1] if task in model else 0)
        model[task] = history[task, version] = after
    for report in reports:
        last = dict.fromkeys(tasks, 0)
        for read in report["reads"]:
            task, version = read[:2]
            assert read == history[task, version]
            assert version >= last[task]
            last[task] = version
    assert {state.id: state.scope for state in states.all()} == {task: after[3] for task, after in model.items()}
    assert states.stats().by_status == {
        status: sum(after[2] == status for after in model.values()) for status in TaskStatus
    }
    assert [entry["version"] for entry in entries(poimen, "tracker.updated")] == [write[2] for write in writes]
    assert is_sound(poimen)


def test_killed_writers(poimen: Poimen, worker_env: dict[str, str], tmp_path: Path) -> None:
    """Writers that are killed at any moment leave a sound tracker, with an entry for each change (promise B4)."""
    crowd, states = Crowd("endless", 6, env=worker_env, directory=tmp_path), poimen.tracker("shared")
    crowd.go()
    chance, deadline = random.Random(3), time.monotonic() + 60
    for number in range(6):
        while states.stats().changes < 150 * (number + 1) + chance.randrange(40):
            assert time.monotonic() < deadline
        crowd.kill(number)
    crowd.end()
    told = entries(poimen, "tracker.updated", "tracker.removed")
    stats = states.stats()
    assert len(told) == stats.changes >= 900
    assert stats.total == len(list(states.all())) == sum(stats.by_status.values())
    assert {state.version for state in states.all()} <= {entry["version"] for entry in told}
    assert is_sound(poimen)
