"""`poimen metrics` as a Prometheus server and a person meet it: real scrapes over HTTP of a real fleet."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse

from poimen_tasks.store.server import EmbeddedServer
from tests import nursery
from tests.acceptance.conftest import APP
from tests.acceptance.test_cli import Poimen, Running, clean_env, poimen, start  # noqa: F401 - fixtures
from tests.conftest import Workers, eventually

Told = dict[tuple[str, ...], float]


class Served:
    """`poimen metrics --listen` at work."""

    def __init__(self, running: Running) -> None:
        self.running = running
        eventually(lambda: running.text().startswith("{"))
        self.url: str = json.loads(running.text().splitlines()[0])["url"]

    def get(self, path: str = "/metrics", accept: str = "*/*", method: str = "GET") -> tuple[int, str, str]:
        """Status, content type and body."""
        place = self.url.removesuffix("/metrics") + path
        request = urllib.request.Request(place, headers={"Accept": accept}, method=method)  # noqa: S310 - our own
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:  # noqa: S310 - our own
                return reply.status, reply.headers["Content-Type"], reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    def scrape(self) -> Told:
        """Name and label values to number."""
        status, _, text = self.get()
        assert status == 200
        return {(s.name, *s.labels.values()): s.value for family in parse(text) for s in family.samples}


@pytest.fixture
def serve(start: Callable[..., Running]) -> Callable[..., Served]:  # noqa: F811 - the fixture
    """Start the command on a port that is free."""
    return lambda *words, env=None: Served(
        start("metrics", "--json", "--listen", "127.0.0.1:0", *words, **({"env": env} if env else {}))
    )


def counters(told: Told) -> Told:
    """What only grows."""
    return {name: value for name, value in told.items() if name[0].endswith("_total")}


def finished(told: Told) -> Told:
    """Outcomes, by task and status."""
    return {names[1:]: value for names, value in told.items() if names[0] == "poimen_items_finished_total"}


def test_a_fleet_that_is_killed(
    own_shop: ModuleType, workers: Workers, notes: Path, serve: Callable[..., Served]
) -> None:
    """While workers and their processes are killed no counter goes back, and at the end each item counts once."""
    first, second = workers.start_many(2, APP, concurrency=1)
    served, seen = serve("-A", APP), list[Told]()

    def look() -> Told:
        seen.append(served.scrape())
        return seen[-1]

    held = [own_shop.stubborn.s(str(notes), str(number)) for number in range(3)]
    work = [own_shop.nap.s(0.01) for _ in range(30)] + held
    batch = own_shop.poimen.dispatch(work, concurrency=2, on_complete=own_shop.noop.si(1))
    eventually(lambda: look()["poimen_items", "running"] == 2 and look()["poimen_items", "pending"] == 1)
    assert (seen[-1]["poimen_workers", "alive"], seen[-1]["poimen_slots",], seen[-1]["poimen_lanes",]) == (2, 2, 2)
    assert (seen[-1]["poimen_batches", "running"], seen[-1]["poimen_batches_open",]) == (1, 1)
    assert finished(seen[-1]) == {(f"{APP}.nap", "succeeded"): 30}
    first.kill_child()
    eventually(lambda: look()["poimen_lanes_lost_total",] == 1)
    second.destroy()
    eventually(lambda: look()["poimen_lanes_lost_total",] == 2)
    assert seen[-1]["poimen_items_finished_total", f"{APP}.nap", "succeeded"] == 30
    Path(f"{notes}.go").touch()
    eventually(lambda: look()["poimen_callbacks_finished_total", "succeeded"] == 1)
    for before, after in pairwise(seen):
        assert {name: (value, after[name]) for name, value in counters(before).items() if after[name] < value} == {}
    assert batch.status().succeeded == 33
    assert finished(look()) == {(f"{APP}.nap", "succeeded"): 30, (f"{APP}.stubborn", "succeeded"): 3}
    assert seen[-1]["poimen_batches_finished_total", "completed"] == 1
    assert {seen[-1][name] for name in (("poimen_batches_open",), ("poimen_callbacks_open",), ("poimen_lanes",))} == {0}
    assert served.running.stop(signal.SIGTERM) == 0


def test_what_is_served(own_shop: ModuleType, serve: Callable[..., Served], server: EmbeddedServer) -> None:
    """Both formats, a page for probes, nothing else; without an app; a signal ends it in order."""
    own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(3)), queue="gpu")
    served = serve()
    status, kind, text = served.get()
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    told = {(s.name, *s.labels.values()): s.value for family in parse(text) for s in family.samples}
    assert (told["poimen_up",], told["poimen_items", "pending"], told["poimen_batches_unserved",]) == (1, 3, 1)
    assert told["poimen_queue_tickets", "gpu"] == 1
    status, kind, text = served.get(accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert "poimen_up" in {family.name for family in open_metrics(text)}
    assert served.get("/-/healthy")[::2] == (200, "Healthy.\n")
    assert served.get("/metrics", method="HEAD")[::2] == (200, "")
    assert served.get("/else")[0] == 404
    assert served.get("/metrics", method="POST")[0] == 405
    taken = served.url.split("/")[2]
    refused = nursery.run(
        ["poimen_tasks.cli", "metrics", "--listen", taken], env=clean_env(POIMEN_REDIS_URL=server.url)
    )
    assert (refused.returncode, refused.stderr) == (1, f"error: cannot listen on {taken}: Address already in use\n")
    with socket.create_connection(tuple(taken.split(":"))):  # somebody who connects and says nothing holds nobody up
        assert served.get("/-/healthy")[0] == 200
    assert served.running.stop(signal.SIGINT) == 0


def test_a_server_that_is_gone(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """While the store is away `poimen_up` is 0 and this process is healthy; afterwards it is 1 again by itself."""
    with EmbeddedServer(tmp_path / "own") as own:
        served = serve(env={"POIMEN_REDIS_URL": own.url})
        assert served.scrape()["poimen_up",] == 1
        own.stop()
        assert served.scrape() == {
            ("poimen_up",): 0, ("poimen_build_info", _version()): 1, ("poimen_health", "server"): 2,
        }  # fmt: skip
        assert served.get("/-/healthy")[0] == 200
        own.start()
        eventually(lambda: served.scrape()["poimen_up",] == 1)


def _version() -> str:
    from poimen_tasks import __version__

    return __version__


def test_printed_once(own_shop: ModuleType, poimen: Poimen, worker_env: dict[str, str]) -> None:  # noqa: F811
    """Without --listen it prints one scrape, as text or JSON; with 1 when the store does not answer."""
    own_shop.poimen.dispatch(own_shop.poimen.map(own_shop.noop, range(3)))
    done = poimen("metrics", "-A", APP)
    assert (done.returncode, done.stderr) == (0, "")
    assert any(family.name == "poimen_items" for family in parse(done.stdout))
    rows = json.loads(poimen("metrics", "--json").stdout)
    assert rows["up"] is True
    assert {"name": "poimen_items", "type": "gauge", "labels": {"state": "pending"}, "value": 3.0} in rows["samples"]
    away = worker_env | {"POIMEN_REDIS_URL": "redis://:secret@127.0.0.1:1/0"}
    done = poimen("metrics", env=away)
    assert (done.returncode, "poimen_up 0.0" in done.stdout.splitlines()) == (1, True)
    assert done.stderr == "the store, Redis at redis://:***@127.0.0.1:1/0, cannot be read; `poimen health` says why\n"
    assert json.loads(poimen("metrics", "--json", env=away).stdout)["up"] is False
