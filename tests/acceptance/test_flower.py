"""Items in Celery's own tools: the stock Flower, `celery inspect`, `celery control`; a real Flower process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poimen_tasks.store.tether import tethered
from tests import nursery
from tests.acceptance.conftest import APP
from tests.conftest import ROOT, Workers, eventually


class Flower:
    """A stock Flower; asked over HTTP."""

    def __init__(self, port: int) -> None:
        self.port = port

    def text(self, path: str, *, post: bool = False) -> str:
        """A page."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST" if post else "GET", path)
            reply = connection.getresponse()
            assert reply.status == 200, f"{path}: {reply.status}"
            return reply.read().decode()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """An answer of the API."""
        return json.loads(self.text(path))

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            return bool(self.text("/healthcheck"))
        except OSError:
            return False

    def workers(self) -> set[str]:
        """The workers that it lists, on line or not."""
        return {row["hostname"] for row in self.json("/workers?json=1")["data"]}

    def tasks(self, batch: str) -> dict[str, dict[str, Any]]:
        """The items of a batch by message id."""
        rows: dict[str, dict[str, Any]] = self.json("/api/tasks?limit=1000")
        return {uuid: row for uuid, row in rows.items() if uuid.startswith(f"{batch}.")}


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def flower(lanes: Workers, module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """Flower beside the module's worker, once it knows it."""
    port, directory = free_port(), tmp_path_factory.mktemp("flower")
    command = [sys.executable, "-m", "celery", "-A", APP, "flower", "--address=127.0.0.1", f"--port={port}"]
    env = {**os.environ, **module_env, "PYTHONPATH": str(ROOT), "FLOWER_UNAUTHENTICATED_API": "true"}
    with (directory / "log").open("wb") as out:
        process = subprocess.Popen(
            tethered(command), cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    found = Flower(port)
    try:
        eventually(found.answers, timeout=40)
        eventually(lambda: found.workers() == {lanes.all[0].name}, timeout=20)
        yield found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def settled(flower: Flower, batch: Any, count: int) -> dict[str, dict[str, Any]]:
    """The items of a batch when Flower has the last event of each."""
    over = {"SUCCESS", "FAILURE", "REVOKED", "IGNORED"}

    def ready() -> dict[str, dict[str, Any]] | None:
        rows = flower.tasks(batch.id)
        return rows if len(rows) == count and all(row["state"] in over for row in rows.values()) else None

    found = eventually(ready)
    assert found
    return found


def errors(batch: Any) -> dict[str, str]:
    """What kept items of a batch from succeeding, when it is over."""
    return {outcome.item_id: outcome.error.type for outcome in batch.outcomes(timeout=20) if outcome.error}


def test_every_item_is_a_task(shop: ModuleType, lanes: Workers, flower: Flower) -> None:
    """Flower lists every item of a batch with name, arguments, worker, runtime and state, and no phantom worker."""
    batch = shop.poimen.dispatch(shop.add.s(i, y=1) for i in range(40))
    batch.wait(timeout=30)
    rows = settled(flower, batch, 40)
    assert sorted(rows) == sorted(f"{batch.id}.{position}" for position in range(40))
    for position in range(40):
        row = rows[f"{batch.id}.{position}"]
        assert (row["name"], row["args"], row["kwargs"]) == (shop.add.name, f"({position},)", "{'y': 1}")
        assert (row["state"], row["result"], row["worker"]) == ("SUCCESS", str(position + 1), lanes.all[0].name)
        assert row["runtime"] >= 0
        assert row["received"] <= row["started"] <= row["succeeded"]
        assert row["routing_key"] == "celery"
    assert flower.workers() == {lanes.all[0].name}


def test_pages_show_items(shop: ModuleType, flower: Flower) -> None:
    """The pages that people look at show an item: its own page, and the table behind the list."""
    batch = shop.poimen.dispatch(shop.poimen.starmap(shop.add, [(17, 4)]))
    batch.wait(timeout=30)
    settled(flower, batch, 1)
    page = flower.text(f"/task/{batch.id}.0")
    assert shop.add.name in page
    assert "(17, 4)" in page
    assert "SUCCESS" in page
    query = (
        f"draw=1&start=0&length=10&search[value]={batch.id}&order[0][column]=0&columns[0][data]=name&order[0][dir]=asc"
    )
    table = flower.json(f"/tasks/datatable?{query}")
    found = {row["name"]: row for row in table["data"]}
    assert found[shop.add.name]["uuid"] == f"{batch.id}.0"
    assert set(found) <= {shop.add.name, "poimen.lane"}
    assert flower.text("/tasks")


def test_lanes_are_tasks_and_parents(shop: ModuleType, flower: Flower) -> None:
    """A lane shows as a task of its own, with its batch in its arguments; it is the parent of the items it ran."""
    batch = shop.poimen.dispatch([shop.nap.s(0.01)])
    batch.wait(timeout=30)
    (row,) = settled(flower, batch, 1).values()

    def lane() -> Any:
        found = flower.json(f"/api/task/info/{row['parent_id']}")
        return found if found["state"] == "SUCCESS" else None

    found = eventually(lane)
    assert (found["name"], found["worker"]) == ("poimen.lane", row["worker"])
    assert batch.id in found["args"]


def test_failures_and_retries(shop: ModuleType, flower: Flower, notes: Path) -> None:
    """A failed item shows exception and traceback; a retried one its retries and, in the end, its success."""
    batch = shop.poimen.dispatch([shop.odd_fails.s(3), shop.third_time.s(str(notes)), shop.ignored.s()])
    batch.wait(timeout=30)
    rows = settled(flower, batch, 3)
    failed, retried, ignored = (rows[f"{batch.id}.{position}"] for position in range(3))
    assert (failed["state"], failed["exception"]) == ("FAILURE", "ValueError('3 is odd')")
    assert "in odd_fails" in failed["traceback"]
    assert (retried["state"], retried["result"], retried["retries"]) == ("SUCCESS", "3", 2)
    assert retried["exception"] == "ConnectionError('run 2')"
    assert ignored["state"] == "IGNORED"


def test_a_running_item_shows_as_started(shop: ModuleType, flower: Flower, notes: Path) -> None:
    """An item that takes long is there while it runs, with its arguments; so are large ones."""
    secret = {"api_key": "hush-hush", "note": "x" * 2000}
    batch = shop.poimen.dispatch([shop.until_cancelled.s(str(notes)), shop.nap.s(0.0), shop.echo.s("y", **secret)])
    rows = eventually(
        lambda: (found := flower.tasks(batch.id)) and found.get(f"{batch.id}.0", {}).get("state") == "STARTED" and found
    )
    assert rows[f"{batch.id}.0"]["args"] == f"({str(notes)!r},)"
    eventually(lambda: batch.status().succeeded == 2)  # those that a cancellation keeps from starting are not shown
    batch.cancel("seen", "me")
    batch.wait(timeout=30)
    rows = settled(flower, batch, 3)
    assert rows[f"{batch.id}.0"]["state"] == "REVOKED"
    assert "hush" not in json.dumps(rows)


def test_flower_revokes_an_item(shop: ModuleType, flower: Flower, notes: Path) -> None:
    """Flower's button ends a running item at its next checkpoint, and shows it as revoked (fault E06)."""
    batch = shop.poimen.dispatch([shop.until_cancelled.s(str(notes)), shop.nap.s(0.0)])
    eventually(notes.exists)
    flower.text(f"/api/task/revoke/{batch.id}.0", post=True)
    assert errors(batch) == {"0": "Cancelled"}
    assert settled(flower, batch, 2)[f"{batch.id}.0"]["state"] == "REVOKED"


def test_flower_terminates_an_item(shop: ModuleType, flower: Flower, notes: Path) -> None:
    """Flower's other button ends the process of an item that does not ask (promise D8)."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), "x", 60.0)])
    eventually(notes.exists)
    eventually(lambda: f"{batch.id}.0" in flower.tasks(batch.id))
    flower.text(f"/api/task/revoke/{batch.id}.0?terminate=true", post=True)
    assert errors(batch) == {"0": "Revoked"}
    assert settled(flower, batch, 1)[f"{batch.id}.0"]["state"] == "REVOKED"
    assert len(notes.read_text().splitlines()) == 1


def test_a_lost_process_leaves_nothing_started(shop: ModuleType, flower: Flower) -> None:
    """An item that is given up after its process died shows as failed, and its lane too (fault J05)."""
    batch = shop.poimen.dispatch([shop.dies_at_once.s()])
    assert errors(batch) == {"0": "WorkerLost"}
    row = settled(flower, batch, 1)[f"{batch.id}.0"]
    assert row["state"] == "FAILURE"
    assert row["exception"].startswith("WorkerLost(")
    query = (
        f"draw=1&start=0&length=10&search[value]={batch.id}&order[0][column]=0&columns[0][data]=name&order[0][dir]=asc"
    )
    eventually(
        lambda: {"STARTED"}.isdisjoint(task["state"] for task in flower.json(f"/tasks/datatable?{query}")["data"])
    )


def celery(env: dict[str, str], *args: str) -> str:
    """The output of a `celery` command."""
    done = nursery.run(["celery", "-A", APP, *args], env={**os.environ, **env, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_inspect_lists_running_items(shop: ModuleType, lanes: Workers, module_env: dict[str, str], notes: Path) -> None:
    """`celery inspect poimen_items` says which items a worker runs, since when, in which attempt and process."""
    work = [shop.marked.s(str(notes), str(i), 60.0) for i in range(2)]
    before = time.time()
    batch = shop.poimen.dispatch(work, batch_id="looked-at")
    eventually(lambda: notes.exists() and len(notes.read_text().splitlines()) == 2)
    try:
        said = json.loads(celery(module_env, "inspect", "--json", "poimen_items"))
        rows = sorted(said[lanes.all[0].name], key=lambda row: row["position"])
        assert [(row["batch"], row["item"], row["message_id"]) for row in rows] == [
            (batch.id, str(i), f"{batch.id}.{i}") for i in range(2)
        ]
        assert {row["activity"] for row in rows} == {shop.marked.name}
        assert {row["attempt"] for row in rows} == {1}
        assert {row["pid"] for row in rows} == {int(line.split()[-1]) for line in notes.read_text().splitlines()}
        assert {row["slot"] for row in rows} == {0, 1}
        assert all(row["since"].startswith(time.strftime("%Y-", time.gmtime(before))) for row in rows)
    finally:
        batch.cancel("seen", "me", terminate=True)
        batch.wait(timeout=20)


def test_celerys_own_commands_still_answer(shop: ModuleType, lanes: Workers) -> None:
    """`inspect` ping, stats, active, registered and our own answer within Celery's own second, also when idle."""
    inspect, name = shop.app.control.inspect(limit=1), lanes.all[0].name
    assert inspect.ping() == {name: {"ok": "pong"}}
    assert inspect.stats()[name]["pool"]["max-concurrency"] == 2
    assert "poimen.lane" in inspect.registered()[name]
    assert set(inspect.active() or {}) == {name}
    assert eventually(lambda: inspect._request("poimen_items") == {name: []})
