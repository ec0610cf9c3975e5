"""What the worker knows of Celery's pools, held against the installed version; and its small parts around them."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency import get_available_pool_names, get_implementation
from celery.concurrency.base import BasePool
from kombu.transport.redis import MultiChannelPoller

from poimen_tasks import Poimen, Settings
from poimen_tasks.errors import SettingsError
from poimen_tasks.store.reads import WorkerInfo
from poimen_tasks.worker import deployments
from poimen_tasks.worker.limits import GreenTimer
from poimen_tasks.worker.pools import pool_of
from poimen_tasks.worker.wake import FreeSlotStep, _after_each_task


@pytest.mark.parametrize(
    ("name", "known", "processes", "blocks"),
    [
        ("prefork", "prefork", True, False),
        ("processes", "prefork", True, False),
        ("solo", "solo", False, True),
        ("threads", "threads", False, False),
    ],
)
def test_the_pools_that_celery_has(name: str, known: str, processes: bool, blocks: bool) -> None:
    """Each pool is known by its name and by its class, as a worker may have either."""
    for given in (name, get_implementation(name)):
        pool = pool_of(given)
        assert (pool.name, pool.processes, pool.blocks) == (known, processes, blocks)


def test_a_pool_of_somebody_else() -> None:
    """A pool that is derived from one of Celery's is like it; any other is taken for threads under its own name."""
    derived = type("Mine", (get_implementation("prefork"),), {"__module__": "mine"})
    foreign = type("Foreign", (BasePool,), {"__module__": "foreign"})
    assert pool_of(derived).processes
    assert (pool_of(foreign).name, pool_of(foreign).processes, pool_of(foreign).make_timer()) == (
        "foreign",
        False,
        None,
    )


def test_a_green_pool_without_its_patch_is_refused() -> None:
    """In this process nothing is patched, so a green pool cannot work; the error says what to do."""
    assert {"gevent", "eventlet"} <= set(get_available_pool_names())
    with pytest.raises(SettingsError, match="start the worker with `-P gevent`"):
        pool_of("gevent")


def test_memory_that_a_process_may_hold() -> None:
    """A process that holds more than its limit wants to be replaced; without a limit never."""
    assert pool_of("prefork", most_memory=1).wants_fresh_process()
    assert not pool_of("prefork", most_memory=1 << 40).wants_fresh_process()
    assert not pool_of("prefork").wants_fresh_process()


def test_the_timer_of_greenlets_is_per_item() -> None:
    """What struck is known after the item, and a new item begins with a clean sheet (protocol 3)."""
    from gevent import Timeout, sleep

    timer = GreenTimer(Timeout)
    timer.arm(None, 0.01)
    with pytest.raises(Exception, match=r"0\.01"):
        sleep(5)
    timer.disarm()
    assert timer.exceeded
    timer.arm(5.0, 9.0)
    timer.disarm()
    timer.disarm()
    assert not timer.exceeded
    timer.close()


# ----------------------------------------------------------------------------------- waking the worker's loop
def test_the_bell_rings_when_the_slot_is_free() -> None:
    """The loop is woken after the callback that frees the slot, on success and at Celery's own limit."""
    heard: list[str] = []

    class Pool(BasePool):
        def on_apply(
            self, target: Any, args: Any = None, kwargs: Any = None, callback: Any = None, **rest: Any
        ) -> None:
            callback(target(*args, **kwargs))
            rest["timeout_callback"](False, 1.0)

    pool = Pool(limit=1)
    _after_each_task(pool, lambda: heard.append("rung"))
    pool.apply_async(
        lambda word: word,
        ["done"],
        {},
        callback=heard.append,
        timeout_callback=lambda _soft, _timeout: heard.append("limit"),
        accept_callback=None,
    )
    assert heard == ["done", "rung", "limit", "rung"]


def test_the_poller_bears_a_socket_that_is_not_its_own() -> None:
    """The broker's poller wakes up for our socket, and passes over it."""
    poller = MultiChannelPoller()
    step = FreeSlotStep(SimpleNamespace(pool=SimpleNamespace(on_apply=None)))
    step.create(SimpleNamespace(pool=SimpleNamespace(on_apply=None)))
    qos = SimpleNamespace(can_consume=lambda: True)
    channel = SimpleNamespace(connection=SimpleNamespace(cycle=poller), qos=qos)
    step.start(SimpleNamespace(hub=None, task_consumer=SimpleNamespace(channel=channel)))
    step._ring()
    ((number, event),) = poller.poller.poll(5.0)
    assert number == step._ear.fileno()
    assert poller.handle_event(number, event) is None
    assert qos.can_consume()
    with pytest.raises(BlockingIOError):
        step._ear.recv(1, socket.MSG_DONTWAIT)
    ear = step._ear
    for _ in range(2):
        step.stop(SimpleNamespace(hub=None))
    assert ear.fileno() == -1
    step._ring()  # a task may still end when the connection is over


def test_the_step_is_installed_and_needs_no_processes() -> None:
    """Every Poimen's consumer has the step, for a broker that is polled and a pool without processes."""
    app = Celery("step", set_as_current=False, broker="redis://localhost/0")
    Poimen(app, settings=Settings(redis_url="redis://localhost/0"))
    assert FreeSlotStep in app.steps["consumer"]
    step = FreeSlotStep(None)

    def wanted(pool: str, broker: str) -> bool:
        kind = get_implementation(pool)
        made = SimpleNamespace(pool=kind.__new__(kind), conninfo=app.connection_for_read(broker))
        return step.include_if(made)

    assert wanted("threads", "redis://localhost/0")
    assert not wanted("prefork", "redis://localhost/0")
    assert not wanted("solo", "redis://localhost/0")
    assert not wanted("threads", "memory://")
    app.close()


# ------------------------------------------------------------------------------------------- the fleet's words
def test_remote_control_speaks_json() -> None:
    """Workers of other apps on the broker hear remote control too; ours is in JSON, whatever tasks are carried in."""
    poimen = Poimen("control", redis_url="redis://localhost/0")
    assert poimen.celery.conf.task_serializer != "json"
    assert poimen.celery.control.mailbox.serializer == "json"


class FakeReads:
    """A fleet as the store would tell it."""

    def __init__(self, *workers: WorkerInfo) -> None:
        self._workers = workers

    def now(self) -> float:
        """A moment."""
        return 100.0

    def workers(self) -> list[WorkerInfo]:
        """The fleet."""
        return list(self._workers)


def test_who_knows_a_task() -> None:
    """Only a live worker of the queue counts, and only for tasks that it named (fault A16)."""

    def known(seen: float, queue: str, *names: str) -> bool:
        details = {deployments.KNOWN: deployments.mark_of(names)} if names else {}
        store: Any = SimpleNamespace(reads=FakeReads(WorkerInfo("w", seen, ((queue, 2),), details)))
        return deployments.known_elsewhere(store, "shop.new", "q")

    assert known(99.0, "q", "shop.old", "shop.new")
    assert not known(99.0, "q", "shop.old")
    assert not known(99.0, "other", "shop.new")
    assert not known(50.0, "q", "shop.new")
    assert not known(99.0, "q")
