"""The audit log, promise by promise: real workers, a real server, a real sealer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest

from poimen_tasks import AuditEvent, AuditUnavailable, InvalidArgument, InvalidId, Item
from tests.acceptance.conftest import APP
from tests.auditing import lines_on_disk, seal, strict
from tests.conftest import ROOT, Workers

FIELDS = [
    "event_id", "event_type", "workflow_id", "task_id", "actor", "timestamp", "action", "reasoning", "input", "output",
    "status", "error", "metadata",
]  # fmt: skip


# -------------------------------------------------------------------------------------------- A1, A2
def test_an_event_has_its_fields(own_shop: ModuleType) -> None:
    """Every event, recorded or the system's own, sealed or not, has the same fields (promise A1)."""
    audit = own_shop.poimen.audit
    audit.record(
        "deploy.done", action="deployed", actor="ada", workflow="nightly", task="T1", reasoning="green\nenough",
        input={"rev": 7}, output=["ok"], status="warning", error="one host late", metadata={"hosts": 3},
    )  # fmt: skip
    own_shop.poimen.dispatch([], workflow="nightly")
    before = [event.to_dict() for event in audit.query()]
    seal(own_shop.poimen)
    after = [event.to_dict() for event in audit.query()]
    assert before == after
    assert len(after) > 3
    assert {tuple(event) for event in after} == {tuple(FIELDS)}
    (found,) = audit.query(type="deploy.done")
    assert {name: value for name, value in found.to_dict().items() if name not in {"event_id", "timestamp"}} == {
        "event_type": "deploy.done", "workflow_id": "nightly", "task_id": "T1", "actor": "ada", "action": "deployed",
        "reasoning": "green\nenough", "input": {"rev": 7}, "output": ["ok"], "status": "warning",
        "error": "one host late", "metadata": {"hosts": 3},
    }  # fmt: skip


def test_id_and_time_are_filled_in(own_shop: ModuleType) -> None:
    """An event without an id and a time gets both; its own are kept; None is no event (promise A2)."""
    audit = own_shop.poimen.audit
    first = audit.record("note", action="a", actor="ada")
    second = audit.record("note", action="a", actor="ada")
    assert first.event_id != second.event_id
    assert first.timestamp is not None
    server = datetime.fromtimestamp(own_shop.poimen.store.reads.now(), UTC)
    assert abs(server - first.timestamp) < timedelta(minutes=1)
    moment = datetime(2020, 2, 29, 12, tzinfo=UTC)
    audit.record_many([AuditEvent(event_id="mine", event_type="note", actor="ada", action="b", timestamp=moment)])
    assert [(event.event_id, event.timestamp) for event in audit.query()] == [
        (first.event_id, first.timestamp), (second.event_id, second.timestamp), ("mine", moment),
    ]  # fmt: skip
    for nothing in ([None], None, "note", [{"event_type": "note"}], AuditEvent):
        with pytest.raises(InvalidArgument, match="AuditEvent"):
            audit.record_many(nothing)
    assert audit.count() == 3


# -------------------------------------------------------------------------------------------- A3
def test_append_only(own_shop: ModuleType) -> None:
    """One JSON line an event, and what was written before stays byte for byte (promise A3)."""
    audit, directory = own_shop.poimen.audit, own_shop.poimen.audit.directory
    audit.record("note", action="one\ntwo", actor="ada", reasoning="\u2028\r\n\x00")
    seal(own_shop.poimen)
    (segment,) = (directory / "segments").iterdir()
    before = segment.read_bytes()
    audit.record_many([AuditEvent(event_type="note", actor="ada", action=f"n{at}") for at in range(700)])
    seal(own_shop.poimen)
    assert segment.read_bytes().startswith(before)
    lines = segment.read_bytes().split(b"\n")
    assert (len(lines), lines.pop()) == (702, b"")
    assert [strict(line)["event"]["action"] for line in lines[1:]] == [f"n{at}" for at in range(700)]


def test_all_or_none(own_shop: ModuleType) -> None:
    """Of a list with one bad event nothing is written, wherever it stands."""
    audit = own_shop.poimen.audit
    good = AuditEvent(event_type="note", actor="ada", action="a")
    for bad in (
        AuditEvent(event_type="a\nb", actor="ada", action="a"),
        AuditEvent(event_type="note", actor="", action="a"),
    ):
        with pytest.raises(Exception, match=r"^(event_type|actor): "):
            audit.record_many([*[good] * 600, bad])
    assert audit.count() == 0


def test_an_actor_outside_of_a_task(own_shop: ModuleType) -> None:
    """Outside of a task nobody is there to be the actor: the error says what to give, and nothing is written."""
    audit = own_shop.poimen.audit
    with pytest.raises(InvalidId, match=r'^actor: outside of a task it has to be given, as actor="ada"'):
        audit.record("deploy.done", action="y")
    assert audit.count() == 0


