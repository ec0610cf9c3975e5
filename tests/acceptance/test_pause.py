"""Pauses with real workers: nothing of a paused scope starts, and everything goes on afterwards."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poimen_tasks import BatchState, Item
from tests.acceptance.conftest import APP
from tests.conftest import Workers, eventually

QUICK = ("--without-mingle", "--without-gossip")


def lines(path: Path, what: str = "start") -> list[str]:
    """Names that bodies noted."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [row[1] for row in rows if row[0] == what]


def marked(shop: ModuleType, path: Path, names: Any, seconds: float = 0.0) -> list[Any]:
    """Calls that note their start and end."""
    return [shop.marked.s(str(path), str(name), seconds) for name in names]


def is_idle(shop: ModuleType) -> bool:
    """True when nothing holds a slot or a message: no lane, no ticket, nothing unacknowledged (invariant I6)."""
    store = shop.poimen.store
    counts = store.client.redis.hvals(store.keys.build("queues"))
    return not any(int(count) for count in counts) and not store.client.redis.exists("unacked", "celery")


# ------------------------------------------------------------------------------------------ what starts
@pytest.mark.usefixtures("lanes")
def test_nothing_starts_while_paused(shop: ModuleType, notes: Path) -> None:
    """After `pause()` returned nothing starts; what ran finishes; the resume runs the rest (promise P3).

    What waits holds no message, so none comes back by a timeout of the broker (fault I11).
    """
    batch = shop.poimen.dispatch(marked(shop, notes, range(12), 0.1), workflow="wf-p3", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 4)
    receipt = shop.poimen.pause(workflow="wf-p3", reason="maintenance", actor="ops")
    running = {item for one in receipt.running for item in one.item_ids}
    receipt.wait_quiet(timeout=20)
    started = lines(notes)
    assert set(started) == {*lines(notes, "end")}
    assert running <= set(started)
    status = batch.status()
    assert (status.state, status.running, status.paused_by) == (BatchState.PAUSED, 0, ("w:wf-p3",))
    eventually(lambda: is_idle(shop))
    assert lines(notes) == started
    shop.poimen.resume(workflow="wf-p3", reason="done", actor="ops")
    assert batch.wait(timeout=30).succeeded == 12
    assert sorted(lines(notes)) == sorted(map(str, range(12)))


@pytest.mark.usefixtures("lanes")
def test_an_unknown_workflow(shop: ModuleType, notes: Path) -> None:
    """A workflow nobody has seen is paused, and its later dispatches are held until the resume (promise P1).

    Whatever brings its work about, the pause is looked at when an item would start (fault I09).
    """
    shop.poimen.pause(workflow="wf-later", reason="not before noon")
    assert shop.poimen.pauses.is_paused("wf-later")
    batch = shop.poimen.dispatch(marked(shop, notes, range(5)), workflow="wf-later")
    other = shop.poimen.dispatch(marked(shop, notes, ["other"]), workflow="wf-other")
    assert other.wait(timeout=20).succeeded == 1
    assert lines(notes) == ["other"]
    state = shop.poimen.pauses.state("wf-later")
    assert (state.paused, state.reason, state.held) == (True, "not before noon", 1)
    shop.poimen.resume(workflow="wf-later")
    assert batch.wait(timeout=20).succeeded == 5


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("scope", [{"queue": "celery"}, {"activity": "shop"}, {"everything": True}, {"batch": "by-id"}])
def test_scopes(shop: ModuleType, notes: Path, scope: dict[str, Any]) -> None:
    """A queue, a task, everything and a single batch can be paused, a task as itself or by its name (promise P1)."""
    if "activity" in scope:
        scope = {"activity": shop.marked}
    shop.poimen.pause(**scope)
    try:
        batch = shop.poimen.dispatch(marked(shop, notes, range(3)), batch_id=f"scope-{len(scope)}-{next(_numbers)}")
        if "batch" in scope:
            batch = shop.poimen.dispatch(marked(shop, notes, range(3)), batch_id="by-id")
        assert batch.status().state is BatchState.PAUSED
        state = shop.poimen.pauses.state(**scope)
        assert state.paused
        eventually(lambda: batch.status().pending == 3)
    finally:
        shop.poimen.resume(**scope)
    assert batch.wait(timeout=20).succeeded == 3


