"""What a batch puts on the wire: few messages, small ones, and no subscription."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.conftest import APP
from tests.conftest import Workers, eventually

if TYPE_CHECKING:
    import redis


@pytest.fixture
def broker(own_shop: ModuleType) -> redis.Redis:
    """The server that carries the messages."""
    return own_shop.poimen.store.client.redis  # type: ignore[no-any-return]


def test_a_message_carries_no_callback(own_shop: ModuleType, broker: redis.Redis) -> None:
    """The messages of a batch with a callback of 50 kB and ten thousand items are few and small (fault A18)."""
    callback = own_shop.tell.s(path="", tag="x" * 50_000)
    own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(10_000)), concurrency=50, on_complete=callback)
    messages = [one for queue in broker.keys("celery*") for one in broker.lrange(queue, 0, -1)]  # one a priority
    assert 0 < len(messages) <= 50
    assert max(map(len, messages)) < 2000


def _subscriptions(broker: redis.Redis) -> int:
    """How many channels and patterns the connections of this database listen to; other tests share the server."""
    own = str(broker.connection_pool.connection_kwargs["db"])
    return sum(int(one["sub"]) + int(one["psub"]) for one in broker.client_list() if one["db"] == own)


def test_a_producer_subscribes_to_nothing(own_shop: ModuleType, broker: redis.Redis) -> None:
    """However many batches a process dispatches without asking for them, it subscribes to no channel (fault A19)."""
    for number in range(30):
        own_shop.poimen.dispatch([own_shop.add.s(number, at) for at in range(20)])
    result = own_shop.add.delay(1, 2)  # an ordinary call does, on the connection that all would share
    eventually(lambda: _subscriptions(broker) > 0)
    assert _subscriptions(broker) == 1, f"more than {result}"


def test_what_is_due_later_waits_in_the_store(own_shop: ModuleType, broker: redis.Redis, workers: Workers) -> None:
    """A thousand items that are due in an hour are in no worker's memory, and block nothing else (faults C02, E02)."""
    workers.start(APP, concurrency=1)
    later = own_shop.poimen.dispatch([own_shop.add.s(1, at).set(countdown=3600) for at in range(1000)])
    now = own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(50)))
    assert now.wait(timeout=30).succeeded == 50
    eventually(lambda: not broker.exists("unacked", "celery") and not broker.keys("celery[^-]*"))
    assert (later.status().delayed, later.status().running) == (1000, 0)


def test_a_pickle_is_not_read(own_shop: ModuleType, workers: Workers, tmp_path: Path) -> None:
    """A message that says it is a pickle is dropped unread by a worker, which works on (fault K01)."""
    worker = workers.start(APP, concurrency=1)

    class Evil:
        """Makes a file when it is read."""

        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return open, (f"{tmp_path}/evil", "w")

    with own_shop.app.producer_or_acquire() as producer:
        producer.publish(
            pickle.dumps(((Evil(),), {}, {})),
            content_type="application/x-python-serialize",
            content_encoding="binary",
            routing_key="celery",
            headers={"id": "evil", "task": own_shop.add.name},
        )
    assert own_shop.poimen.dispatch([own_shop.add.s(1, 2)]).wait(timeout=30).succeeded == 1
    eventually(lambda: "Refusing to deserialize" in worker.text() or "ContentDisallowed" in worker.text(), timeout=20)
    assert not (tmp_path / "evil").exists()
