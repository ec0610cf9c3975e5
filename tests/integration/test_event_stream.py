"""The stream of task events over a real broker: Celery's own receiver takes it, and its loss hurts nobody."""

from __future__ import annotations

import logging
import socket
import threading

import pytest
from celery import Celery
from celery.worker import control

from poimen_tasks.worker.events import EventStream
from tests.conftest import eventually


@pytest.fixture
def app(redis_url):
    """An app whose broker is the test's database."""
    app = Celery("stream", broker=redis_url, set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def listener(app):
    """Events that Celery's own receiver has taken, as they come."""
    taken, ready, over = [], threading.Event(), threading.Event()

    def listen():
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": taken.append})
            with receiver.consumer_context() as (own, _channel, consumers):
                for consumer in consumers:
                    consumer.consume()
                ready.set()
                while not over.is_set():
                    try:
                        own.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield taken
    over.set()
    thread.join(10)


def test_celerys_receiver_takes_batches(app, listener):
    """Hundreds of events arrive one by one and in order, sent in lists of a hundred at most."""
    stream = EventStream(app, hostname="w@h", rate=9.0, wanted=lambda: True)
    sizes, publish = [], stream._publish

    def counted(batch):
        sizes.append(len(batch))
        publish(batch)

    stream._publish = counted
    stream.add([stream.event("task-started", f"b.{n}", 1.0 + n) for n in range(250)])
    eventually(lambda: len(listener) == 250)
    assert [event["uuid"] for event in listener] == [f"b.{n}" for n in range(250)]
    assert {event["hostname"] for event in listener} == {"w@h"}
    assert listener[0]["clock"] < listener[249]["clock"]
    assert sizes == [100, 100, 50]
    stream.close()
    assert stream.dropped == 0


def test_what_is_left_is_sent_at_the_end(app, listener):
    """A process that ends sends what it has."""
    stream = EventStream(app, hostname="w@h", rate=9.0, wanted=lambda: True)
    stream.add([stream.event("task-started", "b.0", 1.0)])
    stream.close()
    eventually(lambda: len(listener) == 1)


def test_without_a_broker_events_are_lost_and_counted(caplog):
    """Nothing is raised, nothing is kept, one line says so; the next line comes after a success (fault J05)."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        app = Celery("dead", broker=f"redis://127.0.0.1:{holder.getsockname()[1]}/0", set_as_current=False)
        stream = EventStream(app, hostname="w@h", rate=9.0, wanted=lambda: True)
        with caplog.at_level(logging.WARNING, "poimen_tasks.worker.events"):
            for count in (3, 6):
                stream.add([stream.event("task-started", "b.0", 1.0)] * 3)
                eventually(lambda count=count: stream.dropped == count)
        stream.close(5.0)
        app.close()
    told = [record.getMessage() for record in caplog.records if record.name == "poimen_tasks.worker.events"]
    assert len(told) == 1
    assert told[0].startswith("task events are lost (3 so far), items are not")


def test_a_flood_is_bounded(app):
    """What cannot be sent in time is dropped as a whole, and counted."""
    stream = EventStream(app, hostname="w@h", rate=9.0, wanted=lambda: True)
    event = stream.event("task-started", "b.0", 1.0)
    stream.add([event] * 10_001)
    assert stream.dropped == 10_001
    stream.close()


def test_the_commands_are_extended():
    """Celery's registry has our commands, with its own arguments; its own functions stay where they are."""
    from poimen_tasks.worker import inspecting, revoking

    assert control.Panel.data["revoke"] is revoking.revoke
    assert control.Panel.data["terminate"] is revoking.terminate
    assert control.Panel.data["poimen_items"] is inspecting.poimen_items
    assert control.revoke is not revoking.revoke
    assert control.Panel.meta["revoke"].variadic == "task_id"
    assert control.Panel.meta["terminate"].args == [("signal", str)]
    assert control.Panel.meta["poimen_items"].type == "inspect"
