"""RabbitMQ as the broker, Redis as the store: what holds on one server holds on two."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from amqp.exceptions import NotFound
from celery import chord, group

from poimen_tasks import ItemStatus
from poimen_tasks.worker.broker import QueueDepths
from tests.acceptance.conftest import imported
from tests.acceptance.rabbit import Rabbit
from tests.conftest import Workers, eventually

APP = "tests.acceptance.rabbit_shop"
LEASE = 2.0


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """One node for the module."""
    node = Rabbit(tmp_path_factory.mktemp("rabbit"))
    try:
        yield node.start()
    finally:
        node.stop()


@pytest.fixture(scope="module")
def env(module_env: dict[str, str], rabbit: Rabbit) -> dict[str, str]:
    """The module's store, and RabbitMQ before it."""
    return {**module_env, "POIMEN_BROKER_URL": rabbit.url(), "POIMEN_LEASE": str(LEASE), "POIMEN_TICKET_OVERDUE": "1"}


@pytest.fixture(scope="module")
def shop(env: dict[str, str]) -> Iterator[ModuleType]:
    """The app in this process."""
    with imported(env, APP) as module:
        yield module


@pytest.fixture(scope="module")
def lanes(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One worker with two processes for the default queue, shared by the module."""
    group = Workers(tmp_path_factory.mktemp("workers"), env)
    group.start(APP, concurrency=2, queues="celery")
    yield group
    group.destroy_all()


@pytest.fixture
def more(env: dict[str, str], tmp_path: Path) -> Iterator[Workers]:
    """Workers of this test alone."""
    group = Workers(tmp_path, env)
    yield group
    group.destroy_all()


def lines(path: Path, word: str) -> list[str]:
    """The names that bodies noted with this word, in order."""
    text = path.read_text() if path.exists() else ""
    return [line.split()[1] for line in text.splitlines() if line.startswith(f"{word} ")]


def waiting(rabbit: Rabbit, queue: str) -> int:
    """How many messages the broker has not given to anybody."""
    with rabbit.connect() as connection:
        return int(connection.channel().queue_declare(queue, passive=True).message_count)


def empty(rabbit: Rabbit, *queues: str) -> None:
    """Take away what killed workers of other tests left, where a queue is there already."""
    for queue in queues:
        with rabbit.connect() as connection, contextlib.suppress(NotFound):
            connection.channel().queue_purge(queue)


@contextlib.contextmanager
def held(shop: ModuleType, notes: Path, count: int) -> Iterator[Any]:
    """A batch whose items run, `count` at once, until the block ends; the worker is free again afterwards."""
    gate = notes.with_name("gate")
    batch = shop.poimen.dispatch([shop.until.s(str(notes), str(i), str(gate)) for i in range(count)], concurrency=count)
    try:
        eventually(lambda: len(lines(notes, "start")) == count)
        yield batch
    finally:
        gate.touch()
        batch.wait(timeout=40)


# ------------------------------------------------------------------------------------------- what holds everywhere
@pytest.mark.usefixtures("lanes")
def test_a_batch_ends_with_its_callback(shop: ModuleType, notes: Path) -> None:
    """Items run in parallel, results keep the items' order, the chord's body gets them (promise D1)."""
    work = chord(group(shop.add.s(i, 1) for i in range(50)), shop.tell.s(str(notes)))
    report = shop.poimen.dispatch(work, concurrency=4).wait(timeout=30)
    assert list(report.results.values()) == list(range(1, 51))
    assert eventually(lambda: lines(notes, "told")) == [str(sum(range(1, 51)))]


@pytest.mark.usefixtures("lanes")
def test_an_item_is_retried(shop: ModuleType, notes: Path) -> None:
    """A retry's delay is kept in the store, its ticket goes out through RabbitMQ (promise D3)."""
    outcome = next(shop.poimen.dispatch([shop.third_time.s(str(notes))]).outcomes(timeout=30))
    assert (outcome.result, outcome.attempts) == (3, 3)


@pytest.mark.usefixtures("lanes")
def test_plain_tasks_have_their_results(shop: ModuleType) -> None:
    """A plain call and a native chord of the same app travel by RabbitMQ and keep results in Redis."""
    assert shop.add.delay(2, 3).get(timeout=20) == 5
    assert chord([shop.add.s(i, i) for i in range(4)], shop.total.s()).apply_async().get(timeout=20) == 12


@pytest.mark.usefixtures("lanes")
def test_cancel(shop: ModuleType, notes: Path) -> None:
    """A cancelled batch ends, running items included (promise D8)."""
    with held(shop, notes, 2) as batch:
        batch.cancel("enough", "me")
        assert {outcome.status for outcome in batch.outcomes(timeout=20)} == {ItemStatus.CANCELLED}


# ------------------------------------------------------------------------------------------- queues
@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("priority", ["high", "low"])
def test_named_priorities_do_no_harm_to_a_plain_queue(shop: ModuleType, priority: str) -> None:
    """A queue without `x-max-priority` takes messages with a priority, and serves them in turn (fault E03)."""
    assert shop.poimen.dispatch([shop.add.s(1, 2)], priority=priority).wait(timeout=20).results == {"0": 3}


def test_queues_exchanges_and_priorities(shop: ModuleType, more: Workers, rabbit: Rabbit, notes: Path) -> None:
    """Dispatched before any worker has declared a queue, routes lead to theirs (promise D2).

    Where a queue has `x-max-priority`, what is urgent is first (fault E03).
    """
    empty(rabbit, "ranked", "orders", "bills")
    low = shop.poimen.dispatch([shop.marked.s(str(notes), "low")], queue="ranked", priority="low")
    normal = shop.poimen.dispatch([shop.marked.s(str(notes), "normal")], queue="ranked")
    high = shop.poimen.dispatch([shop.marked.s(str(notes), "high")], queue="ranked", priority="high")
    routes = [
        shop.add.s(1, 1).set(exchange="events", routing_key="order.new"),
        shop.add.s(2, 2).set(queue="orders"),
        shop.add.s(3, 3).set(exchange="books", routing_key="bill"),
    ]
    # Each its own batch: tickets of one go first to a queue that a worker of another test served a moment ago.
    routed = [shop.poimen.dispatch([call]) for call in routes]
    eventually(lambda: [waiting(rabbit, queue) for queue in ("ranked", "orders", "bills")] == [3, 2, 1])
    together = shop.poimen.dispatch(routes)
    more.start(APP, concurrency=1, queues="ranked,orders,bills")
    assert [batch.wait(timeout=20).results["0"] for batch in routed] == [2, 4, 6]
    assert list(together.wait(timeout=20).results.values()) == [2, 4, 6]
    assert all(batch.wait(timeout=20).succeeded for batch in (low, normal, high))
    assert lines(notes, "start") == ["high", "normal", "low"]


def test_looking_at_a_missing_queue_harms_nobody(shop: ModuleType, rabbit: Rabbit) -> None:
    """RabbitMQ closes the channel that asks for a queue that is not there: it is nobody else's (fault D04)."""
    name = f"q{secrets.token_hex(4)}"
    with contextlib.closing(QueueDepths(shop.app)) as depths:
        assert [depths.count(name), depths.count(name)] == [0, 0]
        shop.add.apply_async((1, 1), queue=name)
        assert eventually(lambda: depths.count(name)) == 1
        with rabbit.connect() as connection:
            connection.channel().queue_delete(name)
        assert depths.count(name) == 0


# ------------------------------------------------------------------------------------------- pauses of plain calls
def parked(shop: ModuleType) -> int:
    """How many plain calls are."""
    store = shop.poimen.store
    return int(store.client.redis.hlen(store.keys.build("paused_calls")))


ROUTES = {
    "ranked": {"queue": "ranked"},
    "orders": {"exchange": "events", "routing_key": "order.new"},
    "bills": {"exchange": "books", "routing_key": "bill"},
}


@pytest.mark.parametrize("queue", ROUTES)
def test_parked_calls_go_back_to_their_queue(
    shop: ModuleType, more: Workers, rabbit: Rabbit, notes: Path, queue: str
) -> None:
    """A call is parked by the queue it came through, and goes back through its exchange, once (promise P14)."""
    shop.poimen.pause(queue=queue)
    worker = more.start(APP, concurrency=1, queues=queue)
    for name, priority in (("low", 1), ("high", 9)):
        shop.marked.apply_async((str(notes), name), priority=priority, **ROUTES[queue])
    eventually(lambda: parked(shop) == 2)
    worker.terminate()  # so that both wait in the queue at one time; in order, so that none comes back unacknowledged
    assert worker.wait() == 0
    shop.poimen.resume(queue=queue)
    eventually(lambda: waiting(rabbit, queue) == 2)
    assert lines(notes, "start") == []
    more.start(APP, concurrency=1, queues=queue)
    eventually(lambda: parked(shop) == 0)
    eventually(lambda: len(lines(notes, "end")) == 2)
    assert sorted(lines(notes, "start")) == ["high", "low"]
    if queue == "ranked":
        assert lines(notes, "start") == ["high", "low"]


def test_a_parked_call_of_a_killed_worker(shop: ModuleType, more: Workers, notes: Path) -> None:
    """What RabbitMQ delivers again of parked calls is parked or refused: each runs once (promise P14)."""
    shop.poimen.pause(activity=shop.marked.name)
    try:
        doomed = more.start(APP, concurrency=4, queues="celery")
        called = [shop.marked.delay(str(notes), str(number)) for number in range(40)]
        eventually(lambda: parked(shop) > 5)
        doomed.destroy()
        more.start(APP, concurrency=2, queues="celery")
        eventually(lambda: parked(shop) == 40)
    finally:
        shop.poimen.resume(activity=shop.marked.name)
    assert sorted(one.get(timeout=40) for one in called) == sorted(map(str, range(40)))
    eventually(lambda: parked(shop) == 0)
    assert sorted(lines(notes, "start"), key=int) == [str(number) for number in range(40)]


@pytest.mark.usefixtures("lanes")
def test_a_chord_under_a_pause(shop: ModuleType) -> None:
    """Members and body of a native chord are parked one after another; its results are in Redis (promise P14)."""
    for paused in (shop.add, shop.total):
        shop.poimen.pause(activity=paused)
        try:
            result = chord([shop.add.s(i, i) for i in range(4)], shop.total.s()).apply_async()
            eventually(lambda: parked(shop) == (4 if paused is shop.add else 1))  # noqa: B023 - used at once
        finally:
            shop.poimen.resume(activity=paused)
        assert result.get(timeout=20) == 12


# ------------------------------------------------------------------------------------------- sharing
@pytest.mark.usefixtures("lanes")
def test_a_busy_worker_holds_no_messages(shop: ModuleType, rabbit: Rabbit, notes: Path) -> None:
    """While lanes run in all its processes, a worker reserves nothing that an idle one could run: lanes ack late."""
    with held(shop, notes, 2):
        plain = [shop.add.delay(i, 0) for i in range(3)]
        assert waiting(rabbit, "celery") == 3
    assert [one.get(timeout=20) for one in plain] == [0, 1, 2]


@pytest.mark.usefixtures("lanes")
def test_lanes_give_way_to_others(shop: ModuleType, notes: Path) -> None:
    """A long batch in all processes of a worker leaves room for a plain task after its quantum (protocol 2)."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.05) for i in range(400)], concurrency=2)
    try:
        eventually(lambda: batch.status().running)
        assert shop.add.delay(1, 1).get(timeout=20) == 2
        assert not batch.status().is_over
    finally:
        batch.cancel("seen", "me")
        batch.wait(timeout=20)


def test_a_long_lane_is_acknowledged_in_time(shop: ModuleType, lanes: Workers, notes: Path) -> None:
    """RabbitMQ closes the channel of a consumer that owes an acknowledgement for too long: a lane's is given before."""
    name = lanes.all[0].name

    def is_acknowledged() -> list[bool]:
        return [one["acknowledged"] for one in shop.app.control.inspect([name]).active()[name]]

    def acknowledge_after(seconds: float) -> None:
        shop.app.control.broadcast(
            "acknowledge_after", arguments={"seconds": seconds}, destination=[name], reply=True, limit=1
        )

    with held(shop, notes, 1):
        eventually(lambda: is_acknowledged() == [False])
        try:
            acknowledge_after(0.0)
            eventually(lambda: is_acknowledged() == [True])
        finally:
            acknowledge_after(900.0)


# ------------------------------------------------------------------------------------------- deaths and outages
@pytest.mark.usefixtures("lanes")
def test_a_killed_worker_costs_a_lease(shop: ModuleType, more: Workers, notes: Path) -> None:
    """RabbitMQ delivers a killed worker's tickets again: they end at once, and its items run elsewhere (fault B01)."""
    doomed = more.start(APP, concurrency=2, queues="celery")
    work = [shop.marked.s(str(notes), str(i), 0.4) for i in range(16)]
    batch = shop.poimen.dispatch(work, concurrency=4)
    eventually(lambda: batch.status().running == 4)
    doomed.destroy()
    report = batch.wait(timeout=40)
    assert report.succeeded == 16
    assert sorted(set(lines(notes, "end")), key=int) == [str(i) for i in range(16)]
    assert len(lines(notes, "end")) <= 16 + 2


class Outage:
    """What was seen while the broker was killed, down, and back."""

    def __init__(self, shop: ModuleType, rabbit: Rabbit, notes: Path) -> None:
        self.notes = notes
        running = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.15) for i in range(60)], concurrency=2)
        eventually(lambda: running.status().succeeded >= 2)
        rabbit.kill_node()
        try:
            before = running.status().succeeded
            eventually(lambda: running.status().succeeded >= before + 4)
            dispatched = shop.poimen.dispatch(
                chord(group(shop.add.s(i, i) for i in range(10)), shop.tell.s(str(notes))), concurrency=4
            )
        finally:
            rabbit.start()
        self.running = running.wait(timeout=60)
        self.dispatched = dispatched.wait(timeout=60)