_numbers = itertools.count()


@pytest.mark.usefixtures("lanes")
def test_overlapping_scopes(shop: ModuleType, notes: Path) -> None:
    """An item starts only when no scope that covers it is paused, whichever is resumed first (promise P1)."""
    batch = shop.poimen.dispatch(marked(shop, notes, range(8), 0.2), workflow="wf-two", concurrency=2)
    shop.poimen.workflow("wf-two").pause(reason="one")
    batch.pause(reason="two").wait_quiet(timeout=20)
    assert batch.status().paused_by == ("w:wf-two", f"b:{batch.id}")
    shop.poimen.workflow("wf-two").resume()
    eventually(lambda: is_idle(shop))
    assert batch.status().state is BatchState.PAUSED
    batch.resume()
    assert batch.wait(timeout=20).succeeded == 8


@pytest.mark.usefixtures("lanes")
def test_one_pause_does_not_touch_another(shop: ModuleType, notes: Path) -> None:
    """Pausing one workflow leaves the others alone (promises I9 and P12)."""
    batches = {
        name: shop.poimen.dispatch(marked(shop, notes, [f"{name}{n}" for n in range(6)], 0.05), workflow=f"wf-{name}")
        for name in "abc"
    }
    shop.poimen.pause(workflow="wf-b")
    assert [batches[name].wait(timeout=20).succeeded for name in "ac"] == [6, 6]
    assert batches["b"].status().state is BatchState.PAUSED
    shop.poimen.resume(workflow="wf-b")
    assert batches["b"].wait(timeout=20).succeeded == 6


@pytest.mark.usefixtures("lanes")
def test_retries_and_delays_wait(shop: ModuleType, notes: Path) -> None:
    """A retry and a delayed item that are due while paused start after the resume (fault I03, promise P3)."""
    path = str(notes)
    work = [shop.third_time.s(path), shop.marked.s(path + ".late", "late").set(countdown=0.3)]
    batch = shop.poimen.dispatch(work, workflow="wf-due")
    eventually(notes.exists)
    shop.poimen.pause(workflow="wf-due").wait_quiet(timeout=20)
    runs = notes.read_text()
    eventually(lambda: batch.status().delayed == 0, timeout=20)
    eventually(lambda: is_idle(shop))
    assert notes.read_text() == runs
    assert not Path(path + ".late").exists()
    shop.poimen.resume(workflow="wf-due")
    report = batch.wait(timeout=20)
    assert (report.succeeded, report.results["0"]) == (2, 3)


@pytest.mark.usefixtures("lanes")
def test_a_callback_is_held(shop: ModuleType, notes: Path) -> None:
    """Paused at its last item, a batch has all outcomes, and its callback runs after the resume (promise P3)."""
    batch = shop.poimen.dispatch(
        [shop.nap.s(0.5)], workflow="wf-last", on_success=shop.tell.s(str(notes)), on_complete=shop.tell.s(str(notes))
    )
    eventually(lambda: batch.status().running == 1)
    shop.poimen.pause(workflow="wf-last").wait_quiet(timeout=20)
    status = batch.status()
    assert (status.state, status.callbacks_pending) == (BatchState.COMPLETED, 2)
    eventually(lambda: is_idle(shop))
    assert not notes.exists()
    shop.poimen.resume(workflow="wf-last")
    eventually(lambda: batch.status().callbacks_pending == 0, timeout=20)
    assert len(notes.read_text().splitlines()) == 2