def test_every_change_has_its_event(shop: ModuleType, lanes: Workers) -> None:
    """What a batch went through stands in the log without anybody recording it, item by item (promise A3)."""
    assert lanes.all
    batch = shop.poimen.dispatch(
        [shop.add.s(at, 1) for at in range(7)] + [shop.add.s("x", 1)], workflow="audited-run", actor="cron"
    )
    batch.wait(timeout=60)
    events = shop.poimen.audit.query(workflow="audited-run")
    counted = Counter(event.event_type for event in events)
    assert (counted["batch.opened"], counted["batch.sealed"], counted["batch.failed"]) == (1, 1, 1)
    finished = {event.task: event for event in events if event.event_type == "item.finished"}
    assert sorted(finished) == [str(at) for at in range(8)]
    assert {event.status for event in finished.values()} == {"success", "failure"}
    assert finished["7"].error is not None
    assert finished["7"].error.startswith("TypeError")
    assert {event.actor for event in events} == {"cron"}
    outcome = batch.result("3")
    assert outcome == 4
    times = [event.timestamp for event in events]
    assert None not in times


# -------------------------------------------------------------------------------------------- A4
def test_the_three_helpers(own_shop: ModuleType) -> None:
    """A planner's decision, a judge's verdict and an implementer's change each have a verb (promise A4)."""
    audit = own_shop.poimen.audit
    audit.planner_decision(workflow="w", task="T1", action="split it", reasoning="too large", metadata={"parts": 2})
    audit.judge_verdict(workflow="w", task="T1", action="accepted", reasoning="tests pass")
    audit.implementer_change(
        workflow="w", task="T1", action="wrote the parser", files_modified=["a.py", "b/c.py"], metadata={"lines": 40}
    )
    told = [(event.event_type, event.actor, event.action, event.metadata) for event in audit.query(task="T1")]
    assert told == [
        ("planner_decision", "planner", "split it", {"parts": 2}),
        ("judge_verdict", "judge", "accepted", {}),
        ("implementer_change", "implementer", "wrote the parser", {"lines": 40, "files_modified": ["a.py", "b/c.py"]}),
    ]
    for bad in ("a.py", b"a.py", [b"a.py"], [7], None, 7):
        with pytest.raises(InvalidArgument, match="files_modified"):
            audit.implementer_change(action="x", files_modified=bad)


def test_inside_an_item(shop: ModuleType, lanes: Workers) -> None:
    """What a body records is about its own workflow and task id, by whoever dispatched it (promise A4)."""
    assert lanes.all
    items = [Item(shop.decide.s("because"), task_id="T1.1"), Item(shop.change.s(["x.py"]), task_id="T1.2")]
    batch = shop.poimen.dispatch(items, workflow="inside", actor="cron")
    ids = list(batch.wait(timeout=60).results.values())
    told = shop.poimen.audit.query(workflow="inside", task="T1.1")
    assert [event.event_type for event in told] == ["planner_decision", "item.finished"]
    decision = told[0]
    assert (decision.event_id, decision.actor, decision.reasoning) == (ids[0], "planner", "because")
    (change,) = shop.poimen.audit.query(workflow="inside", task="T1.2", type="implementer_change")
    assert (change.event_id, change.actor, change.metadata["files_modified"]) == (ids[1], "bob", ["x.py"])


# -------------------------------------------------------------------------------------------- A5
def test_questions(own_shop: ModuleType) -> None:
    """By task, workflow, actor, type, status, time and text, combined; trail and count; unknown ids (promise A5)."""
    audit = own_shop.poimen.audit
    begin = datetime(2025, 11, 29, tzinfo=UTC)
    audit.record_many(
        AuditEvent(
            event_type=f"kind{at % 2}", actor=f"actor{at % 3}", action=f"number {at}", workflow=f"w{at % 4}",
            task=f"T{at % 5}", status="failure" if at % 7 == 0 else "success", timestamp=begin + timedelta(minutes=at),
        )
        for at in range(60)
    )  # fmt: skip
    for _ in range(2):

        def told(**filters: object) -> list[int]:
            return [int(event.action[7:]) for event in audit.query(**filters)]

        assert told(task="T3") == list(range(3, 60, 5))
        assert told(workflow="w1") == list(range(1, 60, 4)) == [int(event.action[7:]) for event in audit.trail("w1")]
        assert told(actor="actor2") == list(range(2, 60, 3))
        assert told(type="kind1", status="failure") == list(range(7, 60, 14))
        assert told(workflow="w1", task="T1", actor=["actor1", "actor0"]) == [1, 21]
        # The ends of a time range are no part of it.
        assert told(since=begin + timedelta(minutes=10), until=begin + timedelta(minutes=13)) == [11, 12]
        assert told(text="NUMBER 5", actor="actor2") == [5, 50, 53, 56, 59]
        assert told(newest_first=True, limit=3) == [59, 58, 57]
        assert (audit.count(), audit.count(task="T3", status="failure")) == (60, 1)
        assert (told(task="nobody"), told(workflow="none"), told(actor="none"), list(audit.trail("none"))) == (
            [],
            [],
            [],
            [],
        )
        assert audit.count(workflow="none") == 0
        seal(own_shop.poimen)
    assert audit.query().source == "index+stream"


