"""Paused plain calls while processes die, results expire and brokers lose patience."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import chord, group
from celery.exceptions import ChordError

from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.conftest import imported
from tests.acceptance.parking import APP, lines, parked, resumed_after, settled, waits
from tests.conftest import Workers, eventually


@pytest.fixture
def worker_env(worker_env: dict[str, str]) -> dict[str, str]:
    """Short times, because these tests wait for them to end."""
    return {
        **worker_env,
        "POIMEN_LEASE": "1.5",
        "POIMEN_TICKET_OVERDUE": "1.0",
        "HOLDING_RESULT_EXPIRES": "2",
        "HOLDING_VISIBILITY": "2",
    }


@pytest.fixture
def holding(worker_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app with this test's settings."""
    with imported(worker_env, APP) as module:
        yield module


def given_up(app: ModuleType) -> bool:
    """What a dead worker had in its hands is due to be given to others, who look for that when they begin."""
    redis = app.poimen.store.client.redis
    taken = redis.zrange("unacked_index", 0, -1, withscores=True)
    return all(redis.time()[0] > when + 3 for _, when in taken)


@pytest.mark.parametrize("name", ["tell", "tell_late"])
def test_killed_between_parking_and_acknowledging(
    holding: ModuleType, workers: Workers, notes: Path, tmp_path: Path, name: str
) -> None:
    """A worker that dies when it has parked a call leaves one record: the call runs once (promise P14)."""
    trap = tmp_path / "trap"
    trap.touch()
    first = workers.start(APP, concurrency=1, env={"HOLDING_DIE_PARKED": str(trap)})
    with resumed_after(holding, everything=True):
        called = getattr(holding, name).delay("x", str(notes))
        eventually(lambda: not first.alive)
        assert parked(holding) == [called.id]
        eventually(lambda: given_up(holding))
        second = workers.start(APP, concurrency=1)
        if name == "tell_late":  # its message comes again
            eventually(lambda: second.text().count(f"[{called.id}] paused") == 1, timeout=30)
        assert parked(holding) == [called.id]
    assert called.get(timeout=20) == "x"
    settled(holding)
    assert lines(notes) == ["x"]


def test_killed_after_it_was_parked_and_before_the_message_is_gone(
    holding: ModuleType, workers: Workers, notes: Path, tmp_path: Path
) -> None:
    """Resumed before its first message is delivered again, a call runs once: the late message is refused (P14)."""
    trap = tmp_path / "trap"
    trap.touch()
    first = workers.start(APP, concurrency=1, env={"HOLDING_DIE_PARKED": str(trap)})
    with resumed_after(holding, everything=True):
        called = holding.tell_late.delay("x", str(notes))
        eventually(lambda: not first.alive)
    eventually(lambda: given_up(holding))
    second = workers.start(APP, concurrency=1)
    assert called.get(timeout=20) == "x"
    eventually(lambda: "a copy of this message" in second.text(), timeout=30)
    settled(holding)
    assert lines(notes) == ["x"]
    assert called.state == "SUCCESS"


def test_killed_when_it_has_resumed(holding: ModuleType, workers: Workers, notes: Path) -> None:
    """Whoever resumes may die before he has published anything: the keeper does, each call once (promise P14)."""
    workers.start(APP, concurrency=2)
    holding.poimen.pause(everything=True)
    for number in range(150):
        holding.tell_only.delay(number, str(notes))
    eventually(lambda: len(parked(holding)) == 150, timeout=60)
    holding.poimen.store.pauses.resume_scope("*", reason="", actor="dies")
    eventually(lambda: len(lines(notes)) >= 150, timeout=60)
    settled(holding)
    assert sorted(map(int, lines(notes))) == list(range(150))


def test_killed_between_publishing_and_beginning(holding: ModuleType, workers: Workers, notes: Path) -> None:
    """Messages that a dying worker took with it are published again, and copies of others are refused (P14)."""
    first = workers.start(APP, concurrency=2)
    holding.poimen.pause(everything=True)
    for number in range(40):
        holding.tell_only.delay(number, str(notes))
    eventually(lambda: len(parked(holding)) == 40, timeout=60)
    first.destroy()
    holding.poimen.resume(everything=True)
    released = holding.poimen.store.client.redis
    released.ltrim("celery", 10, -1)  # ten messages are lost
    for message in released.lrange("celery", 0, 9):  # and ten are there twice
        released.rpush("celery", message)
    workers.start(APP, concurrency=2)
    eventually(lambda: len(lines(notes)) >= 40, timeout=60)
    settled(holding)
    assert sorted(map(int, lines(notes))) == list(range(40))


def test_revoked_while_it_was_parked(holding: ModuleType, workers: Workers, notes: Path) -> None:
    """A revoked parked call does not run, though no worker is left that was told (promise P14, fault E06)."""
    first = workers.start(APP, concurrency=1)
    with resumed_after(holding, everything=True):
        called = holding.tell.delay("x", str(notes))
        chorded = chord([holding.add.s(1, 1), holding.add.s(2, 2)], holding.total.s()).apply_async()
        eventually(lambda: len(parked(holding)) == 3)
        for one in (called, chorded.parent.results[0]):
            one.revoke()
        revoked, redis = holding.poimen.store.keys.build("paused_revoked"), holding.poimen.store.client.redis
        eventually(lambda: redis.scard(revoked) == 2)
        # Started before the other ends, so that somebody keeps the chord; it is told nothing.
        workers.start(APP, concurrency=1, args=("--without-mingle",))
        first.destroy()
    eventually(lambda: called.state == "REVOKED")
    eventually(lambda: chorded.state == "FAILURE")
    assert isinstance(chorded.result, ChordError)
    settled(holding)
    assert lines(notes) == []