@pytest.mark.usefixtures("lanes")
def test_equal_calls_of_paused_batches(shop: ModuleType, notes: Path) -> None:
    """A paused follower gets the result when it lands; a paused batch whose call is not known yet runs nothing."""
    first = shop.poimen.dispatch([shop.priced.s(str(notes), "x", 1.0)], workflow="wf-leads")
    eventually(lambda: first.status().running == 1)
    second = shop.poimen.dispatch([shop.priced.s(str(notes), "x", 1.0)], workflow="wf-follows")
    eventually(lambda: second.status().waiting == 1)
    shop.poimen.pause(workflow="wf-follows")
    third = shop.poimen.dispatch([shop.priced.s(str(notes), "y")], workflow="wf-follows")
    assert first.wait(timeout=20).succeeded == 1
    assert second.wait(timeout=20).results == {"0": "price of x"}
    assert third.status().pending == 1
    shop.poimen.resume(workflow="wf-follows")
    assert third.wait(timeout=20).succeeded == 1
    assert sorted(notes.read_text().split()) == ["x", "y"]


# ------------------------------------------------------------------------------------------ odd moments
@pytest.mark.usefixtures("lanes")
def test_cancel_while_paused(shop: ModuleType, notes: Path) -> None:
    """Cancelling a paused batch ends it at once; its callback waits for the resume."""
    shop.poimen.pause(workflow="wf-cancel")
    batch = shop.poimen.dispatch(
        marked(shop, notes, range(20)), workflow="wf-cancel", on_failure=shop.tell.s(str(notes) + ".cb")
    )
    status = batch.cancel("not needed", "ops")
    assert (status.state, status.cancelled, status.callbacks_pending) == (BatchState.CANCELLED, 20, 1)
    assert not Path(f"{notes}.cb").exists()
    shop.poimen.resume(workflow="wf-cancel")
    eventually(lambda: Path(f"{notes}.cb").exists())
    assert not notes.exists()


@pytest.mark.usefixtures("lanes")
def test_pause_while_cancelling(shop: ModuleType, notes: Path) -> None:
    """Pausing a batch that is being cancelled does not stop the cancellation: a running body is told `Cancelled`."""
    batch = shop.poimen.dispatch([shop.until_cancelled.s(str(notes)), *marked(shop, notes, range(5))], concurrency=1)
    eventually(notes.exists)
    batch.cancel("stop")
    receipt = batch.pause(grace=0.0)
    receipt.wait_quiet(timeout=20)
    status = batch.status()
    assert (status.state, status.cancelled) == (BatchState.CANCELLED, 6)
    batch.resume()


@pytest.mark.usefixtures("lanes")
def test_pause_during_dispatch(shop: ModuleType, notes: Path) -> None:
    """A batch that is paused while its producer still writes takes the rest of its items, and starts none of them."""

    def work() -> Iterator[Any]:
        for number in range(800):
            if number == 400:
                shop.poimen.pause(workflow="wf-during").wait_quiet(timeout=20)
            yield shop.noop.s(number)

    batch = shop.poimen.dispatch(work(), workflow="wf-during")
    status = batch.status()
    assert (status.total, status.state) == (800, BatchState.PAUSED)
    assert status.pending >= 544
    shop.poimen.resume(workflow="wf-during")
    assert batch.wait(timeout=30).succeeded == 800


def test_longer_than_every_lifetime(own_shop: ModuleType, workers: Workers, worker_env: dict[str, str]) -> None:
    """A pause longer than the retention keeps batches that ended before and during it (fault I08)."""
    poimen = own_shop.poimen
    with poimen.using(poimen.settings.model_copy(update={"retention": 1.0})):
        workers.env.update(worker_env | {"POIMEN_RETENTION": "1.0"})
        workers.start(APP, concurrency=2, args=QUICK)
        done = poimen.dispatch([own_shop.add.s(1, 2)], workflow="wf-long", stage="one")
        ends = poimen.dispatch([own_shop.nap.s(0.3)], workflow="wf-long", stage="two")
        waits = poimen.dispatch([own_shop.add.s(2, 3).set(countdown=2)], workflow="wf-long", stage="three")
        done.wait(timeout=20)
        eventually(lambda: ends.status().started_at)
        poimen.pause(workflow="wf-long").wait_quiet(timeout=20)
        redis, keys = poimen.store.client.redis, poimen.store.keys
        eventually(lambda: [redis.ttl(keys.record(one.id)) for one in (done, ends, waits)] == [-1] * 3)
        gone = poimen.dispatch([own_shop.add.s(0, 0)], workflow="wf-gone")
        eventually(lambda: not redis.exists(keys.record(gone.id)), timeout=20)
        assert [one.status().finished for one in (done, ends)] == [1, 1]
        poimen.resume(workflow="wf-long")
        assert waits.wait(timeout=20).results == {"0": 5}
        eventually(lambda: not redis.exists(*(keys.record(one.id) for one in (done, ends, waits))), timeout=20)


