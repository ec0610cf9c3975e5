"""`poimen flower`: a real Flower process with our pages, a real worker, asked over HTTP."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
from collections.abc import Iterator
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil
import pytest
import redis
from flower.urls import handlers
from prometheus_client.parser import text_string_to_metric_families
from tornado.web import RequestHandler

from poimen_tasks import CacheKey
from poimen_tasks.flower.pages import Asked, audit
from tests import nursery
from tests.acceptance.conftest import APP
from tests.conftest import ROOT, Workers, eventually

SECRET = f"hush{secrets.token_hex(6)}"
TABS = ["Batches", "Pauses", "Cache", "Audit log", "Health"]


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str


class Seen(HTMLParser):
    """A page as a person sees it: texts, links, and what its markup must not have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: dict[str, str] = {}
        self.forbidden: list[str] = []
        self._href: str | None = None
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A link, or what may not be there."""
        given = dict(attrs)
        self._script = tag == "script"
        self._href = given.get("href") if tag == "a" else self._href
        self.forbidden += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if tag == "form" and given.get("method") != "get":
            self.forbidden.append("form that posts")

    def handle_endtag(self, tag: str) -> None:
        """The end of a link."""
        if tag == "a":
            self._href = None

    def handle_data(self, data: str) -> None:
        """A text."""
        if text := " ".join(data.split()):
            if self._script:
                self.forbidden.append(f"script: {text[:40]}")
            self.texts.append(text)
            if self._href is not None:
                self.links[text] = self._href


class Flower:
    """One `poimen flower`."""

    def __init__(self, env: dict[str, str], directory: Path, *words: str) -> None:
        self.log = directory / f"flower-{secrets.token_hex(3)}.log"
        said = directory / f"{self.log.stem}.json"
        with self.log.open("wb") as out, said.open("wb") as spoken:
            self.process = nursery.start(
                ["poimen_tasks.cli", "flower", "-A", APP, "--port=0", "--json", *words],
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env},
                stdout=spoken,
                stderr=out,
            )
        eventually(lambda: said.read_text().endswith("\n") or self.process.poll() is not None, 40)
        assert self.process.poll() is None, self.log.read_text()
        self.told = json.loads(said.read_text())
        self.port = int(self.told["address"].split(":")[2].split("/")[0])

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """An answer, whatever its status."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read().decode())
        finally:
            connection.close()

    def page(self, path: str, **headers: str) -> Seen:
        """A page that is there."""
        reply = self.ask(path, **headers)
        assert reply.status == 200, (path, reply)
        return Seen(reply.text)

    def json(self, path: str) -> Any:
        """What a twin says."""
        reply = self.ask(path)
        assert reply.status == 200, (path, reply)
        return json.loads(reply.text)

    def stop(self) -> int:
        """End it in order."""
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(20))


def with_password(env: dict[str, str]) -> dict[str, str]:
    """The same server, asked for with a password, which it takes as any other."""
    return {
        name: value.replace("://", f"://default:{SECRET}@") if name.endswith("_URL") else value
        for name, value in env.items()
    }