def test_killed_while_it_runs_again(holding: ModuleType, workers: Workers, notes: Path) -> None:
    """A call that came back and whose process dies is retried as ever: the retry is no copy of it (promise P14)."""
    gate = notes.with_name("gate")
    worker = workers.start(APP, concurrency=2)
    with resumed_after(holding, everything=True):
        called = holding.waits_late.delay(str(notes), str(gate))
        waits(holding, called)
    eventually(lambda: lines(notes))
    os.kill(int(lines(notes)[0].split()[1]), signal.SIGKILL)
    eventually(lambda: len(lines(notes)) == 2, timeout=30)
    gate.touch()
    assert called.get(timeout=20) == "done"
    settled(holding)
    assert worker.alive


def test_a_process_that_died_runs_no_call(holding: ModuleType, workers: Workers, notes: Path) -> None:
    """The call of a killed process is in no receipt any more; of a killed worker, when its lease is over (P14)."""
    gate = notes.with_name("gate")
    worker = workers.start(APP, concurrency=1)
    holding.waits_for.delay(str(notes), str(gate))
    eventually(lambda: lines(notes))
    receipt = holding.poimen.pause(everything=True)
    assert len(receipt.calls) == 1
    os.kill(int(lines(notes)[0].split()[1]), signal.SIGKILL)
    receipt.wait_quiet(timeout=30)
    holding.poimen.resume(everything=True)
    holding.waits_for.delay(str(notes), str(gate))
    eventually(lambda: len(lines(notes)) == 2, timeout=30)
    worker.destroy()
    receipt = holding.poimen.pause(everything=True)
    workers.start(APP, concurrency=1)
    receipt.wait_quiet(timeout=30)


def test_parked_longer_than_everything(holding: ModuleType, workers: Workers, notes: Path) -> None:
    """Parked longer than results and invisible messages last: chords and links end as ever, once (promise P14)."""
    add, total, tell = holding.add, holding.total, holding.tell_late
    workers.start(APP, concurrency=2)
    done = notes.with_name("done")
    with resumed_after(holding, activity=add.name):
        members = [holding.tell.s(n, str(done)) for n in (1, 2)]
        last = chord(group(*members, add.s(3, 4)), total.s()).apply_async(link=tell.s(str(notes)))
        alone = chord(group(add.s(n, n) for n in range(3)), total.s()).apply_async(link=tell.s(str(notes)))
        eventually(lambda: len(lines(done)) == 2 and len(parked(holding)) == 4)
        redis, (paused_at, _) = holding.poimen.store.client.redis, holding.poimen.store.client.redis.time()
        eventually(lambda: redis.time()[0] >= paused_at + 7, timeout=30)
        assert len(parked(holding)) == 4
    assert last.get(timeout=20) == 10
    assert alone.get(timeout=20) == 6
    eventually(lambda: sorted(lines(notes)) == ["10", "6"])
    settled(holding)
    assert sorted(lines(notes)) == ["10", "6"]


def test_the_body_parked_longer_than_everything(holding: ModuleType, workers: Workers) -> None:
    """A chord's body that is parked so long still has the results it was given (promise P14)."""
    workers.start(APP, concurrency=2)
    with resumed_after(holding, activity=holding.total.name):
        last = chord(group(holding.add.s(n, n) for n in range(3)), holding.total.s()).apply_async()
        eventually(lambda: len(parked(holding)) == 1)
        redis, (paused_at, _) = holding.poimen.store.client.redis, holding.poimen.store.client.redis.time()
        eventually(lambda: redis.time()[0] >= paused_at + 5, timeout=30)
    assert last.get(timeout=20) == 6


def test_switched_off(holding: ModuleType, workers: Workers, notes: Path) -> None:
    """A setting of the worker switches the check off; nothing is asked or parked then."""
    workers.start(APP, concurrency=1, env={"POIMEN_PAUSE_PLAIN_CALLS": "false"})
    with resumed_after(holding, everything=True):
        called = holding.tell.delay("x", str(notes))
        assert called.get(timeout=20) == "x"
        assert parked(holding) == []


def test_while_the_store_is_away(worker_env: dict[str, str], workers: Workers, notes: Path, tmp_path: Path) -> None:
    """Plain calls do not need the store: they begin without asking while it is away, and ask again when it is back."""
    with EmbeddedServer(tmp_path / "store") as store:
        env = {**worker_env, "POIMEN_REDIS_URL": store.url, "POIMEN_CONNECT_TIMEOUT": "1.0"}
        with imported(env, APP) as app:
            workers.env.update(env)
            worker = workers.start(APP, concurrency=1)
            store.kill()
            for number in range(3):
                app.tell_only.delay(number, str(notes))
            eventually(lambda: lines(notes) == ["0", "1", "2"], timeout=40)
            assert "plain tasks begin without asking" in worker.text()
            store.restart()
            sent = 3

            def one_is_parked() -> bool:
                nonlocal sent
                app.tell_only.delay(sent, str(notes))
                sent += 1
                return bool(parked(app))

            with resumed_after(app, everything=True):
                eventually(one_is_parked, timeout=40, interval=0.2)
            eventually(lambda: len(lines(notes)) >= sent, timeout=40)
            assert sorted(map(int, lines(notes))) == list(range(sent))