# -------------------------------------------------------------------------------------------- A6
def test_it_survives_restarts(own_shop: ModuleType, worker_env: dict[str, str]) -> None:
    """Another process reads what was recorded, and goes on behind it; Redis may be empty by then (promise A6)."""
    own_shop.poimen.audit.record("note", action="first", actor="ada")
    seal(own_shop.poimen)
    first = own_shop.poimen.audit.line(0)
    own_shop.poimen.store.client.redis.flushdb()
    code = f"from {APP} import poimen; poimen.audit.record('note', action='second', actor='bob')"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **worker_env, "PYTHONPATH": str(ROOT)}, cwd=ROOT, check=True
    )
    seal(own_shop.poimen)
    found = own_shop.poimen.audit.query(type="note")
    assert [(event.action, event.actor) for event in found] == [("first", "ada"), ("second", "bob")]
    assert own_shop.poimen.audit.line(0) == first == found[0]


def test_many_at_a_time(own_shop: ModuleType) -> None:
    """Threads that record while the sealer seals lose nothing, double nothing, and keep each one's order."""
    audit, over = own_shop.poimen.audit, threading.Event()

    def write(name: str) -> None:
        for at in range(0, 300, 3):
            audit.record_many([AuditEvent(event_type="note", actor=name, action=str(at + n)) for n in range(3)])

    def move() -> None:
        while not over.is_set():
            seal(own_shop.poimen)

    mover = threading.Thread(target=move)
    writers = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
    for thread in (mover, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
    over.set()
    mover.join(60)
    for name in ("a", "b", "c"):
        assert [event.action for event in audit.trail(actor=name)] == [str(at) for at in range(300)]
    seal(own_shop.poimen)
    assert audit.count() == 900 == len(lines_on_disk(audit.directory))


# -------------------------------------------------------------------------------------------- A7
def test_a_foreign_entry_is_told(own_shop: ModuleType) -> None:
    """An entry that somebody else put into the stream is told with its place and bytes, not skipped (promise A7)."""
    store, audit = own_shop.poimen.store, own_shop.poimen.audit
    audit.record("note", action="a", actor="ada")
    key = store.client.keys.build("audit")
    placed = [
        store.client.redis.xadd(key, {"t": "audit.recorded", "h": b"\xc1", "d": b'{"torn'}).decode(),
        store.client.redis.xadd(key, {"hello": "world\n"}).decode(),
    ]
    audit.record("note", action="b", actor="ada")
    for _ in range(2):
        found = audit.query()
        assert [event.event_type for event in found] == ["note", "audit.unreadable", "audit.unreadable", "note"]
        assert [event.metadata["stream_id"] for event in found[1:3]] == placed
        seal(own_shop.poimen)
    assert len(lines_on_disk(audit.directory)) == 4


# -------------------------------------------------------------------------------------------- recording
def test_ten_megabytes_of_reasoning(own_shop: ModuleType) -> None:
    """An event over the limit is refused in one line; below it, what is long is kept by digest beside the log."""
    audit = own_shop.poimen.audit
    with pytest.raises(InvalidArgument, match=r"POIMEN_AUDIT_MAX_BYTES.*reasoning"):
        audit.record("note", action="a", actor="ada", reasoning="x" * (10 << 20))
    assert audit.count() == 0
    text = "word \n" * 1_000_000
    told = audit.record("note", action="a", actor="ada", reasoning=text)
    seal(own_shop.poimen)
    found = audit.get(told.event_id)
    assert found is not None
    assert (found.reasoning, found.content["reasoning"]["bytes"]) == ("", 6_000_000)
    assert audit.content(found, "reasoning") == text
    (line,) = lines_on_disk(audit.directory)
    assert len(json.dumps(line)) < 2000
    (kept,) = [path for path in (audit.directory / "content").rglob("*") if path.is_file()]
    kept.unlink()
    with pytest.raises(AuditUnavailable, match=found.content["reasoning"]["sha256"]):
        audit.content(found, "reasoning")


def test_the_page_about_it_runs(own_shop: ModuleType) -> None:
    """What `docs/audit.md` shows in Python does what it says, sealed or not."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "audit.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    names = {"poimen": own_shop.poimen, "yesterday": datetime.now(UTC) - timedelta(days=1)}
    exec(blocks[0], names)  # noqa: S102 - our own page
    own_shop.poimen.audit.record("note", action="a", actor="ada", workflow="nightly", task="T1.1", status="failure")
    for source in ("stream", "index+stream"):
        exec(blocks[1], names)  # noqa: S102 - our own page
        assert (len(names["page"]), names["page"].source) == (1, source)
        seal(own_shop.poimen)
    told = [event.event_type for event in own_shop.poimen.audit.trail("nightly")]
    assert told == ["planner_decision", "judge_verdict", "implementer_change", "note"]