@pytest.mark.usefixtures("lanes")
def test_expires(shop: ModuleType, notes: Path) -> None:
    """A pause with `expires` ends by itself; the state says who resumed it, and why."""
    shop.poimen.pause(workflow="wf-expires", expires=0.5, actor="ops")
    batch = shop.poimen.dispatch(marked(shop, notes, range(3)), workflow="wf-expires")
    assert batch.status().state is BatchState.PAUSED
    assert batch.wait(timeout=20).succeeded == 3
    state = shop.poimen.pauses.state("wf-expires")
    assert (state.paused, state.resume_actor, state.resume_reason) == (False, "keeper", "expired")


@pytest.mark.usefixtures("lanes")
def test_a_rate(shop: ModuleType, notes: Path) -> None:
    """With `rate` items start slowly at first, and all of what was held comes (fault I03, promise P2)."""
    shop.poimen.pause(workflow="wf-rate")
    batch = shop.poimen.dispatch(marked(shop, notes, range(30)), workflow="wf-rate")
    shop.poimen.resume(workflow="wf-rate", rate=10)
    report = batch.wait(timeout=40)
    starts = sorted(outcome.started_at.timestamp() for outcome in batch.outcomes())
    assert report.succeeded == 30
    assert starts[-1] - starts[0] > 1.0, "30 at 10 a second, 20 of them at once at most"


# ------------------------------------------------------------------------------------------ restarts
def test_worker_and_server_restart_while_paused(
    own_server: Any, workers: Workers, worker_env: dict[str, str], notes: Path
) -> None:
    """A pause outlives every process: workers that come later, and a restarted server, hold it (fault I01)."""
    shop, server = own_server
    first = workers.start(APP, concurrency=2, args=QUICK)
    batch = shop.poimen.dispatch(marked(shop, notes, range(10), 0.2), workflow="wf-restart", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 2)
    shop.poimen.pause(workflow="wf-restart").wait_quiet(timeout=20)
    started = lines(notes)
    first.destroy()
    server.restart()
    workers.start(APP, concurrency=2, args=QUICK)
    other = shop.poimen.dispatch(marked(shop, notes, ["other"]), workflow="wf-other")
    assert other.wait(timeout=30).succeeded == 1
    assert shop.poimen.pauses.is_paused("wf-restart")
    assert lines(notes) == [*started, "other"]
    shop.poimen.resume(workflow="wf-restart")
    assert batch.wait(timeout=30).succeeded == 10


def test_waiting_outlasts_a_restart(own_server: Any, notes: Path) -> None:
    """Who waits for a signal hears of one that is made after the server was restarted meanwhile (promise P5)."""
    shop, server = own_server
    heard: list[bool] = []
    assert not shop.poimen.pauses.is_paused("wf-wait")
    thread = threading.Thread(target=lambda: heard.append(shop.poimen.pauses.wait("wf-wait", timeout=60)))
    thread.start()
    eventually(lambda: any(client["cmd"] == "xread" for client in shop.poimen.store.client.redis.client_list()))
    server.restart()
    shop.poimen.pause(workflow="wf-wait")
    thread.join(60)
    assert heard == [True]


@pytest.fixture
def own_server(tmp_path: Path, worker_env: dict[str, str], workers: Workers) -> Iterator[tuple[ModuleType, Any]]:
    """The shop on a server that the test may restart."""
    from poimen_tasks.store.server import EmbeddedServer
    from tests.acceptance.conftest import imported

    with EmbeddedServer(tmp_path / "own") as server:
        env = worker_env | {"POIMEN_REDIS_URL": server.url, "POIMEN_BROKER_URL": server.url}
        workers.env.update(env)
        with imported(env) as shop:
            yield shop, server


