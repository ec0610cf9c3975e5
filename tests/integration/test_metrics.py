"""The collector on a real server: what it tells, how often it asks, and what it does when the store is not well."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgpack
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse

from poimen_tasks import Poimen
from poimen_tasks.metrics import CATALOGUE, PoimenCollector, scrape
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store, metric_reads
from poimen_tasks.store.server import EmbeddedServer
from tests.conftest import eventually
from tests.integration import lanes
from tests.integration.lanes import begin, open_batch, part

Tell = Callable[..., dict[tuple[str, ...], float]]


@pytest.fixture
def poimen(settings: Settings, redis_client: object) -> Iterator[Poimen]:
    """On the test's own namespace."""
    made = Poimen("shop", settings=settings)
    yield made
    made.close()
    made.celery.close()


@pytest.fixture
def store(poimen: Poimen) -> Store:
    """Its store."""
    return poimen.store


def samples(poimen: Poimen) -> dict[tuple[str, ...], float]:
    """Name and label values to number, of one scrape in the text format, read as Prometheus reads it."""
    families = list(parse(scrape(PoimenCollector(poimen)).text()[0].decode()))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


@pytest.fixture
def tell(poimen: Poimen) -> Tell:
    """Scrape; returns the samples of a metric by the values of its labels."""

    def run(name: str) -> dict[tuple[str, ...], float]:
        return {
            labels: value
            for (found, *labels), value in samples(poimen).items()
            if found == name
            for labels in [tuple(labels)]
        }

    return run