@pytest.fixture(scope="module")
def lanes(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """The module's worker, which tells of itself with the password in its settings."""
    group = Workers(tmp_path_factory.mktemp("workers"), with_password(module_env))
    group.start(APP, concurrency=2)
    yield group
    group.destroy_all()


@pytest.fixture(scope="module")
def flower(lanes: Workers, module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """One beside the module's worker, as it is by default; it ends by itself when it is told to."""
    running = Flower(with_password(module_env), tmp_path_factory.mktemp("flower"))
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()


@pytest.fixture(scope="module")
def filled(shop: ModuleType, lanes: Workers) -> ModuleType:
    """A batch that failed in part, one that nobody serves, a pause, a cached value, an event."""
    poimen = shop.poimen
    poimen.pause(workflow="crawl", reason="a <b>bold</b> reason", actor="ada", expires=3600)
    poimen.dispatch((shop.add.s(i, 1) for i in range(5)), workflow="crawl", stage="fetch", batch_id="held")
    poimen.dispatch((shop.add.s(i, 1) for i in range(5)), queue="gpu", batch_id="unserved", actor="ada")
    poimen.cache.put(CacheKey("shop.summarise", "T1", "0" * 64, "m1"), {"words": 7}, ttl=3600)
    poimen.audit.planner_decision(workflow="nightly", task="T1.1", action="split <i>it</i>", reasoning="too large")
    poimen.dispatch(shop.poimen.map(shop.boom, [f"cannot reach redis://u:{SECRET}@host/<0>"] * 3), batch_id="broken")
    mixed = poimen.dispatch(poimen.map(shop.odd_fails, range(120)), workflow="nightly", stage="check", batch_id="mixed")
    mixed.wait(timeout=30)
    poimen.batch("broken").wait(timeout=30)
    return shop


# ------------------------------------------------------------------------------------------- the pages
def test_batches(filled: ModuleType, flower: Flower) -> None:
    """The first page has open batches with progress, what they wait for, and their workflows; others when asked for."""
    page = flower.page("/poimen")
    assert page.links["held"] == "/poimen/batches/held"
    assert {"0 of 5 (0 %)", "paused", "a resume of w:crawl", "a worker on queue gpu"} <= set(page.texts)
    assert "mixed" not in page.links
    every = flower.page("/poimen?state=all")
    assert every.links["nightly"] == "/poimen?workflow=nightly&state=all"
    assert "120 of 120 (100 %)" in every.texts
    found = flower.json("/poimen/api/batches?state=failed&workflow=nightly")
    assert [(one["batch_id"], one["failed"], one["finished"]) for one in found["batches"]] == [("mixed", 60, 120)]
    assert found["workers"] == 1


def test_every_page_is_in_flower(filled: ModuleType, flower: Flower) -> None:
    """Our tab is in the bar of Flower's own pages, ours have its bar, and nothing that their policy forbids."""
    assert flower.page("/workers").links["Poimen"] == "/poimen"
    for path in ("", "/pauses", "/cache", "/audit", "/health", "/batches/mixed"):
        reply = flower.ask(f"/poimen{path}")
        page = Seen(reply.text)
        assert {"Workers", "Tasks", "Broker", "Poimen", *TABS} <= page.links.keys()
        assert page.forbidden == []
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        twin = re.search(r'data-twin="([^"]+)"', reply.text)[1].replace("&amp;", "&")
        assert flower.json(twin)["blocks"]


def test_one_batch(filled: ModuleType, flower: Flower) -> None:
    """A batch's page has its numbers, some errors, its outcomes a page at a time, and what pauses it; no result."""
    page = flower.page("/poimen/batches/mixed")
    assert {"60 succeeded, 60 failed", "ValueError: 119 is odd", "Next"} <= set(page.texts)
    seen = list[str]()
    found = flower.json("/poimen/api/batches/mixed")
    while True:
        seen += [one["item_id"] for one in found["outcomes"]]
        assert "result" not in found["outcomes"][0]
        if found["next"] is None:
            break
        found = flower.json(f"/poimen/api/batches/mixed?after={found['next']}")
    assert sorted(seen, key=int) == [str(number) for number in range(120)]
    assert {"workflow crawl", "a <b>bold</b> reason"} <= set(flower.page("/poimen/batches/held").texts)
    assert any("queue gpu" in text for text in flower.page("/poimen/batches/unserved").texts)


def test_pauses_cache_audit_health(filled: ModuleType, flower: Flower) -> None:
    """Each shows what the store has, with the words of others as text."""
    (pause,) = flower.json("/poimen/api/pauses")["pauses"]
    assert (pause["covers"], pause["actor"], pause["held"]) == ("w:crawl", "ada", 1)
    assert "a <b>bold</b> reason" in flower.page("/poimen/pauses").texts
    cache = flower.json("/poimen/api/cache")
    assert cache["stats"]["size"] == 1
    assert "shop.summarise" in flower.page("/poimen/cache").texts
    events = flower.json("/poimen/api/audit?workflow=nightly&type=planner_decision")
    assert [(one["action"], one["task_id"]) for one in events["events"]] == [("split <i>it</i>", "T1.1")]
    assert events["source"] == "stream"
    page = flower.page("/poimen/audit?type=scope.paused")
    assert any(text.startswith("From the stream in Redis alone") for text in page.texts)
    assert "scope.paused" in page.links
    first = flower.json("/poimen/api/audit")
    older = flower.json(f"/poimen/api/audit?after={first['next']}")
    assert not {one["event_id"] for one in first["events"]} & {one["event_id"] for one in older["events"]}
    assert flower.json("/poimen/api/health")["ok"]
    assert "Nothing is wrong." in flower.page("/poimen/health").texts


def test_a_long_stream_is_looked_through_in_parts(filled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a filter a page looks at a bounded part of a long stream, and all pages together find what a query finds."""
    monkeypatch.setattr(audit, "MOST_SCANNED", 40)
    monkeypatch.setattr(audit, "_PORTION", 20)
    wanted = [event.event_id for event in filled.poimen.audit.query(type="batch.opened", newest_first=True)]
    found, after, scanned = list[str](), "", 0
    while True:
        page = audit.read(filled.poimen, Asked(query={"type": "batch.opened", "after": after}))
        found += [one["event_id"] for one in page["events"]]
        assert page["scanned"] <= 40
        scanned += page["scanned"]
        if page["next"] is None:
            break
        after = page["next"]
    assert len(wanted) >= 4
    assert found == wanted
    assert scanned <= filled.poimen.audit.count()


def test_state_needs_no_events(filled: ModuleType, flower: Flower) -> None:
    """Of what Flower hears only a sample of in events our pages have the true numbers (fault J05)."""
    batch = filled.poimen.dispatch(filled.poimen.map(filled.noop, range(2_000)), workflow="nightly")
    batch.wait(timeout=30)
    assert flower.json(f"/poimen/api/batches/{batch.id}")["batch"]["succeeded"] == 2_000
    query = "draw=1&start=0&length=1&order[0][column]=0&columns[0][data]=name&order[0][dir]=asc"
    assert flower.json(f"/tasks/datatable?{query}&search[value]={batch.id}")["recordsFiltered"] < 2_000


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/batches/nope", 404, "not known"),
        ("/batches/a%20b", 400, "batch id"),
        ("/batches/..%2f..%2fx", 400, "batch id"),
        ("/batches/%3Cscript%3E", 400, "batch id"),
        ("/batches/mixed?after=-1", 400, "after"),
        ("?state=no", 400, "state"),
        ("?page=0", 400, "page"),
        ("?workflow=a+b", 400, "workflow"),
        ("/audit?type=a%20b", 400, "type"),
        ("/audit?after=x", 400, "after"),
        ("/cache?after=nan", 400, "after"),
    ],
)
def test_bad_addresses(filled: ModuleType, flower: Flower, path: str, status: int, words: str) -> None:
    """What is no id, number or word that a page knows is said, on the page and in its twin; no traceback."""
    place = path.replace("?", "/batches?", 1) if path.startswith("?") else path
    for asked in (f"/poimen{path}", f"/poimen/api{place}"):
        reply = flower.ask(asked)
        assert reply.status == status, (asked, reply.text)
        assert words in reply.text
        assert "Traceback" not in reply.text
    assert json.loads(flower.ask(f"/poimen/api{place}").text)["error"]["message"]


# ------------------------------------------------------------------------------------------- safe defaults
def state_changing() -> Iterator[tuple[str, str]]:
    """Method and path of every route of this version of Flower that takes more than reads."""
    for route in handlers:
        pattern, kind = (route.regex.pattern, route.handler_class) if hasattr(route, "regex") else route[:2]
        for method in ("post", "put", "delete", "patch"):
            if getattr(kind, method) is not getattr(RequestHandler, method):
                yield method.upper(), re.sub(r"\([^)]*\)", "x", pattern.rstrip("$?")).replace(".*", "/any")


def test_nothing_can_be_changed(filled: ModuleType, flower: Flower, lanes: Workers) -> None:
    """Every route of Flower's own table that is no read answers 403, whoever asks (fault J01)."""
    routes = [(method, path) for method, path in state_changing() if path != "/tasks/datatable"]
    assert {"/api/worker/shutdown/x", "/api/task/revoke/x", "/api/task/async-apply/x"} <= {path for _, path in routes}
    answers = {(method, path): flower.ask(path, method).status for method, path in routes}
    assert set(answers.values()) == {403}, answers
    assert flower.ask(f"/api/worker/shutdown/{lanes.all[0].name}", "POST").status == 403
    page = flower.ask(f"/worker/{lanes.all[0].name}")
    assert page.status == 200
    assert "worker-shutdown" not in page.text
    assert flower.told["read_only"]


def test_other_sites_read_nothing(filled: ModuleType, flower: Flower) -> None:
    """No page of another site may read or frame an answer, or lead its own name here (fault J01)."""
    reply = flower.ask("/healthcheck", Origin="http://evil.example")
    assert not [name for name in reply.headers if name.lower().startswith("access-control-")]
    assert reply.headers["X-Frame-Options"] == "DENY"
    assert flower.ask("/poimen", Host="evil.example").status == 403
    assert flower.ask("/api/tasks").status == 401


def test_no_password_is_shown(filled: ModuleType, flower: Flower, lanes: Workers) -> None:
    """The server's password is on no page, in no twin, not in the log, and not among the arguments (fault J01)."""
    worker = lanes.all[0].name
    paths = ["/broker", "/workers", "/tasks", "/metrics", f"/worker/{worker}", "/poimen/health", "/poimen/api/health",
             "/poimen/batches/broken", "/poimen/api/batches/broken", "/poimen", "/poimen/audit"]  # fmt: skip
    texts = {path: flower.ask(path).text for path in paths}
    assert "redis://default:***@127.0.0.1" in texts["/broker"]
    assert "redis://u:***@host" in texts["/poimen/batches/broken"]
    assert not [path for path, text in texts.items() if SECRET in text]
    assert SECRET not in flower.log.read_text()
    assert SECRET not in json.dumps(flower.told)


def test_workers_are_left_in_peace(
    filled: ModuleType, flower: Flower, lanes: Workers, module_env: dict[str, str]
) -> None:
    """Pages that are opened again and again ask workers once in a while, and no queue for replies stays (fault J08)."""
    client = redis.Redis.from_url(module_env["POIMEN_REDIS_URL"])
    replies = "_kombu.binding.reply.celery.pidbox"
    eventually(lambda: client.scard(replies) == 0)
    before = {key for key in client.scan_iter(count=1000) if not key.startswith(b"{")}
    published = client.info("commandstats")["cmdstat_publish"]["calls"]
    for _ in range(15):
        assert flower.ask(f"/worker/{lanes.all[0].name}").status == 200
    asked = client.info("commandstats")["cmdstat_publish"]["calls"] - published
    eventually(lambda: client.scard(replies) == 0)
    assert {key for key in client.scan_iter(count=1000) if not key.startswith(b"{")} <= before
    client.close()
    assert asked < 15 * 8  # Flower's own asks eight questions for each page


def test_metrics_of_both(filled: ModuleType, flower: Flower) -> None:
    """One scrape has what the store knows and what Flower counts from events."""
    found = {family.name for family in text_string_to_metric_families(flower.ask("/metrics").text)}
    assert {"poimen_up", "poimen_items_finished", "flower_worker_online"} <= found


def test_with_a_login(
    filled: ModuleType, flower: Flower, module_env: dict[str, str], tmp_path: Path, lanes: Workers
) -> None:
    """With a login all of it needs that, /metrics too; its password is not among the arguments; controls can be opened.

    A password on the command line is taken off it (fault J01). The event queue goes with its Flower (fault J08).
    """
    password = f"pass{secrets.token_hex(6)}"
    guarded = Flower(module_env, tmp_path, f"--basic-auth=ada:{password}", "--allow-control", "--url-prefix=in/here")
    try:
        login = {"Authorization": f"Basic {base64.b64encode(f'ada:{password}'.encode()).decode()}"}
        for path in ("/poimen", "/poimen/api/batches", "/metrics", "/workers", "/api/tasks", "/poimen/batches/mixed"):
            assert guarded.ask(f"/in/here{path}").status == 401
            assert guarded.ask(f"/in/here{path}", **login).status == 200, path
        assert guarded.ask("/in/here/api/task/revoke/nothing", "POST").status == 401
        assert guarded.ask("/in/here/api/task/revoke/nothing", "POST", **login).status == 200
        page = guarded.page("/in/here/poimen?state=all", **login)
        assert page.links["mixed"] == "/in/here/poimen/batches/mixed"
        assert password not in " ".join(psutil.Process(guarded.process.pid).cmdline())
        assert password not in guarded.log.read_text()
    finally:
        code = guarded.stop()
    assert code == 0
    assert "Traceback" not in guarded.log.read_text()


def test_refused_before_it_listens(module_env: dict[str, str], flower: Flower) -> None:
    """An open address, a taken port and an unknown option are one line each and exit code 1 (fault J01)."""
    for words, said in (
        (["--address=0.0.0.0"], "loopback"),
        ([f"--port={flower.port}"], f"cannot listen on 127.0.0.1:{flower.port}"),
        (["--no-such=1"], "no such option"),
    ):
        done = nursery.run(
            ["poimen_tasks.cli", "flower", "-A", APP, *words], env={**os.environ, "PYTHONPATH": str(ROOT), **module_env}
        )
        assert done.returncode == 1
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_the_store_is_away(tmp_path: Path, module_env: dict[str, str]) -> None:
    """A store that does not answer is said on the page, with 503 and without a traceback; Flower lives on."""
    gone = {**module_env, "POIMEN_REDIS_URL": "redis://127.0.0.1:1/0", "POIMEN_CONNECT_TIMEOUT": "0.2"}
    alone = Flower(gone, tmp_path)
    try:
        for path in ("", "/batches/mixed", "/pauses", "/cache", "/audit"):
            reply = alone.ask(f"/poimen{path}")
            assert reply.status == 503
            assert "does not answer" in reply.text
            assert "Traceback" not in reply.text
        assert json.loads(alone.ask("/poimen/api/pauses").text)["error"]["type"] == "StoreUnavailable"
        assert "error" in alone.page("/poimen/health").texts
        assert alone.ask("/healthcheck").text == "OK"
        assert "poimen_up 0.0" in alone.ask("/metrics").text.splitlines()
    finally:
        alone.process.kill()
        alone.process.wait()