@pytest.fixture(scope="module")
def outage(shop: ModuleType, lanes: Workers, rabbit: Rabbit, tmp_path_factory: pytest.TempPathFactory) -> Outage:
    """One outage for the tests below."""
    return Outage(shop, rabbit, tmp_path_factory.mktemp("outage") / "notes.txt")


def test_lanes_go_on_without_their_broker(outage: Outage) -> None:
    """Items are claimed from the store, so a broker that is killed stops no lane and doubles no item (fault C06)."""
    assert outage.running.succeeded == 60
    assert sorted(lines(outage.notes, "end"), key=int) == [str(i) for i in range(60)]


def test_a_batch_dispatched_without_a_broker_runs_when_it_is_back(outage: Outage) -> None:
    """`dispatch` returns while the broker is down; the tickets are issued when it is back (fault D03)."""
    assert outage.dispatched.succeeded == 10
    assert eventually(lambda: lines(outage.notes, "told")) == [str(sum(range(0, 20, 2)))]


def test_plain_tasks_run_after_an_outage(outage: Outage, shop: ModuleType) -> None:
    """Producer and worker connect again by themselves (fault D03)."""
    assert shop.add.delay(2, 2).get(timeout=40) == 4


@pytest.mark.usefixtures("lanes")
def test_a_frozen_broker_costs_no_lease(shop: ModuleType, rabbit: Rabbit, notes: Path) -> None:
    """Leases are renewed while the broker does not answer for longer than a lease: no item runs twice (protocol 5)."""
    now = shop.poimen.store.reads.now
    with held(shop, notes, 2) as batch:
        rabbit.pause()
        try:
            began = now()
            eventually(lambda: now() > began + 2.5 * LEASE)
        finally:
            rabbit.resume()
    assert batch.wait(timeout=20).succeeded == 2
    assert sorted(lines(notes, "start")) == ["0", "1"]
    assert shop.add.delay(1, 2).get(timeout=40) == 3