def test_lost_while_paused(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """Items of a worker that is killed while paused start nowhere before the resume (fault I05, promise P3)."""
    first = workers.start(APP, concurrency=2, args=QUICK)
    batch = own_shop.poimen.dispatch(marked(own_shop, notes, range(4), 5.0), workflow="wf-lost", concurrency=2)
    eventually(lambda: len(lines(notes)) == 2)
    receipt = own_shop.poimen.pause(workflow="wf-lost")
    first.destroy()
    workers.start(APP, concurrency=2, args=QUICK)
    receipt.wait_quiet(timeout=30)
    status = batch.status()
    assert (status.pending, status.running, len(lines(notes))) == (4, 0, 2)
    own_shop.poimen.resume(workflow="wf-lost")
    eventually(lambda: len(lines(notes)) == 4)
    batch.cancel(terminate=True)


def test_a_keeper_killed_while_it_releases(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """When who resumes dies half-way, and then the keeper that went on, another releases the rest (promise P2)."""
    poimen = own_shop.poimen
    poimen.pause(workflow="wf-half")
    batches = [poimen.dispatch(marked(own_shop, notes, [number]), workflow="wf-half") for number in range(220)]
    assert len(poimen.pauses.held("wf-half").batches) == 220
    # As a process does that dies before it has published anything.
    reply = poimen.store.pauses.resume_scope("w:wf-half", reason="", actor="gone")
    assert (reply.left, reply.released) == (True, 100)
    workers.env["POIMEN_TICKET_OVERDUE"] = "1.0"
    first = workers.start(APP, concurrency=2, args=QUICK)
    eventually(lambda: len(lines(notes, "end")) >= 5, timeout=30)
    first.destroy()
    workers.start(APP, concurrency=2, args=QUICK)
    eventually(lambda: all(batch.status().is_over for batch in batches), timeout=90)
    assert {batch.status().succeeded for batch in batches} == {1}
    assert poimen.store.client.redis.exists(poimen.store.keys.build("releasing")) == 0
    assert len(set(lines(notes))) == 220


@pytest.mark.usefixtures("lanes")
def test_a_leader_that_stops_passes_its_lead_on(shop: ModuleType, notes: Path) -> None:
    """When the batch that computes a shared result is stopped by a pause, one that is not paused computes it."""
    first = shop.poimen.dispatch([shop.stepping_once.s(str(notes), "x", 200)], workflow="wf-lead")
    eventually(lambda: first.status().running == 1)
    paused = shop.poimen.dispatch([shop.stepping_once.s(str(notes), "x", 200)], workflow="wf-lead")
    other = shop.poimen.dispatch([shop.stepping_once.s(str(notes), "x", 200)], workflow="wf-free")
    eventually(lambda: (paused.status().waiting, other.status().waiting) == (1, 1))
    shop.poimen.pause(workflow="wf-lead", grace=0.0).wait_quiet(timeout=20)
    Path(f"{notes}.go").touch()
    assert other.wait(timeout=20).succeeded == 1
    assert not first.status().is_over
    shop.poimen.resume(workflow="wf-lead")
    assert [batch.wait(timeout=20).succeeded for batch in (first, paused)] == [1, 1]
    assert lines(notes, "ran") == ["x"], "one body ran to its end"


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools(own_shop: ModuleType, workers: Workers, notes: Path, pool: str) -> None:
    """Threads and a solo worker hold a pause too."""
    workers.start(APP, concurrency=2, pool=pool, args=QUICK)
    batch = own_shop.poimen.dispatch(marked(own_shop, notes, range(10), 0.1), workflow="wf-pool", concurrency=2)
    eventually(lambda: len(lines(notes)) >= 2)
    own_shop.poimen.pause(workflow="wf-pool").wait_quiet(timeout=20)
    started = lines(notes)
    assert batch.status().pending == 10 - len(started)
    assert own_shop.poimen.dispatch([own_shop.add.s(1, 1)]).wait(timeout=20).succeeded == 1
    assert lines(notes) == started
    own_shop.poimen.resume(workflow="wf-pool")
    assert batch.wait(timeout=20).succeeded == 10


# ------------------------------------------------------------------------------------------ many
def test_ten_workflows_under_load(own_shop: ModuleType, workers: Workers, notes: Path) -> None:
    """Ten workflows are paused and resumed while tasks run: none starts while paused, none is lost (promise I6)."""
    workers.start_many(2, APP, concurrency=2, args=QUICK)
    names = [f"wf-{number}" for number in range(10)]
    batches = {
        name: own_shop.poimen.dispatch(
            marked(own_shop, notes, [f"{name}.{n}" for n in range(40)], 0.01), workflow=name, concurrency=4
        )
        for name in names
    }

    def started(name: str) -> int:
        return sum(line.startswith(f"{name}.") for line in lines(notes))

    for _ in range(2):
        receipts = {name: own_shop.poimen.pause(workflow=name) for name in names[::2]}
        for receipt in receipts.values():
            receipt.wait_quiet(timeout=20)
        before = {name: started(name) for name in receipts}
        assert own_shop.poimen.dispatch(marked(own_shop, notes, range(20), 0.01)).wait(timeout=40).succeeded == 20
        assert {name: started(name) for name in receipts} == before
        for name in receipts:
            own_shop.poimen.resume(workflow=name)
    assert [batch.wait(timeout=60).succeeded for batch in batches.values()] == [40] * 10
    counts = Counter(line for line in lines(notes) if line.startswith("wf-"))
    assert (len(counts), set(counts.values())) == (400, {1})


@pytest.mark.timeout(240)
def test_fifty_workflows_from_four_producers(
    own_shop: ModuleType, workers: Workers, worker_env: dict[str, str], tmp_path: Path
) -> None:
    """Fifty workflows are dispatched, paused, seen and resumed from four processes without an error (promise I1)."""
    from tests.acceptance.producers import run_producers

    workers.start(APP, concurrency=2, args=QUICK)
    reports = run_producers(4, 50, env=worker_env, directory=tmp_path)
    assert [report["errors"] for report in reports] == [[]] * 4
    assert sum(report["succeeded"] for report in reports) == 50 * 3
    stats = own_shop.poimen.pauses.stats()
    assert (stats.total, stats.paused, stats.pauses, stats.resumes) == (50, 0, 50, 50)


# ------------------------------------------------------------------------------------------ the audit log
@pytest.mark.usefixtures("lanes")
def test_ids_in_the_receipt(shop: ModuleType, notes: Path) -> None:
    """The receipt names what ran, by batch and item id."""
    work = [Item(call, id=f"part/{n}") for n, call in enumerate(marked(shop, notes, range(2), 1.0))]
    batch = shop.poimen.dispatch(work, workflow="wf-ids", concurrency=2)
    eventually(lambda: len(lines(notes)) == 2)
    receipt = shop.poimen.pause(workflow="wf-ids", request_id="r1")
    assert sorted(item for one in receipt.running for item in one.item_ids) == ["part/0", "part/1"]
    assert {one.batch_id for one in receipt.running} == {batch.id}
    again = shop.poimen.pause(workflow="wf-ids", request_id="r1")
    assert (again.again, again.epoch, again.running_items) == (True, receipt.epoch, 2)
    data = receipt.to_dict()
    assert data["scope"] == {"kind": "workflow", "id": "wf-ids"}
    shop.poimen.resume(workflow="wf-ids")
    batch.wait(timeout=20)


def test_signals_reach_a_waiting_thread(own_shop: ModuleType) -> None:
    """A wait in another thread hears of both, in order; one made between two waits is not lost (promise P5)."""
    heard: list[bool] = []
    pauses = own_shop.poimen.pauses
    assert not pauses.is_paused("wf-wait")

    def listen() -> None:
        heard.extend(pauses.wait("wf-wait", timeout=20) for _ in range(4))

    thread = threading.Thread(target=listen)
    thread.start()
    for _ in range(2):
        own_shop.poimen.pause(workflow="wf-wait")
        own_shop.poimen.resume(workflow="wf-wait")
    thread.join(20)
    assert heard == [True, False, True, False]