# ------------------------------------------------------------------------------------------- what is told
def test_everything_has_its_place(poimen: Poimen, store: Store) -> None:
    """Both formats parse, and what is told is in the catalogue, with its type, its labels and its meaning."""
    lanes.offer(store, 2)
    lane = begin(store, open_batch(store, count=3, parts=[part(cached=True)], keys=["x", "y", "z"])[0])
    lane.claim(retry={next(iter(lane.holds)): 60.0})
    lane.claim(ok=list(lane.holds))
    once = scrape(PoimenCollector(poimen))
    families = {family.name: family for family in parse(once.text()[0].decode())}
    wanted = {one.name.removesuffix("_total") if one.kind == "counter" else one.name: one for one in CATALOGUE}
    assert set(families) == set(wanted)
    for name, definition in wanted.items():
        family = families[name]
        assert family.type == ("gauge" if definition.kind == "info" else definition.kind)
        assert family.documentation == definition.help
        assert {tuple(sample.labels) for sample in family.samples} == {definition.labels}, name
        assert {sample.name for sample in family.samples} == {definition.name}
    text, kind = once.text("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert len(list(open_metrics(text.decode()))) == len(CATALOGUE)
    assert once.text("application/openmetrics-text; version=latest") == once.text()


def test_batches_and_items(store: Store, tell: Tell) -> None:
    """Open batches by state, their items by state, what ended; the age of the oldest."""
    lanes.offer(store, 4)
    lanes.run_all(store, open_batch(store, "over", 3))
    open_batch(store, "waits", 5, parts=[part("unserved")])
    open_batch(store, "held", 2, delayed={1: 9e9})
    store.pauses.pause_scope("b:held", reason="", actor="me")
    lane = begin(store, open_batch(store, "runs", 4)[0], 2)
    open_batch(store, "gone", 1, seal=False)
    store.client.redis.hset(store.keys.record("gone"), "producer", 1.0)
    assert tell("poimen_batches") == {("open",): 1, ("running",): 1, ("paused",): 1, ("stalled",): 1}
    running = len(lane.holds)
    assert tell("poimen_items") == {
        ("pending",): 5 + 1 + 4 - running + 1,
        ("delayed",): 1,
        ("waiting",): 0,
        ("running",): running,
    }
    assert tell("poimen_batches_open") == tell("poimen_batches_examined") == {(): 4}
    assert tell("poimen_batches_kept") == {(): 5}
    assert tell("poimen_batches_unserved") == {(): 1}
    assert tell("poimen_items_finished_total") == {("acts.work", "succeeded"): 3}
    assert tell("poimen_batches_finished_total") == {("completed",): 1, ("failed",): 0, ("cancelled",): 0}
    store.client.redis.zadd(store.keys.build("open"), {"waits": store.reads.now() - 500})
    assert tell("poimen_oldest_batch_seconds")[()] >= 500
    assert tell("poimen_lanes") == {(): 1}


def test_fleet(store: Store, tell: Tell) -> None:
    """Workers that live, leave and are silent; slots once, though a worker offers them on several queues."""
    for name in ("w1", "w2", "w3"):
        lanes.offer(store, 4, "q1", "q2", worker=name)
    store.scripts.drain_workers(["w2"], actor="me", reason="")
    key = store.keys.build("workers")
    old = store.client.redis.hget(key, "w3")
    assert old is not None
    store.client.redis.hset(key, "w4", _silent(old))
    assert tell("poimen_workers") == {("alive",): 2, ("leaving",): 1, ("silent",): 1}
    assert tell("poimen_slots") == {(): 12}
    assert tell("poimen_queue_slots") == {("q1",): 12, ("q2",): 12}
    assert tell("poimen_keeper_silence_seconds")[()] < 60


def _silent(entry: bytes) -> bytes:
    """A worker's entry as it was a minute ago."""
    row = msgpack.unpackb(entry, raw=True)
    return bytes(msgpack.packb({**row, b"t": row[b"t"] - 60}))


def test_pauses(store: Store, tell: Tell) -> None:
    """Paused scopes by their kind, and how often anything was paused and resumed."""
    for scope in ("*", "w:w", "w:v", "b:b", "q:q", "a:acts.work"):
        store.pauses.pause_scope(scope, reason="", actor="me")
    store.pauses.resume_scope("w:v", reason="", actor="me")
    assert tell("poimen_paused_scopes") == {
        ("everything",): 1, ("workflow",): 1, ("batch",): 1, ("queue",): 1, ("activity",): 1, ("unknown",): 0,
    }  # fmt: skip
    assert (tell("poimen_pauses_total"), tell("poimen_resumes_total")) == ({(): 6}, {(): 1})


def test_cache(store: Store, poimen: Poimen, tell: Tell) -> None:
    """Requests by task and result, what hits saved, how full it is: the numbers of `cache.stats`."""
    store.cache.cache_put([lanes.entry("x", seconds=2.5), lanes.entry("y", activity="acts.other")])
    lanes.look(store, "x", "x", "no")
    assert tell("poimen_cache_requests_total") == {
        ("acts.work", "hit"): 2, ("acts.work", "miss"): 1, ("acts.work", "coalesced"): 0,
        ("acts.other", "hit"): 0, ("acts.other", "miss"): 0, ("acts.other", "coalesced"): 0,
    }  # fmt: skip
    stats = poimen.cache.stats()
    assert tell("poimen_cache_saved_seconds_total")[("acts.work",)] == stats.seconds_saved == 5.0
    assert tell("poimen_cache_entries") == {(): stats.size}
    assert tell("poimen_cache_bytes") == {(): stats.bytes}
    assert tell("poimen_cache_limit_bytes") == {(): stats.max_bytes}
    store.cache.cache_invalidate(scopes=["*"])
    assert tell("poimen_cache_removed_total")[("invalidated",)] == 2


def test_audit(store: Store, tell: Tell) -> None:
    """The stream, and the sealer: none, alive, stopped; the lag only where somebody is to seal."""
    open_batch(store, count=1)
    assert tell("poimen_audit_sealer") == {("none",): 1, ("alive",): 0, ("stopped",): 0}
    assert tell("poimen_audit_entries") == tell("poimen_audit_added_total") == {(): len(lanes.audit(store))}
    assert tell("poimen_audit_lag_seconds") == {(): 0}
    store.audit.register_sealer("token", who="me", home="here", lease=60.0)
    assert tell("poimen_audit_sealer")[("alive",)] == 1
    assert 0 < tell("poimen_audit_lag_seconds")[()] < 60
    store.client.redis.hset(store.keys.build("audit_meta"), mapping={"vanished": 3, "sealed": 7})
    assert (tell("poimen_audit_vanished_total"), tell("poimen_audit_sealed_total")) == ({(): 3}, {(): 7})
    store.audit.leave_sealer("token")
    assert tell("poimen_audit_sealer") == {("none",): 0, ("alive",): 0, ("stopped",): 1}


def test_health(store: Store, tell: Tell) -> None:
    """The checks of `poimen health`, each by its worst finding."""
    assert tell("poimen_health")[("workers",)] == 1
    open_batch(store, count=1)
    found = tell("poimen_health")
    assert found[("workers",)] == 2
    assert set(found) == {
        (name,) for name in ("server", "eviction", "persistence", "memory", "access", "layout", "workers", "audit")
    }


# ------------------------------------------------------------------------------------------- how much it asks
def round_trips(poimen: Poimen, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of one scrape."""
    client, made = poimen.store.client, []
    read = client.read
    poimen.store.reads.now()  # the server's clock is asked for now and then only

    def counted(*args: object, **options: object) -> object:
        made.append(1)
        return read(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(client, "read", counted)
        assert samples(poimen)["poimen_up",] == 1
    return len(made)


def test_constant_round_trips(poimen: Poimen, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape makes as many round trips with 600 batches as with one, and at most 20; one more while one is paused."""
    lanes.run_all(store, open_batch(store, "first", 1, parts=[part(cached=True)], keys=["x"]))
    open_batch(store, "second", 1)
    few = round_trips(poimen, monkeypatch)
    for number in range(600):
        open_batch(store, f"b{number}", number % 2)  # every other one is over at once
    assert round_trips(poimen, monkeypatch) == few
    store.pauses.pause_scope("w:w", reason="", actor="me")
    assert round_trips(poimen, monkeypatch) == few + 1 <= 20


def test_a_page_of_batches(store: Store, tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more open batches than are examined the oldest are, and how many is told; all are counted."""
    monkeypatch.setattr(metric_reads, "MOST_BATCHES", 4)
    for number in range(7):
        open_batch(store, f"b{number}", number)
    assert (tell("poimen_batches_open"), tell("poimen_batches_examined")) == ({(): 6}, {(): 4})
    assert tell("poimen_items")[("pending",)] == 1 + 2 + 3 + 4


def test_labels_are_bounded(store: Store, tell: Tell) -> None:
    """Of queues and cached tasks the first hundred have their name, the others add up; nothing is lost (fault J09)."""
    redis, keys = store.client.redis, store.keys
    redis.hset(keys.build("queues"), mapping={f"t:tenant-{number:04}": 2 for number in range(300)})
    redis.hset(keys.build("queues"), mapping={f"l:unused-{number}": 0 for number in range(300)})
    for number in range(120):
        redis.hset(keys.build("cache_stats", f"acts.n{number:03}"), "hits", 1)
        redis.sadd(keys.build("cache_activities"), f"acts.n{number:03}")
    queues, hits = tell("poimen_queue_tickets"), tell("poimen_cache_requests_total")
    assert (len(queues), queues[("tenant-0099",)], queues[("other",)]) == (101, 2, 400)
    assert (hits[("acts.n099", "hit")], hits[("other", "hit")], len(hits)) == (1, 20, 303)


def test_strange_names(store: Store, tell: Tell) -> None:
    """A task may be called `other`, or have a tab, a quote or a line's end in its name: no sample stands twice."""
    name = 'a\t"b"\n\\c'
    fields = {f"i\tok\t{name}": 1, f"r\t{name}": 2, "i\tok\tother": 4, "i\tok\t": 8, "r\t": 16, "z\tlater": 32}
    store.client.redis.hset(store.keys.build("totals"), mapping=fields)
    assert tell("poimen_items_finished_total") == {(name, "succeeded"): 1, ("other", "succeeded"): 12}
    assert tell("poimen_items_retried_total") == {(name,): 2, ("other",): 16}


def test_names_are_not_told(poimen: Poimen, store: Store) -> None:
    """No batch, workflow, stage, item or worker has its name in what is told (fault J09)."""
    lanes.offer(store, 2, worker="secretworker")
    open_batch(store, "secretbatch", 2, ids=["secretitem", "secrettoo"], callbacks=["success"])
    store.pauses.pause_scope("w:secretflow", reason="secretreason", actor="secretactor")
    assert b"secret" not in scrape(PoimenCollector(poimen)).text()[0]


# ------------------------------------------------------------------------------------------- when all is not well
def test_registering_asks_nothing(tmp_path: object, namespace: str) -> None:
    """A registry learns the names without a server, and refuses the same names twice."""
    poimen = Poimen("shop", redis_url="redis://127.0.0.1:1/0", namespace=namespace)
    registry = CollectorRegistry()
    registry.register(PoimenCollector(poimen))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(PoimenCollector(poimen))
    assert registry.get_sample_value("poimen_up") == 0
    assert registry.get_sample_value("poimen_health", {"check": "server"}) == 2
    assert registry.get_sample_value("poimen_workers", {"state": "alive"}) is None
    poimen.celery.close()


def test_a_server_that_hangs(tmp_path, namespace: str) -> None:
    """A frozen server ends a scrape within the socket's timeout, with `poimen_up` 0; when it is back all is told."""
    with EmbeddedServer(tmp_path / "own") as server:
        poimen = Poimen("shop", redis_url=server.url, namespace=namespace, connect_timeout=0.4, socket_timeout=0.2)
        collector = PoimenCollector(poimen)
        assert scrape(collector).up
        server.pause()
        try:
            rows = {row["name"]: row["value"] for row in scrape(collector).rows()}
        finally:
            server.resume()
        assert rows == {"poimen_up": 0, "poimen_build_info": 1, "poimen_health": 2}
        assert scrape(collector).up
        poimen.close()
        poimen.celery.close()


def test_another_layout(poimen: Poimen, store: Store) -> None:
    """Data of another layout is not read as if it were ours: `poimen_up` is 0, and health says why."""
    store.client.redis.set(store.keys.build("layout"), "999")
    found = samples(poimen)
    assert (found["poimen_up",], found["poimen_health", "layout"]) == (0, 2)
    assert ("poimen_batches_open",) not in found


def test_somebody_wrote_there(poimen: Poimen, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Where somebody put another type of key, or text in place of a number, a scrape is answered: `poimen_up` is 0."""
    redis, totals, clock = store.client.redis, store.keys.build("totals"), store.keys.build("clock")
    redis.set(totals, "text")
    assert samples(poimen)["poimen_up",] == 0
    redis.delete(totals)
    for key, field in ((totals, "i\tok\tacts.a"), (clock, "tick"), (store.keys.build("queues"), "t:q")):
        redis.hset(key, field, "text")
        found = samples(poimen)
        assert (found["poimen_up",], found["poimen_health", "server"]) == (0, 0)
        assert ("poimen_lanes",) not in found
        assert "what the store holds cannot be told: ValueError" in caplog.text
        caplog.clear()
        redis.delete(key)
    assert samples(poimen)["poimen_up",] == 1


def test_scrapes_at_once(poimen: Poimen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who scrapes while another one reads is told what that finds: where the store hangs none waits for the others."""
    asked, waiting, may_go_on = list[int](), list[int](), threading.Event()

    class Waited(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            waiting.append(1)
            return super().result(timeout)

    def ping(_reads: object) -> None:
        asked.append(1)
        assert may_go_on.wait(20)

    monkeypatch.setattr("poimen_tasks.metrics.collector.Future", Waited)
    monkeypatch.setattr(metric_reads.MetricReads, "ping", ping)
    collector = PoimenCollector(poimen)
    with ThreadPoolExecutor(4) as pool:
        scrapes = [pool.submit(scrape, collector) for _ in range(4)]
        eventually(lambda: len(waiting) == 3)
        may_go_on.set()
        assert [one.result().up for one in scrapes] == [True] * 4
    assert len(asked) == 1
    assert scrape(collector).up
    assert len(asked) == 2


def test_nothing_is_changed(poimen: Poimen, store: Store) -> None:
    """A scrape writes nothing."""
    lanes.offer(store, 2)
    begin(store, open_batch(store, count=3, parts=[part(cached=True)], keys=["x", "y", "z"])[0])
    before = lanes.snapshot(store)
    assert samples(poimen)["poimen_up",] == 1
    assert lanes.snapshot(store) == before
