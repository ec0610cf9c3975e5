"""Sentry and OpenTelemetry, the real ones, in a real worker: what they would send is kept in files."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.acceptance.projects import HERE, path_to
from tests.conftest import Workers, eventually

ORDERS = ("sentry first", "sentry last")
ITEMS = {"traced.work": 40, "traced.bad": 1, "traced.called": 1, "traced.again": 2, "traced.done": 1}


@dataclass
class Traced:
    """What the producer said, and what was kept of the worker's traces."""

    told: dict[str, Any]
    directory: Path

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What one of the two kept."""
        path = self.directory / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def sentry(self, kind: str) -> list[dict[str, Any]]:
        """Sentry's payloads of one kind."""
        return [line["payload"] for line in self.lines("sentry") if line["kind"] == kind]

    def spans(self) -> list[dict[str, Any]]:
        """OpenTelemetry's spans of runs of items."""
        return [line for line in self.lines("spans") if line["name"].removeprefix("run/") in ITEMS]


@pytest.fixture(scope="module")
def runs(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Traced]]:
    """A worker and a producer for each order in which Sentry and Poimen are set up."""
    group = Workers(tmp_path_factory.mktemp("workers"), module_env)
    envs = {}
    for order in ORDERS:
        # Its own broker and backend, so that a worker gets the items of its own producer.
        own = {"POIMEN_NAMESPACE": f"t{secrets.token_hex(4)}", "PYTHONPATH": path_to(HERE), "TRACED_ORDER": order}
        envs[order] = own | {
            "TRACED_OUT": str(tmp_path_factory.mktemp("traces")),
            "TRACED_QUEUE": own["POIMEN_NAMESPACE"],
        }
    for order in ORDERS:
        group.start("traced", concurrency=1, queues=envs[order]["TRACED_QUEUE"], env=envs[order], wait=False)
    producers = {
        order: subprocess.Popen(
            [sys.executable, str(HERE / "traced.py")],
            env={**os.environ, **module_env, **envs[order]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in ORDERS
    }
    try:
        answers = {order: producer.communicate(timeout=100) for order, producer in producers.items()}
        for order, (out, err) in answers.items():
            assert producers[order].returncode == 0, f"{err[-3000:]}\n{group.all[ORDERS.index(order)].text()[-3000:]}"
            assert out
        yield {
            order: Traced(json.loads(out.splitlines()[-1]), Path(envs[order]["TRACED_OUT"]))
            for order, (out, _) in answers.items()
        }
    finally:
        for producer in producers.values():
            producer.kill()
        group.destroy_all()


@pytest.fixture(params=ORDERS)
def traced(request: pytest.FixtureRequest, runs: dict[str, Traced]) -> Traced:
    """One of the two runs."""
    return runs[request.param]


def test_the_batch_itself(traced: Traced) -> None:
    """Watched or not, items end as they should."""
    assert traced.told["succeeded"] == 41
    assert traced.told["errors"] == {"40": "ValueError", "42": "KeyError"}


def test_sentry_sees_each_item(traced: Traced) -> None:
    """One transaction an attempt, named after the task, in the trace of the transaction around the dispatch."""

    def of_items() -> list[dict[str, Any]]:
        found = [payload for payload in traced.sentry("transaction") if payload["transaction"] in ITEMS]
        assert Counter(one["transaction"] for one in found) == ITEMS
        return found

    traces = [one["contexts"]["trace"] for one in eventually(of_items)]
    assert {one["trace_id"] for one in traces} == {traced.told["sentry_trace"]}
    assert len({one["span_id"] for one in traces}) == len(traces)
    assert {one["parent_span_id"] for one in traces} == {traced.told["sentry_span"]}
    assert {one["op"] for one in traces} == {"queue.task.celery"}


def test_sentry_gets_a_failed_item_once(traced: Traced) -> None:
    """One event an item that failed, with the body's exception and the message id; none for a retry."""
    eventually(lambda: len(traced.sentry("event")) >= 2)
    events = {one["exception"]["values"][-1]["type"]: one for one in traced.sentry("event")}
    assert len(traced.sentry("event")) == 2
    batch = traced.told["batch"]
    for kind, text, place, task in (
        ("ValueError", "bad item", 40, "traced.bad"),
        ("KeyError", "'called item'", 42, "traced.called"),
    ):
        event = events[kind]
        assert event["exception"]["values"][-1]["value"] == text
        assert event["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == task.partition(".")[2]
        assert (event["tags"]["celery_task_id"], event["transaction"]) == (f"{batch}.{place}", task)
        assert event["contexts"]["trace"]["trace_id"] == traced.told["sentry_trace"]


def test_opentelemetry_sees_each_item(traced: Traced) -> None:
    """One span an attempt, named after the task, a child of the span around the dispatch, with the message id."""

    def of_items() -> list[dict[str, Any]]:
        found = traced.spans()
        assert Counter(one["name"].removeprefix("run/") for one in found) == ITEMS
        return found

    spans = eventually(of_items)
    assert {one["context"]["trace_id"] for one in spans} == {traced.told["otel_trace"]}
    assert {one["parent_id"] for one in spans} == {traced.told["otel_span"]}
    ids = {one["attributes"]["messaging.message.id"] for one in spans if one["name"] == "run/traced.work"}
    assert ids == {f"{traced.told['batch']}.{number}" for number in range(40)}


def test_opentelemetry_knows_failures(traced: Traced) -> None:
    """The span of an item that failed has its error; those of the others have none."""
    failed = {one["name"]: one for one in traced.spans() if one["status"]["status_code"] == "ERROR"}
    assert set(failed) == {"run/traced.bad", "run/traced.called"}
    (event,) = failed["run/traced.bad"]["events"]
    assert event["attributes"]["exception.type"] == "ValueError"
    assert event["attributes"]["exception.message"] == "bad item"


def test_nobody_traces(shop: ModuleType) -> None:
    """Without either nothing is carried: the batch's record has no such field."""
    batch = shop.poimen.dispatch([shop.add.s(1, 1)])
    assert shop.poimen.store.reads.field(batch.id, "trace") == [None]
